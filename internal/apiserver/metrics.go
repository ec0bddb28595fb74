package apiserver

import (
	"bufio"
	"net"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"proa/internal/apis/feature"
	"proa/internal/apiserver/request"
)

// metrics counts requests under upstream's names.
type metrics struct {
	http.Handler // /metrics

	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	inFlight    *prometheus.GaugeVec
	longRunning *prometheus.GaugeVec
}

func newMetrics(r *prometheus.Registry, gates feature.Gates) (*metrics, error) {
	if r == nil {
		r = prometheus.NewRegistry()
		r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	what := []string{"verb", "group", "version", "resource", "subresource", "scope"}
	m := &metrics{
		Handler: promhttp.HandlerFor(r, promhttp.HandlerOpts{}),
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
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight, m.longRunning, features(gates)} {
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
	code int
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
		labels := s.metricLabels(info)
		if info.LongRunning() {
			gauge := s.metrics.longRunning.WithLabelValues(append(labels, "apiserver")...)
			gauge.Inc()
			defer gauge.Dec()
		} else {
			gauge := s.metrics.inFlight.WithLabelValues(requestKind(r.Method))
			gauge.Inc()
			defer gauge.Dec()
		}
		start := s.config.Clock.Now()
		rec := &recorder{ResponseWriter: w}
		defer func() {
			dryRun := ""
			if r.URL.RawQuery != "" {
				dryRun = r.URL.Query().Get("dryRun")
			}
			if dryRun != "" && dryRun != "All" {
				dryRun = "invalid"
			}
			labels := append(labels, "apiserver", dryRun)
			if !info.LongRunning() {
				s.metrics.duration.WithLabelValues(labels...).Observe(s.config.Clock.Since(start).Seconds())
			}
			s.metrics.requests.WithLabelValues(append(labels, strconv.Itoa(rec.code))...).Inc()
		}()
		next.ServeHTTP(rec, r)
	})
}

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

// metricLabels names what a request is about. Only resources that exist make
// labels, so that clients cannot make up series.
func (s *Server) metricLabels(info *request.Info) []string {
	verb := metricVerbs[info.Verb]
	if verb == "" {
		verb = "other"
	}
	if !info.IsResource {
		return []string{verb, "", "", "", "", ""}
	}
	view, ok := s.catalogue.Lookup(info.GVR())
	if !ok || info.Subresource != "" && view.Subresource(info.Subresource) == nil {
		return []string{verb, "", "", "", "", ""}
	}
	scope := "cluster"
	switch {
	case info.Name != "":
		scope = "resource"
	case info.Namespace != "":
		scope = "namespace"
	}
	return []string{verb, info.Group, info.Version, info.Resource, info.Subresource, scope}
}
