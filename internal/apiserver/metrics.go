package apiserver

import (
	"bufio"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/legacyregistry"

	"proa/internal/apis"
	"proa/internal/apis/feature"
	"proa/internal/apiserver/request"
	"proa/internal/cardinality"
	"proa/internal/store"
)

// metrics counts requests under upstream's names.
type metrics struct {
	http.Handler // /metrics

	register func(prometheus.Collector) error

	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	inFlight    *prometheus.GaugeVec
	longRunning *prometheus.GaugeVec
	dropped     *prometheus.CounterVec
	sli         *prometheus.HistogramVec
	sizes       *prometheus.HistogramVec
	consistent  *prometheus.CounterVec

	mu       sync.RWMutex // guards what follows
	series   map[subject]*series
	counters map[subject]prometheus.Counter
}

// waitedFor notes the time that a request waited for its turn.
func waitedFor(w http.ResponseWriter, d time.Duration) {
	for w != nil {
		if rec, ok := w.(*recorder); ok {
			rec.waited = d
			return
		}
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return
		}
		w = inner.Unwrap()
	}
}

func newMetrics(r *prometheus.Registry, gates feature.Gates, limits *cardinality.Limits) (*metrics, error) {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	what := []string{"verb", "group", "version", "resource", "subresource", "scope"}
	m := &metrics{
		register: r.Register, series: map[subject]*series{}, counters: map[subject]prometheus.Counter{},
		// upstream's libraries, the process and the Go runtime are in the registry that all servers of a process share
		Handler: promhttp.HandlerFor(limits.Limit(prometheus.Gatherers{r, legacyregistry.DefaultGatherer}), promhttp.HandlerOpts{}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Requests by verb, group, version, resource, scope and response code.",
		}, append(what[:len(what):len(what)], "component", "dry_run", "code")),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_request_duration_seconds",
			Help:    "Time to answer a request, in seconds, long-running ones left out.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, append(what[:len(what):len(what)], "component", "dry_run")),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests", Help: "Requests being answered now, by kind.",
		}, []string{"request_kind"}),
		longRunning: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests", Help: "Watches and streams that are open now.",
		}, append(what[:len(what):len(what)], "component")),
	}
	m.dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_dropped_requests_total", Help: "Requests refused with 429 because too much was asked at a time.",
	}, []string{"request_kind"})
	m.sli = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "apiserver_request_sli_duration_seconds",
		Help:    "Time to answer a request, in seconds, without the time it waited for its turn.",
		Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
	}, append(what[:len(what):len(what)], "component"))
	m.sizes = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "apiserver_response_sizes", Help: "Bytes of answers.", Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
	}, append(what[:len(what):len(what)], "component"))
	m.consistent = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_watch_cache_consistent_read_total", Help: "Lists of the newest state, by whether memory was too far behind and the store's server was read.",
	}, []string{"group", "resource", "success", "fallback"})
	for _, c := range []prometheus.Collector{m.sli, m.sizes, m.consistent, m.dropped, m.requests, m.duration, m.inFlight, m.longRunning, features(gates)} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// features shows every feature gate: 1 when it is on.
func features(gates feature.Gates) prometheus.Collector {
	enabled := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_feature_enabled", Help: "Feature gates by name and stage, 1 when on.",
	}, []string{"name", "stage"})
	for _, g := range gates.All() {
		on := 0.0
		if g.Enabled {
			on = 1
		}
		enabled.WithLabelValues(g.Name, g.Stage).Set(on)
	}
	return enabled
}

// recorder remembers the response code on its way out.
type recorder struct {
	http.ResponseWriter
	code   int
	size   int           // bytes of the body
	waited time.Duration // for its turn
}

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	r.size += len(p)
	return r.ResponseWriter.Write(p)
}

// Flush and Hijack are for the libraries that ask for them by type.
func (r *recorder) Flush() { http.NewResponseController(r.ResponseWriter).Flush() }

func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (s *Server) withMetrics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := request.From(r.Context())
		what := s.subjectOf(r, info)
		series := s.metrics.of(what)
		long := info.LongRunning()
		running := series.longRunning
		if !long {
			running = s.metrics.inFlight.WithLabelValues(requestKind(r.Method))
		}
		running.Inc()
		defer running.Dec()
		start := s.config.Clock.Now()
		rec := &recorder{ResponseWriter: w}
		defer func() {
			if !long {
				took := s.config.Clock.Since(start)
				series.duration.Observe(took.Seconds())
				series.sli.Observe((took - rec.waited).Seconds())
				series.sizes.Observe(float64(rec.size))
			}
			what.code = rec.code
			s.metrics.answers(what).Inc()
		}()
		next.ServeHTTP(rec, r)
	})
}

// subject is what a request is about, as the labels of metrics say it.
type subject struct {
	verb, group, version, resource, subresource, scope, dryRun string
	code                                                       int
}

func (s subject) labels(more ...string) []string {
	return append([]string{s.verb, s.group, s.version, s.resource, s.subresource, s.scope, "apiserver"}, more...)
}

// series are the metrics of one subject, found once.
type series struct {
	duration, sli, sizes prometheus.Observer
	longRunning          prometheus.Gauge
}

func (m *metrics) of(s subject) *series {
	m.mu.RLock()
	known := m.series[s]
	m.mu.RUnlock()
	if known != nil {
		return known
	}
	known = &series{
		duration: m.duration.WithLabelValues(s.labels(s.dryRun)...), sli: m.sli.WithLabelValues(s.labels()...),
		sizes: m.sizes.WithLabelValues(s.labels()...), longRunning: m.longRunning.WithLabelValues(s.labels()...),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.series[s] = known
	return known
}

// answers counts the answers of a code.
func (m *metrics) answers(s subject) prometheus.Counter {
	m.mu.RLock()
	known := m.counters[s]
	m.mu.RUnlock()
	if known != nil {
		return known
	}
	known = m.requests.WithLabelValues(s.labels(s.dryRun, strconv.Itoa(s.code))...)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counters[s] = known
	return known
}

func (m *metrics) drop(method string) { m.dropped.WithLabelValues(requestKind(method)).Inc() }

func requestKind(method string) string {
	if method == http.MethodGet || method == http.MethodHead {
		return "readOnly"
	}
	return "mutating"
}

var metricVerbs = map[string]string{
	"get": "GET", "list": "LIST", "watch": "WATCH", "create": "POST", "update": "PUT", "patch": "PATCH",
	"delete": "DELETE", "deletecollection": "DELETECOLLECTION", "proxy": "CONNECT",
}

// subjectOf names what a request is about. Only resources that exist make labels,
// so that clients cannot make up series.
func (s *Server) subjectOf(r *http.Request, info *request.Info) subject {
	what := subject{verb: metricVerbs[info.Verb]}
	switch {
	case what.verb == "":
		what.verb = "other"
	case info.Verb == "patch" && r.Header.Get("Content-Type") == string(types.ApplyPatchType):
		what.verb = "APPLY"
	}
	if !info.IsResource {
		return what
	}
	view, ok := s.catalogue.Lookup(info.GVR())
	if !ok || info.Subresource != "" && view.Subresource(info.Subresource) == nil {
		return what
	}
	if strings.Contains(r.URL.RawQuery, "dryRun") {
		if what.dryRun = r.URL.Query().Get("dryRun"); what.dryRun != "" && what.dryRun != "All" {
			what.dryRun = "invalid"
		}
	}
	what.group, what.version, what.resource, what.subresource = info.Group, info.Version, info.Resource, info.Subresource
	switch {
	case info.Name != "" || info.Verb == "create":
		what.scope = "resource"
	case info.Namespace != "":
		what.scope = "namespace"
	default:
		what.scope = "cluster"
	}
	return what
}

// objectCounts tells how many objects of each kind are stored.
type objectCounts struct {
	store     *store.Store
	catalogue *apis.Catalogue
}

var (
	storageObjects  = prometheus.NewDesc("apiserver_storage_objects", "[STABLE] Stored objects by kind; apiserver_resource_objects is the newer name.", []string{"resource"}, nil)
	resourceObjects = prometheus.NewDesc("apiserver_resource_objects", "[ALPHA] Stored objects by kind.", []string{"group", "resource"}, nil)
)

// Describe is prometheus.Collector's.
func (objectCounts) Describe(ch chan<- *prometheus.Desc) { ch <- storageObjects; ch <- resourceObjects }

// Collect is prometheus.Collector's.
func (c objectCounts) Collect(ch chan<- prometheus.Metric) {
	sn := c.store.Snapshot()
	seen := map[schema.GroupResource]bool{}
	for _, r := range c.catalogue.All() {
		gr := r.GroupResource()
		if seen[gr] || r.Verbs != nil && !slices.Contains(r.Verbs, "list") {
			continue
		}
		seen[gr] = true
		n := float64(sn.Len(gr, ""))
		ch <- prometheus.MustNewConstMetric(storageObjects, prometheus.GaugeValue, n, gr.String())
		ch <- prometheus.MustNewConstMetric(resourceObjects, prometheus.GaugeValue, n, gr.Group, gr.Resource)
	}
}
