package scheduler

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"proa/internal/scheduler/framework"
)

// Results of an attempt, as in upstream's metrics.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// metrics are the scheduler's, under upstream's names.
type metrics struct {
	attempts, algorithm, sli, tries *prometheus.HistogramVec
	total, evaluations              *prometheus.CounterVec
	preemptions                     prometheus.Counter
	victims                         prometheus.Histogram

	// As of the last cycle, which alone may count them.
	nodes, pods, assumed atomic.Int64
}

func histogram(name, help string, start float64, buckets int, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scheduler_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(start, 2, buckets),
	}, labels)
}

func newMetrics() *metrics {
	return &metrics{
		attempts:  histogram("scheduling_attempt_duration_seconds", "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)", 0.001, 15, "result", "profile"),
		algorithm: histogram("scheduling_algorithm_duration_seconds", "[ALPHA] Scheduling algorithm latency in seconds", 0.001, 15),
		sli:       histogram("pod_scheduling_sli_duration_seconds", "[BETA] E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.", 0.01, 20, "attempts"),
		tries:     histogram("pod_scheduling_attempts", "[STABLE] Number of attempts to successfully schedule a pod.", 1, 5),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_schedule_attempts_total",
			Help: "[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.",
		}, []string{"result", "profile"}),
		evaluations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_plugin_evaluation_total",
			Help: "[BETA] Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, Filter, PreScore, and Score).",
		}, []string{"plugin", "extension_point", "profile"}),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_preemption_attempts_total", Help: "[STABLE] Total preemption attempts in the cluster till now",
		}),
		victims: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "scheduler_preemption_victims", Help: "[STABLE] Number of selected preemption victims", Buckets: prometheus.ExponentialBuckets(1, 2, 7),
		}),
	}
}

// register adds the metrics to what is gathered, the queue's lengths with them.
func (s *Scheduler) register(r prometheus.Registerer) error {
	m := s.metrics
	for _, c := range []prometheus.Collector{m.attempts, m.algorithm, m.sli, m.tries, m.total, m.evaluations, m.preemptions, m.victims, gauges{s}} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// attempted notes how an attempt ended that began at a time.
func (s *Scheduler) attempted(profile, result string, began time.Time) {
	s.metrics.total.WithLabelValues(result, profile).Inc()
	s.metrics.attempts.WithLabelValues(result, profile).Observe(s.clock.Since(began).Seconds())
}

// placed notes that a pod has been bound.
func (s *Scheduler) placed(pod *framework.QueuedPodInfo, profile string, began time.Time) {
	s.attempted(profile, resultScheduled, began)
	attempts := strconv.Itoa(pod.Attempts)
	if pod.Attempts >= 16 {
		attempts = "16+"
	}
	s.metrics.sli.WithLabelValues(attempts).Observe(s.clock.Since(pod.FirstAttempt).Seconds())
	s.metrics.tries.WithLabelValues().Observe(float64(pod.Attempts))
}

// preempted notes a preemption.
func (s *Scheduler) preempted(victims int) {
	s.metrics.preemptions.Inc()
	s.metrics.victims.Observe(float64(victims))
}

// gauges are computed when they are asked for.
type gauges struct{ s *Scheduler }

var (
	pendingPods = prometheus.NewDesc("scheduler_pending_pods", "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to schedule because they are gated.", []string{"queue"}, nil)
	cacheSize   = prometheus.NewDesc("scheduler_cache_size", "[ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.", []string{"type"}, nil)
	rejectedBy  = prometheus.NewDesc("scheduler_unschedulable_pods", "[ALPHA] The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins that caused it to not schedule and so this metric have meaning only when broken down by plugin.", []string{"plugin", "profile"}, nil)
)

func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- pendingPods
	ch <- cacheSize
	ch <- rejectedBy
}

func (g gauges) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	active, backoff, unschedulable, gated := g.s.queue.Lengths()
	gauge(pendingPods, float64(active), "active")
	gauge(pendingPods, float64(backoff), "backoff")
	gauge(pendingPods, float64(unschedulable), "unschedulable")
	gauge(pendingPods, float64(gated), "gated")
	m := g.s.metrics
	gauge(cacheSize, float64(m.nodes.Load()), "nodes")
	gauge(cacheSize, float64(m.pods.Load()), "pods")
	gauge(cacheSize, float64(m.assumed.Load()), "assumed_pods")
	for by, n := range g.s.queue.Rejections() {
		gauge(rejectedBy, float64(n), by.Plugin, by.Scheduler)
	}
}
