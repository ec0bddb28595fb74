package podcert

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	corev1 "k8s.io/api/core/v1"
)

var states = prometheus.NewDesc("kubelet_podcertificate_states",
	"[ALPHA] Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.",
	[]string{"signer_name", "state"}, nil)

// Metrics counts the sources by signer and state.
func (m *Manager) Metrics() prometheus.Collector { return collector{m} }

type collector struct{ m *Manager }

func (c collector) Describe(ch chan<- *prometheus.Desc) { ch <- states }

func (c collector) Collect(ch chan<- prometheus.Metric) {
	for of, n := range c.m.count() {
		ch <- prometheus.MustNewConstMetric(states, prometheus.GaugeValue, n, of[0], of[1])
	}
}

// count returns the number of sources by signer and state.
func (m *Manager) count() map[[2]string]float64 {
	now := m.c.Clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[[2]string]float64{}
	for uid, pod := range m.pods {
		visit(pod, func(volume string, index int, p *corev1.PodCertificateProjection) {
			if s := m.state[source{uid, volume, index}]; s != nil {
				out[[2]string{p.SignerName, s.word(now)}]++
			}
		})
	}
	return out
}

func (p *projection) word(now time.Time) string {
	switch {
	case p.denied:
		return "denied"
	case p.end != nil:
		return "failed"
	case p.credential == nil:
		return "not_yet_issued"
	case now.After(p.credential.notAfter):
		return "expired"
	case now.After(p.credential.renewAt.Add(overdue)):
		return "overdue_for_refresh"
	}
	return "fresh"
}
