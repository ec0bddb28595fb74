package admission

import (
	"sync"
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

	mu    sync.RWMutex // guards known
	known map[measured]prometheus.Observer
}

// measured is one series: of a plugin, or of a phase where the plugin is empty.
type measured struct {
	plugin, phase string
	operation     admissionv1.Operation
	rejected      bool
}

func newDurations() *durations {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_admission_" + name + "_admission_duration_seconds", Help: help, Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5},
		}, labels)
	}
	return &durations{
		plugins: histogram("controller", "[STABLE] Time of one admission plugin, in seconds.", "name", "type", "operation", "rejected"),
		steps:   histogram("step", "[STABLE] Time of all plugins of a phase, in seconds.", "type", "operation", "rejected"),
		known:   map[measured]prometheus.Observer{},
	}
}

func (d *durations) of(m measured) prometheus.Observer {
	d.mu.RLock()
	o := d.known[m]
	d.mu.RUnlock()
	if o != nil {
		return o
	}
	rejected := "false"
	if m.rejected {
		rejected = "true"
	}
	if m.plugin == "" {
		o = d.steps.WithLabelValues(m.phase, string(m.operation), rejected)
	} else {
		o = d.plugins.WithLabelValues(m.plugin, m.phase, string(m.operation), rejected)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[m] = o
	return o
}

// stopwatch times the plugins of one phase, one after the other.
type stopwatch struct {
	d           *durations
	m           measured
	began, last time.Time
}

func (d *durations) start(phase string, a *Attributes) stopwatch {
	now := time.Now()
	return stopwatch{d: d, m: measured{phase: phase, operation: a.Operation}, began: now, last: now}
}

// lap ends the time of one plugin.
func (s *stopwatch) lap(plugin string, err error) {
	now := time.Now()
	s.m.plugin, s.m.rejected = plugin, err != nil
	s.d.of(s.m).Observe(now.Sub(s.last).Seconds())
	s.last = now
}

// stop ends the time of the phase.
func (s *stopwatch) stop() {
	s.m.plugin = ""
	s.d.of(s.m).Observe(s.last.Sub(s.began).Seconds())
}

// Metrics are what the chain's plugins took.
func (c *Chain) Metrics() []prometheus.Collector {
	return []prometheus.Collector{c.durations.plugins, c.durations.steps}
}
