package nodelifecycle

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// heartbeats knows when each node was last heard of, by this process's clock:
// what counts is that a node's times move, not what they say.
type heartbeats struct {
	clock clock.PassiveClock

	mu    sync.Mutex // guards nodes
	nodes map[string]*heartbeat
}

type heartbeat struct {
	heard   time.Time
	renewed metav1.MicroTime // of the lease
	posted  metav1.Time      // of the Ready condition
}

func (h *heartbeats) ofLocked(name string) *heartbeat {
	if h.nodes[name] == nil {
		h.nodes[name] = &heartbeat{heard: h.clock.Now()}
	}
	return h.nodes[name]
}

func (h *heartbeats) lease(lease *coordinationv1.Lease) {
	if lease.Spec.RenewTime == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.ofLocked(lease.Name); b.renewed.Time.Before(lease.Spec.RenewTime.Time) {
		b.renewed, b.heard = *lease.Spec.RenewTime, h.clock.Now()
	}
}

func (h *heartbeats) node(node *corev1.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.ofLocked(node.Name)
	if c := condition(node, corev1.NodeReady); c != nil && !b.posted.Equal(&c.LastHeartbeatTime) {
		b.posted, b.heard = c.LastHeartbeatTime, h.clock.Now()
	}
}

// last is when node was heard of, at least when it was first seen.
func (h *heartbeats) last(node *corev1.Node) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ofLocked(node.Name).heard
}

func (h *heartbeats) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.nodes, name)
}

// all lets every node have been heard of now.
func (h *heartbeats) all() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.nodes {
		b.heard = h.clock.Now()
	}
}
