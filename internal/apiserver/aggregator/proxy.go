package aggregator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/streaming/pkg/httpstream"
)

// Serve passes a request of b's group version on, as u. It returns an error,
// having written nothing, when the request's time ran out.
func (a *Aggregator) Serve(w http.ResponseWriter, r *http.Request, b *Backend, u user.Info) error {
	if !b.available {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return nil
	}
	if b.broken != nil {
		http.Error(w, b.broken.Error(), http.StatusInternalServerError)
		return nil
	}
	if u == nil {
		http.Error(w, "missing user", http.StatusInternalServerError)
		return nil
	}
	host, err := a.services.Pick(b.spec.Service.Namespace, b.spec.Service.Name, b.port())
	if err != nil {
		a.config.Log.Warn("extension server cannot be reached", "apiservice", b.name, "err", err)
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return nil
	}
	at := &url.URL{Scheme: "https", Host: host, Path: r.URL.Path, RawQuery: r.URL.Query().Encode()}
	out := forwarded(w, r, at, u)
	upgrade := httpstream.IsUpgradeRequest(r)
	handler := proxy.NewUpgradeAwareHandler(at, plain{b.transport}, true, upgrade, nil)
	var late error
	handler.Responder = responder(func(err error) {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(r.Context().Err(), context.DeadlineExceeded) {
			late = context.DeadlineExceeded
			return
		}
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	})
	handler.RejectForwardingRedirects = true
	handler.ServeHTTP(w, out)
	return late
}

// forwarded is the request as the extension server gets it. Headers that name a
// user are this server's to set.
func forwarded(w http.ResponseWriter, r *http.Request, at *url.URL, u user.Info) *http.Request {
	out := r.Clone(r.Context())
	out.URL, out.Host = at, at.Host
	out.Header.Del("Authorization")
	for name := range out.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "impersonate-") || strings.HasPrefix(lower, "x-remote-") {
			delete(out.Header, name)
		}
	}
	transport.SetAuthProxyHeaders(out, u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra())
	if id := w.Header().Get(auditID); id != "" {
		out.Header.Set(auditID, id)
	}
	w.Header().Del("Cache-Control") // the other server says what may be kept
	return out
}

const auditID = "Audit-Id"

// plain leaves out of answers what this server says itself.
type plain struct{ *http.Transport }

func (p plain) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.Transport.RoundTrip(r)
	if err == nil {
		resp.Header.Del(auditID)
	}
	return resp, err
}

// WrappedRoundTripper lets upgrades find the TLS configuration below.
func (p plain) WrappedRoundTripper() http.RoundTripper { return p.Transport }

type responder func(err error)

func (r responder) Error(_ http.ResponseWriter, _ *http.Request, err error) { r(err) }

// ownUser is whom the extension servers see when this server asks for itself.
var ownUser = &user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{user.SystemPrivilegedGroup}}

// reply is a whole answer to a request of this server's own.
type reply struct {
	code   int
	header http.Header
	body   []byte
}

// get reads a document of an extension server on this server's own behalf. It follows
// nothing and reads no more than limit bytes.
func (a *Aggregator) get(ctx context.Context, b *Backend, path string, header http.Header, limit int64) (*reply, error) {
	if b.broken != nil {
		return nil, b.broken
	}
	host, err := a.services.Pick(b.spec.Service.Namespace, b.spec.Service.Name, b.port())
	if err != nil {
		return nil, err
	}
	at := "https://" + host + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	transport.SetAuthProxyHeaders(req, ownUser.Name, ownUser.UID, ownUser.Groups, ownUser.Extra)
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		b.close()
		return nil, fmt.Errorf("failing or missing response from %s: Get %q: %w", at, at, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("failing or missing response from %s: %w", at, err)
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("response from %s is longer than %d bytes", at, limit)
	}
	return &reply{resp.StatusCode, resp.Header, body}, nil
}

const (
	probeTimeout  = 5 * time.Second
	probeAttempts = 5
	// maxDiscovery is how many bytes a discovery document may have.
	maxDiscovery = 8 << 20
)

// Probe asks for the discovery document that a server behind s has to serve:
// several times at once, one good answer is enough.
func (a *Aggregator) Probe(ctx context.Context, s *apiregistrationv1.APIService) error {
	b := newBackend(s, nil, a.config)
	defer b.close()
	var attempts sync.WaitGroup
	defer attempts.Wait()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel() // and with it the attempts that are no longer needed
	results := make(chan error, probeAttempts)
	for range probeAttempts {
		attempts.Go(func() { results <- a.probeOnce(ctx, b) })
	}
	var last error
	for range probeAttempts {
		if last = <-results; last == nil {
			return nil
		}
	}
	return last
}

func (a *Aggregator) probeOnce(ctx context.Context, b *Backend) error {
	r, err := a.get(ctx, b, b.root(), nil, maxDiscovery)
	if err != nil {
		return err
	}
	if r.code < 200 || r.code > 299 {
		host, _ := a.services.Pick(b.spec.Service.Namespace, b.spec.Service.Name, b.port())
		at := "https://" + host + b.root()
		return fmt.Errorf("failing or missing response from %s: bad status from %s: %d", at, at, r.code)
	}
	return nil
}
