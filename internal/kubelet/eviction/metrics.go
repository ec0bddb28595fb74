package eviction

import "github.com/prometheus/client_golang/prometheus"

type metrics struct{ evictions *prometheus.CounterVec }

func newMetrics() *metrics {
	return &metrics{evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_evictions", Help: "[ALPHA] Cumulative number of pod evictions by eviction signal",
	}, []string{"eviction_signal"})}
}

// Metrics counts evictions.
func (m *Manager) Metrics() prometheus.Collector { return m.metrics.evictions }
