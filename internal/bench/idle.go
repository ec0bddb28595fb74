package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
)

// Idle says how a cluster with nothing to do is measured.
type Idle struct {
	Config   *rest.Config
	Server   Server
	Duration time.Duration // default 60 s
}

// Run watches the processes for a while: a line each with the memory that it has
// and the CPU it used per second, and one for how often something was written.
func (d Idle) Run(ctx context.Context, report Report) error {
	if d.Duration <= 0 {
		d.Duration = time.Minute
	}
	t, err := newTarget(d.Config, false)
	if err != nil {
		return err
	}
	c, err := t.newClient()
	if err != nil {
		return err
	}
	defer c.close()
	first, err := t.storeRevision(ctx, c)
	if err != nil {
		return err
	}
	before := d.Server.each()
	select {
	case <-time.After(d.Duration):
	case <-ctx.Done():
		return ctx.Err()
	}
	after := d.Server.each()
	last, err := t.storeRevision(ctx, c)
	if err != nil {
		return err
	}
	for i, p := range d.Server.Processes {
		used := after[i].cpu - before[i].cpu
		report(Figure{
			Task: "idle", How: fmt.Sprintf("%s (%d), CPU per second", p.Name, p.PID), Seconds: d.Duration.Seconds(),
			CPU: millis(used) / d.Duration.Seconds(), Memory: after[i].resident,
		})
	}
	report(Figure{
		Task: "idle", How: "writes", Count: int(last - first), Seconds: d.Duration.Seconds(), PerSecond: float64(last-first) / d.Duration.Seconds(),
	})
	return nil
}

func (s Server) each() []usage {
	all := make([]usage, len(s.Processes))
	for i, p := range s.Processes {
		all[i], _ = p.usage() // one that ended used nothing more
	}
	return all
}

func (t *target) storeRevision(ctx context.Context, c *client) (int64, error) {
	text, err := t.revision(ctx, c, namespaces)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// revision is that of the store now, which every list tells.
func (t *target) revision(ctx context.Context, c *client, path string) (string, error) {
	body, err := c.do(ctx, request{method: http.MethodGet, path: path + "?limit=1"})
	if err != nil {
		return "", err
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return "", fmt.Errorf("list %s: %w", path, err)
	}
	return list.Metadata.ResourceVersion, nil
}
