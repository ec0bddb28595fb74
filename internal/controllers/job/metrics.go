package job

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"proa/internal/controllers/podcontrol"
)

// measures are what is measured of Jobs, under upstream's names.
type measures struct {
	foreign   *prometheus.CounterVec   // Jobs of other managers that have come
	syncs     *prometheus.CounterVec   // by completion mode, result and action
	durations *prometheus.HistogramVec // of those
	finished  *prometheus.CounterVec   // by completion mode, result and reason
	pods      *prometheus.CounterVec   // that have ended and are counted, by completion mode and result
	indexes   *prometheus.CounterVec   // that have ended, by status and kind of limit
	created   *prometheus.CounterVec   // pods, by reason and status
	judged    *prometheus.CounterVec   // failures that a rule applies to, by its action
	held      *prometheus.CounterVec   // ended pods that got or lost the finalizer
}

func newMeasures() *measures {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "job_controller", Name: name, Help: help}, labels)
	}
	return &measures{
		foreign:  counter("jobs_by_external_controller_total", "[ALPHA] The number of Jobs managed by an external controller", "controller_name"),
		syncs:    counter("job_syncs_total", "[STABLE] The number of job syncs", "completion_mode", "result", "action"),
		finished: counter("jobs_finished_total", "[STABLE] The number of finished jobs", "completion_mode", "result", "reason"),
		pods:     counter("job_pods_finished_total", "[STABLE] The number of finished Pods that are fully tracked", "completion_mode", "result"),
		indexes:  counter("job_finished_indexes_total", "[ALPHA] The number of finished indexes", "status", "backoffLimit"),
		created:  counter("job_pods_creation_total", "[ALPHA] The number of Pods created by the Job controller, by the reason for it", "reason", "status"),
		judged:   counter("pod_failures_handled_by_failure_policy_total", "[BETA] The number of failed Pods that a rule of a pod failure policy applied to", "action"),
		held:     counter("terminated_pods_tracking_finalizer_total", "[BETA] The number of ended Pods that have got or lost the finalizer batch.kubernetes.io/job-tracking", "event"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "job_controller", Name: "job_sync_duration_seconds", Help: "[STABLE] The time it took to sync a job",
			Buckets: prometheus.ExponentialBuckets(0.004, 2, 15),
		}, []string{"completion_mode", "result", "action"}),
	}
}

func (m *measures) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.foreign, m.syncs, m.durations, m.finished, m.pods, m.indexes, m.created, m.judged, m.held}
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

// counted adds what a status counts more than the one before.
func (m *measures) counted(job *batchv1.Job, before *batchv1.JobStatus) {
	add := func(c *prometheus.CounterVec, more int, labels ...string) {
		if more > 0 {
			c.WithLabelValues(labels...).Add(float64(more))
		}
	}
	now := &job.Status
	add(m.pods, int(now.Succeeded-before.Succeeded), mode(job), "succeeded")
	add(m.pods, int(now.Failed-before.Failed), mode(job), "failed")
	if mode(job) != string(batchv1.IndexedCompletion) {
		return
	}
	if job.Spec.BackoffLimitPerIndex == nil {
		add(m.indexes, int(now.Succeeded-before.Succeeded), "succeeded", "global")
		return
	}
	add(m.indexes, int(now.Succeeded-before.Succeeded), "succeeded", "perIndex")
	failed := func(s *batchv1.JobStatus) int {
		return parseIndexes(ptr.Deref(s.FailedIndexes, ""), int(*job.Spec.Completions)).total()
	}
	add(m.indexes, failed(now)-failed(before), "failed", "perIndex")
}

// made counts an attempt to create a pod.
func (m *measures) made(s *sync, err error) {
	reason, status := "new", "succeeded"
	switch {
	case s.replacesFailedOnly() && s.failed > 0:
		reason = "recreate_failed"
	case s.failed > 0 || s.terminating() > 0:
		reason = "recreate_terminating_or_failed"
	}
	if err != nil {
		status = "failed"
	}
	m.created.WithLabelValues(reason, status).Inc()
}

// holds counts ended pods that got the finalizer or lost it, whoever gave or took it.
func (m *measures) holds(old, pod *corev1.Pod) {
	held := func(p *corev1.Pod) bool { return p != nil && podcontrol.Ended(p) && tracked(p) }
	switch was, is := held(old), held(pod); {
	case is && !was:
		m.held.WithLabelValues("add").Inc()
	case was && !is:
		m.held.WithLabelValues("delete").Inc()
	}
}

func mode(job *batchv1.Job) string {
	if job.Spec.CompletionMode != nil {
		return string(*job.Spec.CompletionMode)
	}
	return string(batchv1.NonIndexedCompletion)
}
