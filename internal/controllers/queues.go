package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Queues measures the queues of loops, under upstream's names (workqueue_*).
type Queues struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	waited, worked             *prometheus.HistogramVec
	pulse                      *pulse // of unfinished and longest
}

// NewQueues returns measures that r gathers.
func NewQueues(r prometheus.Registerer) *Queues {
	labels := []string{"name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "workqueue", Name: name, Help: "[BETA] " + help}, labels)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "workqueue", Name: name, Help: "[BETA] " + help}, labels)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "workqueue", Name: name, Help: "[BETA] " + help, Buckets: prometheus.ExponentialBuckets(10e-9, 10, 10),
		}, labels)
	}
	q := &Queues{
		depth:      gauge("depth", "Keys that wait"),
		adds:       counter("adds_total", "Keys that were added"),
		waited:     seconds("queue_duration_seconds", "How long keys wait"),
		worked:     seconds("work_duration_seconds", "How long keys are worked on"),
		unfinished: gauge("unfinished_work_seconds", "Age of all the work in progress together"),
		longest:    gauge("longest_running_processor_seconds", "Age of the oldest work in progress"),
		retries:    counter("retries_total", "Keys that were added again because they failed"),
	}
	q.pulse = &pulse{gauges: []prometheus.Collector{q.unfinished, q.longest}}
	r.MustRegister(q.depth, q.adds, q.waited, q.worked, q.pulse, q.retries)
	return q
}

// queue returns a queue that is measured.
func (q *Queues) queue(name string, c clock.WithTicker) workqueue.TypedDelayingInterface[Key] {
	if c == nil {
		c = clock.RealClock{}
	}
	inner := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[Key]{Name: name, MetricsProvider: q, Clock: q.pulse.clock(c)})
	return workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[Key]{Name: name, MetricsProvider: q, Clock: c, Queue: inner})
}

var _ workqueue.MetricsProvider = (*Queues)(nil)

func (q *Queues) NewDepthMetric(name string) workqueue.GaugeMetric {
	return q.depth.WithLabelValues(name)
}

func (q *Queues) NewAddsMetric(name string) workqueue.CounterMetric {
	return q.adds.WithLabelValues(name)
}

func (q *Queues) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return q.waited.WithLabelValues(name)
}

func (q *Queues) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return q.worked.WithLabelValues(name)
}

func (q *Queues) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.unfinished.WithLabelValues(name)
}

func (q *Queues) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.longest.WithLabelValues(name)
}

func (q *Queues) NewRetriesMetric(name string) workqueue.CounterMetric {
	return q.retries.WithLabelValues(name)
}
