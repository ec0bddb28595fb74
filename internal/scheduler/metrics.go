package scheduler

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/queue"
)

// Results of an attempt, as in upstream's metrics.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// metrics are the scheduler's, under upstream's names.
type metrics struct {
	attempts, algorithm, sli, tries         *prometheus.HistogramVec
	points, plugins, hints, events, permits *prometheus.HistogramVec
	evictions, batchTook                    *prometheus.HistogramVec
	total, evaluations, incoming            *prometheus.CounterVec
	evictionRounds, batches                 *prometheus.CounterVec
	flushes, rescores                       *prometheus.CounterVec
	preemptions, afterFlush                 prometheus.Counter
	victims                                 prometheus.Histogram
	goroutines                              *prometheus.GaugeVec

	// As of the last cycle, which alone may count them.
	nodes, pods, assumed atomic.Int64
}

// Work that goroutines are counted by.
const (
	binding   = "binding"
	filtering = "Filter"
	scoring   = "Score"
)

// sampledPercent of the pods have the calls of their plugins timed one by one.
const sampledPercent = 10

func histogram(name, help string, start float64, buckets int, labels ...string) *prometheus.HistogramVec {
	return histogramBy(2, name, help, start, buckets, labels...)
}

// histogramBy has buckets of which each is larger than the one before by a factor.
func histogramBy(factor float64, name, help string, start float64, buckets int, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "scheduler_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(start, factor, buckets),
	}, labels)
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scheduler_" + name, Help: help}, labels)
}

func newMetrics() *metrics {
	return &metrics{
		attempts:  histogram("scheduling_attempt_duration_seconds", "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)", 0.001, 15, "result", "profile"),
		algorithm: histogram("scheduling_algorithm_duration_seconds", "[ALPHA] Scheduling algorithm latency in seconds", 0.001, 15),
		sli:       histogram("pod_scheduling_sli_duration_seconds", "[BETA] E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.", 0.01, 20, "attempts"),
		tries:     histogram("pod_scheduling_attempts", "[STABLE] Number of attempts to successfully schedule a pod.", 1, 5),
		points:    histogram("framework_extension_point_duration_seconds", "[STABLE] Latency for running all plugins of a specific extension point.", 0.0001, 12, "extension_point", "status", "profile"),
		plugins:   histogramBy(1.5, "plugin_execution_duration_seconds", "[ALPHA] Duration for running a plugin at a specific extension point.", 0.00001, 20, "plugin", "extension_point", "status"),
		hints:     histogramBy(1.5, "queueing_hint_execution_duration_seconds", "[ALPHA] Latency for running a queueing hint function of a plugin.", 0.00001, 20, "plugin", "event", "hint"),
		events:    histogram("event_handling_duration_seconds", "[ALPHA] Event handling latency in seconds.", 0.0001, 12, "event"),
		permits:   histogram("permit_wait_duration_seconds", "[ALPHA] Duration of waiting on permit.", 0.001, 15, "result"),
		evictions: histogram("preemption_goroutines_duration_seconds", "[ALPHA] Duration in seconds for running goroutines for the preemption.", 0.01, 20, "result"),
		batchTook: histogram("get_node_hint_duration_seconds", "[ALPHA] Latency for getting a node hint.", 0.00001, 12, "hinted", "profile"),
		batches:   counters("batch_attempts_total", "[ALPHA] Counts of results when we attempt to use batching.", "profile", "result"),
		flushes:   counters("batch_cache_flushed_total", "[ALPHA] Counts of cache flushes by reason.", "profile", "reason"),
		rescores:  counters("batch_rescore_attempts_total", "[ALPHA] Counts of rescore attempts during opportunistic batching.", "profile"),
		total: counters("schedule_attempts_total",
			"[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.", "result", "profile"),
		evaluations: counters("plugin_evaluation_total",
			"[BETA] Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, Filter, PreScore, and Score).", "plugin", "extension_point", "profile"),
		incoming:       counters("queue_incoming_pods_total", "[STABLE] Number of pods added to scheduling queues by event and queue type.", "queue", "event"),
		evictionRounds: counters("preemption_goroutines_execution_total", "[ALPHA] Number of preemption goroutines executed.", "result"),
		afterFlush: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scheduler_pod_scheduled_after_flush_total",
			Help: "[ALPHA] Number of pods that were successfully scheduled after being flushed from unschedulablePods due to timeout.",
		}),
		goroutines: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "scheduler_goroutines", Help: "[BETA] Number of running goroutines split by the work they do such as binding.",
		}, []string{"operation"}),
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
	for _, work := range []string{binding, filtering, scoring} {
		m.goroutines.WithLabelValues(work)
	}
	for _, c := range []prometheus.Collector{m.attempts, m.algorithm, m.sli, m.tries, m.total, m.evaluations, m.preemptions, m.victims,
		m.points, m.plugins, m.hints, m.events, m.permits, m.evictions, m.incoming, m.evictionRounds, m.afterFlush, m.goroutines, m.batches, m.batchTook,
		m.flushes, m.rescores, gauges{s}} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return s.devices.Register(r)
}

// attempted notes how an attempt ended that began at a time.
func (s *Scheduler) attempted(profile, result string, began time.Time) {
	s.metrics.total.WithLabelValues(result, profile).Inc()
	s.metrics.attempts.WithLabelValues(result, profile).Observe(s.clock.Since(began).Seconds())
}

// batched notes whether an earlier pod's order of nodes answered for a pod, and how
// long that took.
func (s *Scheduler) batched(profile string, known bool, began time.Time) {
	result := "no_hint"
	if known {
		result = "hint_used"
	}
	s.metrics.batches.WithLabelValues(profile, result).Inc()
	s.metrics.batchTook.WithLabelValues(strconv.FormatBool(known), profile).Observe(s.clock.Since(began).Seconds())
}

// Why an order of nodes is of no use any more, in upstream's words.
const (
	flushNodeMissing  = "node_missing"     // the set of nodes has changed
	flushExpired      = "expired"          // nodes compare differently now, or more has changed than is remembered
	flushIncompatible = "pod_incompatible" // pods of other signatures needed its place
)

// flushed notes that a batch lost its order of nodes.
func (s *Scheduler) flushed(profile, reason string) {
	s.metrics.flushes.WithLabelValues(profile, reason).Inc()
}

// placed notes that a pod has been bound.
func (s *Scheduler) placed(pod *framework.QueuedPodInfo, profile string, began time.Time) {
	s.attempted(profile, resultScheduled, began)
	if pod.Flushed {
		s.metrics.afterFlush.Inc()
	}
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

// evicted notes how the victims of a preemption were deleted.
func (s *Scheduler) evicted(took time.Duration, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	s.metrics.evictions.WithLabelValues(result).Observe(took.Seconds())
	s.metrics.evictionRounds.WithLabelValues(result).Inc()
}

// pluginTook notes the time of an extension point of a profile, or of a plugin there.
func (s *Scheduler) pluginTook(profile, plugin, point string, code framework.Code, took time.Duration) {
	if plugin == "" {
		s.metrics.points.WithLabelValues(point, code.String(), profile).Observe(took.Seconds())
	} else {
		s.metrics.plugins.WithLabelValues(plugin, point, code.String()).Observe(took.Seconds())
	}
}

// entered counts a pod that came into a part of the queue.
func (s *Scheduler) entered(part queue.State, cause string) {
	s.metrics.incoming.WithLabelValues(string(part), cause).Inc()
}

func (s *Scheduler) hinted(plugin, event string, hint framework.Hint, took time.Duration) {
	s.metrics.hints.WithLabelValues(plugin, event, hint.String()).Observe(took.Seconds())
}

// handled notes how long a change of the cluster took the scheduler to take in.
func (s *Scheduler) handled(event framework.Event, began time.Time) {
	s.metrics.events.WithLabelValues(event.Label()).Observe(s.clock.Since(began).Seconds())
}

// gauges are computed when they are asked for.
type gauges struct{ s *Scheduler }

var (
	pendingPods = prometheus.NewDesc("scheduler_pending_pods", "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to schedule because they are gated.", []string{"queue"}, nil)
	cacheSize   = prometheus.NewDesc("scheduler_cache_size", "[ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.", []string{"type"}, nil)
	inFlight    = prometheus.NewDesc("scheduler_inflight_events", "[ALPHA] Number of events currently tracked in the scheduling queue.", []string{"event"}, nil)
	rejectedBy  = prometheus.NewDesc("scheduler_unschedulable_pods", "[ALPHA] The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins that caused it to not schedule and so this metric have meaning only when broken down by plugin.", []string{"plugin", "profile"}, nil)
)

func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- pendingPods
	ch <- cacheSize
	ch <- rejectedBy
	ch <- inFlight
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
	for event, n := range g.s.queue.InFlight() {
		gauge(inFlight, float64(n), event)
	}
	for by, n := range g.s.queue.Rejections() {
		gauge(rejectedBy, float64(n), by.Plugin, by.Scheduler)
	}
}
