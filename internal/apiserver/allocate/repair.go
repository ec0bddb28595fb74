package allocate

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"proa/internal/store"
)

// leakedAfter is how often a port must be found without a Service before it is free
// again: servers of upstream, on the same store, take it before they write the Service.
const leakedAfter = 3

var services = schema.GroupResource{Resource: "services"}

// PortRepair keeps the set of node ports in use to what Services say. Allocation
// writes both in one transaction, so that they differ only after another server
// wrote, or when the configured range has changed.
type PortRepair struct {
	services *Services
	events   record.EventRecorder
	interval time.Duration
	clock    clock.WithTicker
	found    *prometheus.CounterVec
	failed   prometheus.Counter

	leaks map[int]int // how often each port was found without a Service
}

// PortRepairConfig is what the repair works with.
type PortRepairConfig struct {
	Services *Services
	Events   record.EventRecorder
	Clock    clock.WithTicker
	Interval time.Duration         // 0: three minutes
	Metrics  prometheus.Registerer // nil: nobody asks
}

// NewPortRepair returns the repair of a server's node ports.
func NewPortRepair(c PortRepairConfig) *PortRepair {
	if c.Interval == 0 {
		c.Interval = 3 * time.Minute
	}
	r := &PortRepair{
		services: c.Services, events: c.Events, interval: c.Interval, clock: c.Clock, leaks: map[int]int{},
		found: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_port_errors_total",
			Help: "[ALPHA] Node ports that were found wrong, by kind: leak, repair, full, outOfRange, duplicate, unknown.",
		}, []string{"type"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_reconcile_errors_total", Help: "[ALPHA] Repairs of node ports that failed.",
		}),
	}
	if c.Metrics != nil {
		c.Metrics.MustRegister(r.found, r.failed)
	}
	return r
}

// Run repairs now and in intervals until ctx ends.
func (r *PortRepair) Run(ctx context.Context) error {
	ticker := r.clock.NewTicker(r.interval)
	defer ticker.Stop()
	for {
		if err := r.Repair(ctx); err != nil && ctx.Err() == nil {
			r.failed.Inc()
			slog.WarnContext(ctx, "node ports were not repaired", "err", err)
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return nil
		}
	}
}

// finding is a port that is not as it should be.
type finding struct {
	kind            string // of the metric
	service         *corev1.Service
	reason, message string // of the event; no service: there is none
}

// Repair makes the set once what it should be.
func (r *PortRepair) Repair(ctx context.Context) error {
	var found []finding
	var leaks map[int]int
	_, err := r.services.store.Update(ctx, func(tx *store.Tx) error {
		m, err := r.services.openPorts(tx)
		if err != nil {
			return err
		}
		// Who takes or gives back a port writes the set, so that Services that are
		// read beside the transaction are those of this very set.
		var used map[int]bool
		used, found = m.claimed(tx.Snapshot())
		leaks = m.unclaimed(used, r.leaks)
		for port, times := range leaks {
			found = append(found, finding{kind: "leak"})
			if times >= leakedAfter {
				m.release(port)
				delete(leaks, port)
			}
		}
		return m.save(tx)
	})
	if err != nil {
		return fmt.Errorf("repair node ports: %w", err)
	}
	r.leaks = leaks
	for _, f := range found {
		r.found.WithLabelValues(f.kind).Inc()
		if f.service != nil {
			r.events.Event(f.service, corev1.EventTypeWarning, f.reason, f.message)
		}
	}
	return nil
}

// claimed takes every port that a Service has, and tells what is wrong with it.
func (m *portMap) claimed(snapshot *store.Snapshot) (used map[int]bool, found []finding) {
	used = map[int]bool{}
	snapshot.Range(services, "", store.Key{}, func(item *store.Item) bool {
		svc := item.Object.(*corev1.Service)
		note := func(kind, reason, format string, args ...any) {
			found = append(found, finding{kind, svc, reason, fmt.Sprintf(format, args...)})
		}
		for _, port := range heldPorts(svc) {
			switch {
			case !m.ports.Contains(port):
				note("outOfRange", "PortOutOfRange", "Port %d is not within the port range %s; please recreate service", port, m.ports.String())
			case used[port]:
				note("duplicate", "PortAlreadyAllocated", "Port %d was assigned to multiple services; please recreate service", port)
			case m.take(port) == nil:
				note("repair", "PortNotAllocated", "Port %d is not allocated; repairing", port)
			}
			used[port] = true
		}
		return true
	})
	return used, found
}

// unclaimed counts once more the ports that no Service has.
func (m *portMap) unclaimed(used map[int]bool, before map[int]int) map[int]int {
	leaks := map[int]int{}
	for i := range m.ports.Size {
		if port := m.ports.Base + i; m.bits.Bit(i) == 1 && !used[port] {
			leaks[port] = before[port] + 1
		}
	}
	return leaks
}
