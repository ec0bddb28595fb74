package probe

import "github.com/prometheus/client_golang/prometheus"

func newCounts() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "prober_probe_total",
		Help: "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
	}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"})
}

// Metrics counts the probes of containers that run, by result.
func (m *Manager) Metrics() prometheus.Collector { return m.counts }

func (w *worker) labels(result string) prometheus.Labels {
	pod := w.target.pod
	return prometheus.Labels{"probe_type": string(w.kind), "result": result, "container": w.target.spec.Name,
		"pod": pod.Name, "namespace": pod.Namespace, "pod_uid": string(pod.UID)}
}

func (w *worker) count(r Result) {
	result := "failed"
	if r == Success {
		result = "successful"
	}
	w.m.counts.With(w.labels(result)).Inc()
}

// forget drops the counts of a probe that has ended.
func (w *worker) forget() {
	for _, result := range []string{"failed", "successful"} {
		w.m.counts.Delete(w.labels(result))
	}
}
