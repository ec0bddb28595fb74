package admission

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/prometheus/client_golang/prometheus"
)

// The phases, as metrics name them.
const (
	phaseAdmit    = "admit"
	phaseValidate = "validate"
)

// durations are the times that plugins took, under upstream's names.
type durations struct {
	plugins *prometheus.HistogramVec
	steps   *prometheus.HistogramVec

	mutators, validators []*series // by their place in the chain
	admit, validate      series
}

// series are those of one plugin, or of a phase where the plugin is empty. Every write
// is timed some fifty times, so they are found by position; one comes to be with its
// first value.
type series struct {
	plugin, phase string
	known         [len(operations)][2]atomic.Pointer[prometheus.Observer] // by operation and whether it was rejected
}

var operations = [...]admissionv1.Operation{admissionv1.Create, admissionv1.Update, admissionv1.Delete, admissionv1.Connect}

func newDurations() *durations {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_admission_" + name + "_admission_duration_seconds", Help: help, Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5},
		}, labels)
	}
	return &durations{
		plugins:  histogram("controller", "[STABLE] Time of one admission plugin, in seconds.", "name", "type", "operation", "rejected"),
		steps:    histogram("step", "[STABLE] Time of all plugins of a phase, in seconds.", "type", "operation", "rejected"),
		admit:    series{phase: phaseAdmit},
		validate: series{phase: phaseValidate},
	}
}

// observe adds a value to one of the series.
func (d *durations) observe(s *series, operation int, rejected bool, took time.Duration) {
	outcome := 0
	if rejected {
		outcome = 1
	}
	at := &s.known[operation][outcome]
	o := at.Load()
	if o == nil {
		made := d.make(s, operations[operation], rejected)
		o = &made
		at.Store(o)
	}
	(*o).Observe(took.Seconds())
}

func (d *durations) make(s *series, operation admissionv1.Operation, rejected bool) prometheus.Observer {
	if s.plugin == "" {
		return d.steps.WithLabelValues(s.phase, string(operation), strconv.FormatBool(rejected))
	}
	return d.plugins.WithLabelValues(s.plugin, s.phase, string(operation), strconv.FormatBool(rejected))
}

// stopwatch times the plugins of one phase, one after the other.
type stopwatch struct {
	d           *durations
	operation   int // of operations
	rejected    bool
	began, last time.Time
}

func (d *durations) start(a *Attributes) stopwatch {
	now := time.Now()
	return stopwatch{d: d, operation: max(slices.Index(operations[:], a.Operation), 0), began: now, last: now}
}

// lap ends the time of one plugin.
func (w *stopwatch) lap(of *series, err error) {
	now := time.Now()
	w.rejected = err != nil
	w.d.observe(of, w.operation, w.rejected, now.Sub(w.last))
	w.last = now
}

// stop ends the time of the phase.
func (w *stopwatch) stop(of *series) {
	w.d.observe(of, w.operation, w.rejected, w.last.Sub(w.began))
}

// Metrics are what the chain's plugins took.
func (c *Chain) Metrics() []prometheus.Collector {
	return []prometheus.Collector{c.durations.plugins, c.durations.steps}
}
