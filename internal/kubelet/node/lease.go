package node

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

// leaseRetry is the wait after a failure; it doubles up to 7 s.
const leaseRetry = 200 * time.Millisecond

// leaseSeconds is how long the lease holds; it is renewed four times in it.
func (a *Agent) leaseSeconds() int32 { return a.c.Configuration.NodeLeaseDurationSeconds }

// keepLease renews the node's lease, which tells that the node is alive at less
// cost than its status.
func (a *Agent) keepLease(ctx context.Context) error {
	leases := client.Of[*coordinationv1.Lease](a.c.API)
	var last *coordinationv1.Lease
	retry := leaseRetry
	for {
		wait := time.Duration(a.leaseSeconds()) * time.Second / 4
		next, err := a.renew(ctx, leases, last)
		if err != nil {
			if ctx.Err() == nil && retry > time.Second {
				a.c.Log.Warn("renew node lease", "err", err)
			}
			last, wait = nil, retry
			retry = min(2*retry, 7*time.Second)
		} else {
			last, retry = next, leaseRetry
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.c.Clock.After(wait):
		}
	}
}

// renew updates the lease last written, or finds or makes it.
func (a *Agent) renew(ctx context.Context, leases client.Resource[*coordinationv1.Lease], last *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if last == nil {
		got, err := leases.Get(ctx, corev1.NamespaceNodeLease, a.c.Name)
		if apierrors.IsNotFound(err) {
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: a.c.Name}}
			a.stamp(l)
			return leases.Create(ctx, l)
		}
		if err != nil {
			return nil, err
		}
		last = got
	}
	l := last.DeepCopy()
	a.stamp(l)
	return leases.Update(ctx, l)
}

func (a *Agent) stamp(l *coordinationv1.Lease) {
	l.Spec.HolderIdentity = &a.c.Name
	l.Spec.LeaseDurationSeconds = ptr.To(a.leaseSeconds())
	l.Spec.RenewTime = &metav1.MicroTime{Time: a.c.Clock.Now()}
	if n, err := a.Node(); err == nil {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
	}
}
