package job

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
)

// measures are what is measured of Jobs, under upstream's names.
type measures struct {
	foreign   *prometheus.CounterVec   // Jobs of other managers that have come
	syncs     *prometheus.CounterVec   // by completion mode, result and action
	durations *prometheus.HistogramVec // of those
	finished  *prometheus.CounterVec   // by completion mode, result and reason
}

func newMeasures() *measures {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "job_controller", Name: name, Help: help}, labels)
	}
	return &measures{
		foreign:  counter("jobs_by_external_controller_total", "[ALPHA] The number of Jobs managed by an external controller", "controller_name"),
		syncs:    counter("job_syncs_total", "[STABLE] The number of job syncs", "completion_mode", "result", "action"),
		finished: counter("jobs_finished_total", "[STABLE] The number of finished jobs", "completion_mode", "result", "reason"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "job_controller", Name: "job_sync_duration_seconds", Help: "[STABLE] The time it took to sync a job",
			Buckets: prometheus.ExponentialBuckets(0.004, 2, 15),
		}, []string{"completion_mode", "result", "action"}),
	}
}

func (m *measures) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.foreign, m.syncs, m.durations, m.finished}
}

// synced counts one sync, which took some time.
func (m *measures) synced(job *batchv1.Job, p plan, err error, took time.Duration) {
	result, action := "success", "tracking"
	if err != nil {
		result = "error"
	}
	switch {
	case len(p.delete) > 0:
		action = "pods_deleted"
	case len(p.create) > 0:
		action = "pods_created"
	}
	m.syncs.WithLabelValues(mode(job), result, action).Inc()
	m.durations.WithLabelValues(mode(job), result, action).Observe(took.Seconds())
}

// ended counts a Job that got its last condition.
func (m *measures) ended(job *batchv1.Job, final *batchv1.JobCondition) {
	result := "failed"
	if final.Type == batchv1.JobComplete {
		result = "succeeded"
	}
	m.finished.WithLabelValues(mode(job), result, final.Reason).Inc()
}

func mode(job *batchv1.Job) string {
	if job.Spec.CompletionMode != nil {
		return string(*job.Spec.CompletionMode)
	}
	return string(batchv1.NonIndexedCompletion)
}
