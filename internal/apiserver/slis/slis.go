// Package slis keeps what the health checks of a component said (KEP-3466).
package slis

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// SLIs are what health checks said when they were asked last, and how often they
// said so (KEP-3466): /metrics/slis.
type SLIs struct {
	http.Handler
	now   *prometheus.GaugeVec
	total *prometheus.CounterVec
}

// New returns SLIs that nothing was noted in.
func New() *SLIs {
	r := prometheus.NewRegistry()
	s := &SLIs{
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

// Note keeps the result of a check of one endpoint.
func (s *SLIs) Note(endpoint, name string, err error) {
	status, value := "success", 1.0
	if err != nil {
		status, value = "error", 0
	}
	s.now.WithLabelValues(name, endpoint).Set(value)
	s.total.WithLabelValues(name, status, endpoint).Inc()
}
