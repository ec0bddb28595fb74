// Package remote says how the webhooks of authentication and authorization are
// reached: by a kubeconfig, and never beyond a redirect.
package remote

import (
	"errors"
	"net/http"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// Config reads the kubeconfig of a webhook. A timeout of zero is upstream's, 30 s; dial
// opens the connections, nil: directly.
func Config(kubeconfig string, timeout time.Duration, dial utilnet.DialFunc) (*rest.Config, error) {
	c, err := webhookutil.LoadKubeconfig(kubeconfig, dial)
	if err != nil {
		return nil, err
	}
	if timeout > 0 {
		c.Timeout = timeout
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return straight{next} })
	return c, nil
}

// straight refuses redirects: a webhook must not send the server's credentials
// and questions elsewhere.
type straight struct{ next http.RoundTripper }

var errRedirect = errors.New("the webhook redirects, which is not followed")

func (s straight) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(r)
	if err == nil && resp.StatusCode >= 300 && resp.StatusCode < 400 {
		resp.Body.Close()
		return nil, errRedirect
	}
	return resp, err
}
