package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// Media types of the API.
const (
	mediaJSON     = "application/json"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
	mediaMerge    = "application/merge-patch+json"
	mediaApply    = "application/apply-patch+yaml"
)

// target is the API server that is measured.
type target struct {
	url    string
	config *rest.Config
	tls    *tls.Config
	gzip   bool
}

func newTarget(config *rest.Config, compress bool) (*target, error) {
	t := &target{config: config, gzip: compress}
	url, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	t.url = strings.TrimSuffix(url.String(), "/")
	t.tls, err = rest.TLSConfigFor(config)
	return t, err
}

// client is one connection, or a few when the server limits the streams of one.
type client struct {
	target    *target
	transport *http.Transport
	http      http.Client
	buf       bytes.Buffer
}

func (t *target) newClient() (*client, error) {
	c := &client{target: t, transport: &http.Transport{
		TLSClientConfig: t.tls.Clone(), ForceAttemptHTTP2: true, DisableCompression: true,
		DialContext: (&net.Dialer{Timeout: 30 * time.Second}).DialContext, TLSHandshakeTimeout: time.Minute,
		ReadBufferSize: 64 << 10,
	}}
	rt, err := rest.HTTPWrappersForConfig(t.config, c.transport)
	if err != nil {
		return nil, err
	}
	c.http.Transport = rt
	return c, nil
}

func (t *target) newClients(n int) ([]*client, error) {
	all := make([]*client, n)
	for i := range all {
		var err error
		if all[i], err = t.newClient(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func closeAll(clients []*client) {
	for _, c := range clients {
		c.close()
	}
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// request is one call of the API.
type request struct {
	method, path string // the path with its query
	body         []byte
	media        string // of the body
	accept       string // empty: JSON
}

// statusError is an answer that says no.
type statusError struct {
	code    int
	request request
	message string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s %s: status %d: %s", e.request.method, e.request.path, e.code, e.message)
}

// open sends a request and returns the response when its header is there.
func (c *client) open(ctx context.Context, q request) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, q.method, c.target.url+q.path, bytes.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	if q.accept == "" {
		q.accept = mediaJSON
	}
	r.Header.Set("Accept", q.accept)
	if q.media != "" {
		r.Header.Set("Content-Type", q.media)
	}
	if c.target.gzip {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // the code says enough
		return nil, &statusError{resp.StatusCode, q, string(text)}
	}
	return resp, nil
}

// do sends a request and returns the body, valid until the next call.
func (c *client) do(ctx context.Context, q request) ([]byte, error) {
	resp, err := c.open(ctx, q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	c.buf.Reset()
	_, err = c.buf.ReadFrom(resp.Body)
	return c.buf.Bytes(), err
}

// drain sends a request and counts the bytes of the answer.
func (c *client) drain(ctx context.Context, q request) (int64, error) {
	resp, err := c.open(ctx, q)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(io.Discard, resp.Body)
}
