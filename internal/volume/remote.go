package volume

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// localVolumesPath is where a node's agent takes deletions of directories.
const localVolumesPath = "/localVolumes/"

// RemoveThrough returns a LocalPath.Remove that asks nodes' agents over HTTPS.
// Client carries the API server's credentials for node agents; address returns
// the agent's host:port.
func RemoveThrough(client *http.Client, address func(node string) (string, error)) func(ctx context.Context, node, volume string) error {
	return func(ctx context.Context, node, volume string) error {
		host, err := address(node)
		if err != nil {
			return err
		}
		target := url.URL{Scheme: "https", Host: host, Path: localVolumesPath + url.PathEscape(volume)}
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete, target.String(), nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
		}
		return nil
	}
}
