// Package server is the node agent's HTTPS endpoint: logs, exec, attach and
// port-forward for the API server, statistics and metrics for whoever may read
// them. Nothing but health is served without TLS, on the port that the
// configuration gives it, and nothing to an anonymous caller unless the
// configuration says so.
//
// A stream is handed to the container runtime's own streaming server as raw
// bytes. Only what that does not speak is translated on the way: exec and attach
// over v5.channel.k8s.io, and SPDY tunnelled through a WebSocket.
package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-base/cli/flag"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	"proa/internal/apiserver/slis"
	"proa/internal/apiserver/zpages"
	"proa/internal/client"
	"proa/internal/kubelet/config"
	"proa/internal/kubelet/logs"
	"proa/internal/verbosity"
)

const (
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 90 * time.Second
	stopTimeout       = 5 * time.Second
)

// LocalVolumes is the path under which the directories of local-path volumes can
// be deleted, by name. It is this project's own: upstream's kubelet has none.
const LocalVolumes = "/localVolumes/"

// Config of a Server. API, Runtime, Pods, NodeName, Certificate and ClientCAs
// are required.
type Config struct {
	API      client.API // for token and access reviews
	Runtime  runtimeapi.RuntimeServiceClient
	NodeName string
	// Pods returns the pods of this node with their status as the node knows it
	// now, not as the API has it.
	Pods func() []*corev1.Pod
	Logs *logs.Reader // default: one of its own

	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	ClientCAs   *x509.CertPool // of client certificates

	// Summary gives /stats/summary. Nil: not served.
	Summary func(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error)
	// Metrics gives /metrics, Resource /metrics/resource, Probes /metrics/probes.
	// Nil: not served.
	Metrics, Resource, Probes prometheus.Gatherer

	// RemoveLocal removes the directory of a volume of the class local-path. Nil:
	// not served.
	RemoveLocal func(volume string) error

	Healthy func() error // of the node agent; nil: always
	// Pages are /statusz and /flagz. Nil: not served.
	Pages   *zpages.Pages
	Configz any // the kubelet's configuration, for /configz
	// Configuration says who may ask what. Nil: the defaults.
	Configuration *config.Configuration
	Clock         clock.Clock // default: the wall clock
}

// Server serves the node agent's endpoint.
type Server struct {
	c       Config
	access  *access
	health  *slis.SLIs
	handler http.Handler
}

// New returns a Server.
func New(c Config) *Server {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logs == nil {
		c.Logs = logs.NewReader(c.Clock)
	}
	if c.Configuration == nil {
		c.Configuration = config.New()
	}
	if c.Healthy == nil {
		c.Healthy = func() error { return nil }
	}
	s := &Server{c: c, health: slis.New(), access: newAccess(c.API, c.ClientCAs, c.NodeName, c.Configuration, c.Clock)}
	s.handler = s.access.wrap(s.routes())
	return s
}

// Handler is the whole endpoint, authentication included. Requests must have
// come over TLS for client certificates to count.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves until the context ends. Streams still open then are cut.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	return run(ctx, newTracker(l), s.handler, s.tlsConfig())
}

// RunHealthz serves the agent's health, without TLS and to everyone, until the
// context ends.
func (s *Server) RunHealthz(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /healthz/{check}", s.healthz)
	return run(ctx, newTracker(l), mux, nil)
}

func run(ctx context.Context, conns *tracker, handler http.Handler, secure *tls.Config) error {
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
		// One connection is one request or one stream: no HTTP/2, and so no
		// flood of streams before authentication.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	stopped := make(chan error, 1)
	var listener net.Listener = conns
	if secure != nil {
		listener = tls.NewListener(conns, secure)
	}
	go func() { stopped <- srv.Serve(listener) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	conns.closeAll() // hijacked streams are not the http.Server's any more
	err := srv.Shutdown(grace)
	if served := <-stopped; !errors.Is(served, http.ErrServerClosed) {
		return served
	}
	return err
}

// tlsConfig takes names that the configuration's validation has read before.
func (s *Server) tlsConfig() *tls.Config {
	c := s.c.Configuration
	version, _ := flag.TLSVersion(c.TLSMinVersion)
	suites, _ := flag.TLSCipherSuites(c.TLSCipherSuites)
	curves, _ := flag.TLSCurvePreferences(c.TLSCurvePreferences)
	return &tls.Config{
		MinVersion:       version,
		CipherSuites:     suites,
		CurvePreferences: curves,
		NextProtos:       []string{"http/1.1"},
		GetCertificate:   s.c.Certificate,
		// Verified by access, which answers 401 instead of breaking the handshake.
		ClientAuth: tls.RequestClientCert,
		ClientCAs:  s.c.ClientCAs,
	}
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /healthz/{check}", s.healthz)
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /pods/{$}", s.pods)
	mux.HandleFunc("GET /configz", s.configz)
	mux.Handle("GET /metrics/slis", s.health)
	if s.c.Pages != nil {
		mux.HandleFunc("GET /statusz", orRefuse(s.c.Pages.Statusz))
		mux.HandleFunc("GET /flagz", orRefuse(s.c.Pages.Flagz))
	}
	if s.c.Summary != nil {
		mux.HandleFunc("GET /stats/summary", s.summary)
	}
	for path, g := range map[string]prometheus.Gatherer{"/metrics": s.c.Metrics, "/metrics/resource": s.c.Resource, "/metrics/probes": s.c.Probes} {
		if g != nil {
			mux.Handle("GET "+path, promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
		}
	}
	if s.c.RemoveLocal != nil {
		mux.HandleFunc("DELETE "+LocalVolumes+"{name}", func(w http.ResponseWriter, r *http.Request) {
			if err := s.c.RemoveLocal(r.PathValue("name")); err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
			}
		})
	}
	s.debugging(mux)
	return mux
}

// debugging adds what lets callers into containers and into the agent.
func (s *Server) debugging(mux *http.ServeMux) {
	c := s.c.Configuration
	if !*c.EnableDebuggingHandlers {
		refuse(mux, "Debug endpoints are disabled.", "/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/", "/debug/pprof/", "/debug/flags/", "/logs/")
		return
	}
	mux.HandleFunc("GET /runningpods", s.runningPods)
	mux.HandleFunc("GET /runningpods/{$}", s.runningPods)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, path := range []string{"{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"} {
		both(mux, "/exec/"+path, s.exec)
		both(mux, "/attach/"+path, s.attach)
		mux.HandleFunc("POST /run/"+path, s.run)
	}
	both(mux, "/portForward/{namespace}/{pod}", s.portForward)
	both(mux, "/portForward/{namespace}/{pod}/{uid}", s.portForward)
	if *c.EnableSystemLogHandler {
		mux.Handle("GET /logs/", http.StripPrefix("/logs/", http.FileServerFS(systemLogs{})))
	} else {
		refuse(mux, "logs endpoint is disabled.", "/logs/")
	}
	if *c.EnableDebugFlagsHandler {
		mux.HandleFunc("/debug/flags/v", verbosity.ServeHTTP)
	} else {
		refuse(mux, "flags endpoint is disabled.", "/debug/flags/")
	}
	if *c.EnableProfilingHandler {
		profiles(mux)
	} else {
		refuse(mux, "profiling endpoint is disabled.", "/debug/pprof/")
	}
}

func refuse(mux *http.ServeMux, why string, paths ...string) {
	for _, path := range paths {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, why, http.StatusMethodNotAllowed) })
	}
}

func both(mux *http.ServeMux, path string, h http.HandlerFunc) {
	mux.HandleFunc("GET "+path, h)
	mux.HandleFunc("POST "+path, h)
}

// checks of the agent's health, by upstream's names.
var checks = []string{"ping", "log", "syncloop"}

// orRefuse writes what a page refuses.
func orRefuse(page func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := page(w, r)
		if err == nil {
			return
		}
		code := http.StatusInternalServerError
		var refusal apierrors.APIStatus
		if errors.As(err, &refusal) {
			code = int(refusal.Status().Code)
		}
		http.Error(w, err.Error(), code)
	}
}

func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	only := r.PathValue("check")
	if only != "" && !slices.Contains(checks, only) {
		http.NotFound(w, r)
		return
	}
	err := s.c.Healthy()
	for _, check := range checks {
		if only != "" && check != only {
			continue
		}
		var failed error
		if check == "syncloop" {
			failed = err
		}
		s.health.Note("healthz", check, failed)
	}
	if err != nil {
		http.Error(w, "internal server error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = io.WriteString(w, "ok") // the client is gone when this fails
}

func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"kubeletconfig": s.c.Configz})
}

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	only := r.FormValue("only_cpu_and_memory") == "true"
	sum, err := s.c.Summary(r.Context(), only)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, sum)
}

func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client is gone when this fails
}
