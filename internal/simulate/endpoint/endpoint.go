// Package endpoint answers for the agents of all simulated nodes, on one port:
// logs, exec, attach and port-forward of their pods as the simulation's documents
// say, and what they use. Nobody is answered who could not ask a kubelet.
package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/kubelet/logs"
	"proa/internal/kubelet/server"
	"proa/internal/simulate"
	"proa/internal/simulate/kwok"
	"proa/internal/simulate/usage"
)

const (
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 90 * time.Second
	streamIdle        = 4 * time.Hour
	streamStart       = 30 * time.Second
)

// Config of an Endpoint. Cache, Simulator and Documents are required.
type Config struct {
	// Cache is the simulator's; access reviews are asked of its API.
	Cache     *client.Cache
	Simulator *simulate.Simulator
	Documents *kwok.Documents

	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	ClientCAs   *x509.CertPool
	Clock       clock.Clock // nil: the machine's
}

// Endpoint is made by New and works while Run does.
type Endpoint struct {
	c       Config
	logs    *logs.Reader
	meter   *usage.Meter
	pages   []*page
	handler http.Handler
}

// New compiles the documents; call it before the cache runs.
func New(c Config) (*Endpoint, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	e := &Endpoint{c: c, logs: logs.NewReader(c.Clock)}
	var err error
	if e.meter, err = usage.New(c.Documents, c.Clock.Now); err != nil {
		return nil, err
	}
	client.Shared[*corev1.Pod](c.Cache).OnChange(func(old, pod *corev1.Pod) {
		if pod == nil {
			e.meter.Forget(old.UID)
		}
	})
	for _, doc := range c.Documents.Metrics {
		p, err := e.compilePage(doc.Spec)
		if err != nil {
			return nil, fmt.Errorf("Metric %s: %w", doc.Name, err)
		}
		e.pages = append(e.pages, p)
	}
	routes, err := e.routes()
	if err != nil {
		return nil, err
	}
	e.handler = server.Guard(c.Cache.API(), c.ClientCAs, c.Clock, routes)
	return e, nil
}

func (e *Endpoint) routes() (mux *http.ServeMux, err error) {
	defer func() {
		if p := recover(); p != nil { // of ServeMux: a path of the user's that it does not take
			err = fmt.Errorf("path of a Metric: %v", p)
		}
	}()
	mux = http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", e.containerLogs)
	for _, path := range []string{"{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"} {
		both(mux, "/exec/"+path, e.exec)
		both(mux, "/attach/"+path, e.attach)
	}
	both(mux, "/portForward/{namespace}/{pod}", e.portForward)
	both(mux, "/portForward/{namespace}/{pod}/{uid}", e.portForward)
	const resources = "/metrics/nodes/{nodeName}/metrics/resource"
	own := true
	for _, p := range e.pages {
		own = own && p.path != resources
		mux.HandleFunc("GET "+p.path, p.serve)
	}
	if own {
		mux.HandleFunc("GET "+resources, e.resourceMetrics)
	}
	return mux, nil
}

func both(mux *http.ServeMux, path string, h http.HandlerFunc) {
	mux.HandleFunc("GET "+path, h)
	mux.HandleFunc("POST "+path, h)
}

// Handler is the whole endpoint, authentication included.
func (e *Endpoint) Handler() http.Handler { return e.handler }

// Run serves until ctx ends, which cuts the streams that are open.
func (e *Endpoint) Run(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           e.handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // streams take over connections
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	err := srv.Serve(tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: e.c.Certificate,
		ClientAuth: tls.RequestClientCert, ClientCAs: e.c.ClientCAs, // checked by the guard
	}))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// find returns the pod that a request is about, and one of its containers if the
// request names one.
func (e *Endpoint) find(w http.ResponseWriter, r *http.Request) (*corev1.Pod, bool) {
	namespace, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	pod, ok := e.c.Simulator.Pod(namespace, name)
	if uid := r.PathValue("uid"); !ok || uid != "" && types.UID(uid) != pod.UID {
		http.Error(w, fmt.Sprintf("pod %q does not exist", name), http.StatusNotFound)
		return nil, false
	}
	if container != "" && !has(pod, container) {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", container, name), http.StatusNotFound)
		return nil, false
	}
	return pod, true
}

func has(pod *corev1.Pod, container string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == container {
			return true
		}
	}
	return false
}

// told finds what the documents of one kind say about a pod: first those of the
// pod's own name, then those of the cluster.
func told[S, T any](pod *corev1.Pod, own, cluster []kwok.Document[S], parts func(*S) (*kwok.ObjectSelector, []T), fits func(*T) bool) *T {
	search := func(docs []kwok.Document[S], applies func(*kwok.Document[S], *kwok.ObjectSelector) bool) *T {
		for i := range docs {
			selector, list := parts(&docs[i].Spec)
			if !applies(&docs[i], selector) {
				continue
			}
			for j := range list {
				if fits(&list[j]) {
					return &list[j]
				}
			}
		}
		return nil
	}
	found := search(own, func(d *kwok.Document[S], _ *kwok.ObjectSelector) bool {
		return d.Name == pod.Name && d.Namespace == pod.Namespace
	})
	if found == nil {
		found = search(cluster, func(_ *kwok.Document[S], s *kwok.ObjectSelector) bool { return s.Matches(pod.Namespace, pod.Name) })
	}
	return found
}
