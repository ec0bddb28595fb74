// Package apiserver is the API over HTTP: it reads a request, finds out who
// asks and whether they may, calls the registry, and writes the answer in the
// form that the client wants. What an object may be and how it is stored is the
// registry's matter; what a stream carries is the kubelet's.
//
// A request passes, in order: recovery, metrics, request info, audit id,
// authentication (401), audit (when there is a policy), impersonation, time limit, priority and fairness or
// in-flight limits (429), authorization (403), warnings, and then the resource handler or one of the fixed paths.
package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/apis/feature"
	"proa/internal/apiserver/aggregator"
	"proa/internal/apiserver/audit"
	"proa/internal/apiserver/connect"
	"proa/internal/apiserver/discovery"
	"proa/internal/apiserver/fairness"
	"proa/internal/apiserver/http2"
	"proa/internal/apiserver/openapi"
	"proa/internal/apiserver/registry"
	"proa/internal/cardinality"
	"proa/internal/store"
	"proa/internal/tracing"
)

// Config says what a Server serves. Registry and Store are required.
type Config struct {
	Registry *registry.Registry
	Store    *store.Store // read by the connect subresources

	// Admission sees connect requests. Nil: all pass.
	Admission *admission.Chain

	// Authenticator and Authorizer guard every path. Both are required: a server
	// without them has to say so with Insecure.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Insecure serves everyone as system:masters where Authenticator is nil, and
	// allows everything where Authorizer is nil.
	Insecure bool

	// TLS holds the server's certificate and the client authorities. Nil: plain
	// HTTP/1.1 (behind Handler or for tests).
	TLS *tls.Config
	// ClientCAs are the authorities that clients are told they may choose a certificate
	// of, now. Nil: those of TLS.
	ClientCAs func() *x509.CertPool

	// Aggregator knows what other servers serve. Nil: nothing.
	Aggregator *aggregator.Aggregator

	// Kubelet says how node agents are reached; its Store is filled in.
	Kubelet connect.Config

	Version version.Info

	// Features are the feature gates that /metrics shows.
	Features feature.Gates

	// Address is the host:port that /api tells clients.
	Address string

	// JWKS and OpenIDConfiguration are the documents of service account token
	// discovery, and how long clients may keep them. Nil: not served.
	JWKS, OpenIDConfiguration func() (document []byte, maxAge time.Duration)

	// Audit says what is written down of requests, and where to.
	Audit audit.Config

	// Flags are those in force, for /flagz; their values are shown to whoever may read it.
	Flags map[string]string

	// Checks are what /healthz, /livez and /readyz report besides ping.
	Checks []Check

	// Tracer makes spans of requests. Nil: nobody traces.
	Tracer tracing.Provider

	// Metrics gathers what /metrics shows besides what all servers of a process
	// share: the process, the Go runtime and upstream's libraries. Nil: a registry
	// of its own.
	Metrics *prometheus.Registry
	// MetricLabels are the values that labels show there. Nil: all.
	MetricLabels *cardinality.Limits

	RequestTimeout  time.Duration // of requests that are not long-running; default 60 s
	MinWatch        time.Duration // shortest time limit of a watch that names none; default 30 min
	MaxBody         int64         // bytes; default 3 MiB
	MaxReads        int           // requests in flight that only read; default 400; negative: no limit
	MaxWrites       int           // and that write; default 200; negative: no limit
	NoFairness      bool          // hold those two limits, instead of sharing their sum out by priority and fairness
	MaxStreams      int           // per HTTP/2 connection; default 100
	GoawayChance    float64       // that a request over HTTP/2 has its client connect anew
	ShutdownDelay   time.Duration // for which all is served as before while /readyz fails
	ShutdownTimeout time.Duration // for what is in flight after that; default 10 s
	// ShutdownWatchGrace spreads the ends of watches, so that their clients do not all
	// come back at once; 0: they end at the same time.
	ShutdownWatchGrace time.Duration
	// ShutdownRetryAfter keeps the listener open while requests in flight are
	// answered, and answers new ones with 429 and Retry-After.
	ShutdownRetryAfter bool
	Clock              clock.Clock
	Log                *slog.Logger
}

// Server is one API server.
type Server struct {
	config       Config
	catalogue    *apis.Catalogue
	discovery    *discovery.Handler
	openapi      *openapi.Handler
	connect      *connect.Connector
	health       *health
	metrics      *metrics
	audit        *audit.Trail // nil: nothing is written down
	deprecations *deprecations
	fairness     *fairness.Fairness // nil: limits of requests in flight hold
	handler      http.Handler
	cbor         bool // the gate of CBOR is on

	watches  atomic.Int64 // that are served now
	busy     atomic.Int64 // of them, those that write or rest after it
	started  time.Time
	ending   context.Context // ends when the server is told to stop
	end      context.CancelFunc
	draining context.Context // ends when it takes no more requests, and watches with it
	drain    context.CancelFunc
	spread   atomic.Int64 // time from the end of one watch to that of the next when draining
	leaving  atomic.Int64 // watches that have been told to end
	inFlight sync.RWMutex // read-locked by each request, if new ones are refused while the server stops
}

const defaultMaxBody = 3 << 20

// cborServing is the gate of CBOR (KEP-4222).
const cborServing = "CBORServingAndStorage"

// New returns a Server that is ready to serve.
func New(c Config) (*Server, error) {
	if c.Registry == nil || c.Store == nil {
		return nil, errors.New("apiserver: a registry and a store are required")
	}
	if !c.Insecure && (c.Authenticator == nil || c.Authorizer == nil) {
		return nil, errors.New("apiserver: an authenticator and an authorizer are required")
	}
	c.setDefaults()
	c.Kubelet.Store = c.Store
	catalogue := c.Registry.Catalogue()
	s := &Server{
		config: c, catalogue: catalogue,
		discovery: discovery.New(discovery.Config{Catalogue: catalogue, Address: c.Address, Remotes: c.remoteDiscovery(), CBOR: c.Features.Enabled(cborServing)}),
		openapi:   openapi.New(c.openAPI(catalogue)),
		connect:   connect.New(c.Kubelet),
		cbor:      c.Features.Enabled(cborServing),
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.draining, s.drain = context.WithCancel(context.Background())
	s.started = c.Clock.Now()
	var err error
	if s.metrics, err = newMetrics(c.Metrics, c.Features, c.MetricLabels); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	s.deprecations = newDeprecations(c.Version)
	collectors := []prometheus.Collector{s.deprecations.requested, objectCounts{c.Store, catalogue}}
	if c.Admission != nil {
		collectors = append(collectors, c.Admission.Metrics()...)
	}
	for _, collector := range collectors {
		if err := s.metrics.register(collector); err != nil {
			return nil, fmt.Errorf("apiserver: %w", err)
		}
	}
	if c.Aggregator != nil {
		if err := s.metrics.register(c.Aggregator); err != nil {
			return nil, fmt.Errorf("apiserver: %w", err)
		}
	}
	if s.audit, err = audit.New(c.Audit); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	if err := s.setUpFairness(); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	s.health = newHealth(slices.Concat(c.Checks, s.fairnessChecks()), s.ending)
	s.handler = s.chain(http.HandlerFunc(s.serve))
	return s, nil
}

func (c *Config) setDefaults() {
	if c.RequestTimeout == 0 {
		c.RequestTimeout = time.Minute
	}
	if c.MinWatch == 0 {
		c.MinWatch = 30 * time.Minute
	}
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	if c.MaxReads == 0 {
		c.MaxReads = 400
	}
	if c.MaxWrites == 0 {
		c.MaxWrites = 200
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = 100
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = 10 * time.Second
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
}

// Handler serves every path, for use with another listener or in a test.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves the listener until ctx ends. Then /readyz fails and, after the delay,
// the watches end, what is in flight is answered, and Run returns. With a TLS config
// it speaks HTTP/2 and HTTP/1.1.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: 32 * time.Second, IdleTimeout: 90 * time.Second, MaxHeaderBytes: 1 << 20,
		ErrorLog: slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
	}
	serve := func() error { return server.Serve(l) }
	if s.config.TLS != nil {
		s.secure(server)
		serve = func() error { return server.ServeTLS(http2.Corked(l), "", "") }
	}
	done := make(chan error, 1)
	go func() { done <- serve() }()
	stopBackground := s.runBackground(ctx)
	defer stopBackground()
	defer s.drain()
	select {
	case err := <-done:
		return fmt.Errorf("serve the API: %w", err)
	case <-ctx.Done():
	}
	s.end()
	if s.config.ShutdownDelay > 0 {
		select {
		case err := <-done:
			return fmt.Errorf("serve the API: %w", err)
		case <-s.config.Clock.After(s.config.ShutdownDelay):
		}
	}
	s.spread.Store(int64(s.config.ShutdownWatchGrace) / max(s.watches.Load(), leastEnds*int64(s.config.ShutdownWatchGrace)/int64(time.Second), 1))
	s.drain()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.ShutdownTimeout+s.config.ShutdownWatchGrace)
	defer cancel()
	if s.config.ShutdownRetryAfter {
		s.finish(limit)
	}
	if err := server.Shutdown(limit); err != nil {
		server.Close() // what does not end in time is cut
	}
	<-done
	s.connect.Close()
	return nil
}

// leastEnds is how many watches end in a second at least when the server stops.
const leastEnds = 200

// takeLeave waits for a watch's turn to end when the server stops.
func (s *Server) takeLeave(ctx context.Context) {
	gap := time.Duration(s.spread.Load())
	if gap == 0 || s.draining.Err() == nil {
		return
	}
	select {
	case <-s.config.Clock.After(min(time.Duration(s.leaving.Add(1))*gap, s.config.ShutdownWatchGrace)):
	case <-ctx.Done():
	}
}

// finish refuses new requests, and returns when those in flight are answered or
// ctx ends.
func (s *Server) finish(ctx context.Context) {
	answered := make(chan struct{})
	go func() { // ends when the last request does: Run cuts those that take too long
		s.inFlight.Lock()
		close(answered)
	}()
	select {
	case <-answered:
	case <-ctx.Done():
	}
}

// runBackground runs what the server needs beside its listener until the returned
// function is called.
func (s *Server) runBackground(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // what is in flight needs it to the end
	var running sync.WaitGroup
	if s.fairness != nil {
		running.Go(func() {
			if err := s.fairness.Run(ctx); err != nil {
				s.config.Log.Error("priority and fairness ended", "error", err)
			}
		})
	}
	if s.audit != nil {
		running.Go(func() {
			if err := s.audit.Run(ctx); err != nil {
				s.config.Log.Error("audit ended", "error", err)
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

// followAuthorities makes one configuration for each set of authorities, so that
// sessions resume as long as they stay the same.
func followAuthorities(base *tls.Config, now func() *x509.CertPool) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	var current atomic.Pointer[tls.Config]
	return func(*tls.ClientHelloInfo) (*tls.Config, error) {
		authorities, c := now(), current.Load()
		if c == nil || c.ClientCAs != authorities {
			c = base.Clone()
			c.GetConfigForClient, c.ClientCAs, c.NextProtos = nil, authorities, []string{"h2", "http/1.1"}
			current.Store(c)
		}
		return c, nil
	}
}

// secure sets up TLS and HTTP/2. The limits keep one connection from holding more
// than its share.
func (s *Server) secure(server *http.Server) {
	t := s.config.TLS.Clone()
	if t.MinVersion == 0 {
		t.MinVersion = tls.VersionTLS12
	}
	if t.ClientAuth == tls.NoClientCert {
		t.ClientAuth = tls.RequestClientCert // the authenticator verifies it
	}
	const resourceBody99th = 256 << 10
	if s.config.ClientCAs != nil {
		t.GetConfigForClient = followAuthorities(t, s.config.ClientCAs)
	}
	t.DynamicRecordSizingDisabled = true // small records first help browsers; here they are writes of the kernel's
	server.TLSConfig = t
	http2.Serve(server, http2.Config{
		MaxStreams: s.config.MaxStreams, Window: resourceBody99th, MaxHeader: server.MaxHeaderBytes, IdleTimeout: server.IdleTimeout,
	})
}
