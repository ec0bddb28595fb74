package nodelifecycle

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// kubeletLease is how long a kubelet's lease lasts.
const kubeletLease = 40 * time.Second

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
	promise time.Duration    // how long the lease lasts
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
	h.ofLocked(lease.Name).promise = time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
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

// longer is by how much a node's lease lasts longer than a kubelet's does. Such
// a node is given that much more time; upstream gives all the same.
func (h *heartbeats) longer(node string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.ofLocked(node).promise-kubeletLease, 0)
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
