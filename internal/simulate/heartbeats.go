package simulate

import (
	"context"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

// renewals within a lease's duration, as a kubelet makes.
const (
	renewals         = 4
	heartbeatWorkers = 16
)

// heartbeats renews the leases of all simulated nodes, each in its time, spread
// evenly: that is all the cluster hears of a node that nothing happens to.
type heartbeats struct {
	sim    *Simulator
	leases client.Resource[*coordinationv1.Lease]
	queue  workqueue.TypedDelayingInterface[string]

	mu     sync.Mutex                       // guards what follows
	leased map[string]*coordinationv1.Lease // as last written; nil before
}

func newHeartbeats(s *Simulator) *heartbeats {
	return &heartbeats{
		sim: s, leases: client.Of[*coordinationv1.Lease](s.config.Cache.API()),
		queue:  workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: "simulate-leases", Clock: s.config.Clock}),
		leased: map[string]*coordinationv1.Lease{},
	}
}

// follow begins a node's lease. The first one is written at once.
func (h *heartbeats) follow(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.leased[node]; !ok {
		h.leased[node] = nil
		h.queue.Add(node)
	}
}

func (h *heartbeats) forget(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.leased, node)
}

func (h *heartbeats) work(ctx context.Context) {
	for {
		node, shutdown := h.queue.Get()
		if shutdown {
			return
		}
		h.beat(ctx, node)
		h.queue.Done(node)
	}
}

func (h *heartbeats) beat(ctx context.Context, name string) {
	h.mu.Lock()
	last, followed := h.leased[name]
	h.mu.Unlock()
	node, known := h.sim.Node(name)
	if !followed || !known {
		return
	}
	interval := h.sim.config.LeaseDuration / renewals
	next, err := h.renew(ctx, node, last)
	wait := interval
	switch {
	case err != nil:
		if ctx.Err() == nil {
			slog.WarnContext(ctx, "renew the lease of a simulated node", "node", name, "err", err)
		}
		next, wait = nil, min(interval, retry)
	case last == nil: // all begin at the same time, and should not go on so
		h.sim.mu.Lock()
		wait = time.Duration(h.sim.random.Int63n(int64(interval)))
		h.sim.mu.Unlock()
	}
	h.mu.Lock()
	if _, followed := h.leased[name]; followed {
		h.leased[name] = next
		h.queue.AddAfter(name, wait)
	}
	h.mu.Unlock()
}

func (h *heartbeats) renew(ctx context.Context, node *corev1.Node, last *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if last == nil {
		fresh := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node.Name}}
		h.stamp(fresh, node)
		made, err := h.leases.Create(ctx, fresh)
		if !apierrors.IsAlreadyExists(err) {
			return made, err
		}
		if last, err = h.leases.Get(ctx, corev1.NamespaceNodeLease, node.Name); err != nil {
			return nil, err
		}
	}
	renewed := last.DeepCopy()
	h.stamp(renewed, node)
	return h.leases.Update(ctx, renewed)
}

func (h *heartbeats) stamp(l *coordinationv1.Lease, node *corev1.Node) {
	l.Spec.HolderIdentity = ptr.To(node.Name)
	l.Spec.LeaseDurationSeconds = ptr.To(int32(h.sim.config.LeaseDuration / time.Second))
	l.Spec.RenewTime = &metav1.MicroTime{Time: h.sim.clock.Now()}
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
}
