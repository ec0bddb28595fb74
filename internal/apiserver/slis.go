package apiserver

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// slis are what health checks said when they were asked last, and how often they
// said so (KEP-3466): /metrics/slis.
type slis struct {
	http.Handler
	now   *prometheus.GaugeVec
	total *prometheus.CounterVec
}

func newSLIs() *slis {
	r := prometheus.NewRegistry()
	s := &slis{
		Handler: promhttp.HandlerFor(r, promhttp.HandlerOpts{}),
		now: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubernetes_healthcheck", Help: "[STABLE] Result of a health check when it was last asked for: 1 when well.",
		}, []string{"name", "type"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubernetes_healthchecks_total", Help: "[STABLE] Results of health checks.",
		}, []string{"name", "status", "type"}),
	}
	r.MustRegister(s.now, s.total)
	return s
}

// note keeps the result of a check of one endpoint.
func (s *slis) note(endpoint, name string, err error) {
	status, value := "success", 1.0
	if err != nil {
		status, value = "error", 0
	}
	s.now.WithLabelValues(name, endpoint).Set(value)
	s.total.WithLabelValues(name, status, endpoint).Inc()
}
