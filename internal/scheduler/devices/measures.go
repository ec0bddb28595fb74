package devices

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Measures are what is measured of claims, under upstream's names.
type Measures struct {
	made   *prometheus.CounterVec   // claims for extended resources
	bound  *prometheus.CounterVec   // attempts to bind pods whose devices had to get ready
	waited *prometheus.HistogramVec // what those took, in seconds
}

// How the wait for devices to get ready has ended.
const (
	Success = "success"
	Failure = "failure"
	Timeout = "timeout"
)

func newMeasures() Measures {
	by := []string{"profile", "driver", "status"}
	return Measures{
		made: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dynamic_resource_allocation_resourceclaim_creates_total",
			Help: "[ALPHA] Number of ResourceClaims creation requests, categorized by creation status, admin access, and owning API group and kind",
		}, []string{"status", "admin_access", "owner_api_group", "owner_api_kind"}),
		bound: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_dra_bindingconditions_allocations_total",
			Help: "[ALPHA] How many attempts to bind a pod had to wait for devices with BindingConditions, by driver",
		}, by),
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_dra_bindingconditions_wait_duration_seconds",
			Help:    "[ALPHA] How long attempts to bind a pod waited for devices with BindingConditions, by driver",
			Buckets: prometheus.ExponentialBuckets(0.1, 2, 14),
		}, by),
	}
}

// Register makes r gather what is measured. The controller of the same process may
// count the claims that it makes with the same counter.
func (m *Measures) Register(r prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.bound, m.waited} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	err := r.Register(m.made)
	var registered prometheus.AlreadyRegisteredError
	if errors.As(err, &registered) {
		m.made = registered.ExistingCollector.(*prometheus.CounterVec)
		return nil
	}
	return err
}

// Made counts the attempt to make a pod's claim for extended resources.
func (m *Measures) Made(err error) {
	status := Success
	if err != nil {
		status = Failure
	}
	m.made.WithLabelValues(status, "false", "", "Pod").Inc()
}

// Waited counts a wait for the devices of some drivers to get ready.
func (m *Measures) Waited(profile string, drivers []string, status string, took time.Duration) {
	for _, driver := range drivers {
		m.bound.WithLabelValues(profile, driver, status).Inc()
		m.waited.WithLabelValues(profile, driver, status).Observe(took.Seconds())
	}
}
