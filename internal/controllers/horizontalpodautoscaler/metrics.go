package horizontalpodautoscaler

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// measures are what is measured of autoscalers, under upstream's names.
type measures struct {
	looks, computations         *prometheus.CounterVec
	lookTimes, computationTimes *prometheus.HistogramVec
	scalers                     prometheus.Gauge
	desired                     *prometheus.GaugeVec
}

func newMeasures() *measures {
	const prefix = "horizontal_pod_autoscaler_controller_"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: "[ALPHA] " + help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + name, Help: "[ALPHA] " + help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, labels)
	}
	return &measures{
		looks:            counter("reconciliations_total", "Looks at autoscalers, by what came of them.", "action", "error"),
		lookTimes:        histogram("reconciliation_duration_seconds", "Time of a look at an autoscaler, in seconds.", "action", "error"),
		computations:     counter("metric_computation_total", "Computations of metrics, by what came of them.", "action", "error", "metric_type"),
		computationTimes: histogram("metric_computation_duration_seconds", "Time to compute a metric, in seconds.", "action", "error", "metric_type"),
		scalers:          prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "num_horizontal_pod_autoscalers", Help: "[ALPHA] Autoscalers that are looked after."}),
		desired: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "desired_replicas", Help: "[ALPHA] Replicas that an autoscaler wants.",
		}, []string{"namespace", "hpa_name"}),
	}
}

func (m *measures) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.looks, m.lookTimes, m.computations, m.computationTimes, m.scalers, m.desired}
}

func (m *measures) looked(action string, err error, took time.Duration) {
	m.looks.WithLabelValues(action, fault(err)).Inc()
	m.lookTimes.WithLabelValues(action, fault(err)).Observe(took.Seconds())
}

func (m *measures) computed(action string, err error, metric string, took time.Duration) {
	m.computations.WithLabelValues(action, fault(err), metric).Inc()
	m.computationTimes.WithLabelValues(action, fault(err), metric).Observe(took.Seconds())
}

// action is what a change of replicas is called.
func action(from, to int32) string {
	switch {
	case to > from:
		return "scale_up"
	case to < from:
		return "scale_down"
	}
	return noAction
}

const noAction = "none"

// specFault is an error that only a change of the autoscaler, or of its target's
// selector, can mend.
type specFault struct {
	text  string
	cause error // nil: text says it all
}

func (f *specFault) Error() string {
	if f.cause == nil {
		return f.text
	}
	return f.text + ": " + f.cause.Error()
}

func (f *specFault) Unwrap() error { return f.cause }

// fault is whose fault an error is.
func fault(err error) string {
	var spec *specFault
	switch {
	case err == nil:
		return "none"
	case errors.As(err, &spec):
		return "spec"
	}
	return "internal"
}
