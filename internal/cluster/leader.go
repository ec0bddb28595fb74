package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

// Times of upstream's leader election. One that waits for the Lease tries again
// after leaseRetry and up to leaseJitter times that more, so that those who wait
// do not all ask at once.
const (
	leaseDuration = 15 * time.Second
	leaseRetry    = 2 * time.Second
	leaseJitter   = leaderelection.JitterFactor
)

var leases = coordinationv1.SchemeGroupVersion.WithResource("leases")

// elected runs components in one server at a time of all that share an etcd. They
// agree by upstream's Lease of that name in kube-system, so that an upstream
// daemon may be among them.
//
// A leader stays one while its Lease names nobody else, however long etcd cannot
// be reached: nobody can write meanwhile. Once it names another, Run returns an
// error and the process ends, as upstream's do.
type elected struct {
	api        client.API
	name       string // of the Lease
	identity   string // the same after a restart, which then leads again at once
	components []component
	clock      clock.WithTicker // nil: the real one

	seen     coordinationv1.LeaseSpec // as last read
	seenAt   time.Time                // when it was last seen changed
	renewing bool                     // this server leads
}

// Run waits until this server leads, works, and hands over when ctx ends.
func (e *elected) Run(ctx context.Context) error {
	var clk clock.WithTicker = clock.RealClock{}
	if e.clock != nil {
		clk = e.clock
	}
	for !e.attempt(ctx, clk.Now()) {
		select {
		case <-clk.After(wait.Jitter(leaseRetry, leaseJitter)):
		case <-ctx.Done():
			return e.work(ctx) // nothing but the release of what it holds
		}
	}
	slog.InfoContext(ctx, "leads", "lease", e.name)
	retry := clk.NewTicker(leaseRetry)
	defer retry.Stop()
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return e.work(running) })
	g.Go(func() error {
		for {
			select {
			case <-retry.C():
			case <-running.Done():
				return nil
			}
			if !e.attempt(running, clk.Now()) {
				return fmt.Errorf("lease kube-system/%s is held by %s now: another server leads", e.name, *e.seen.HolderIdentity)
			}
		}
	})
	err := g.Wait()
	e.release(context.WithoutCancel(ctx), clk.Now())
	return err
}

func (e *elected) work(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range e.components {
		g.Go(func() error { return c.Run(ctx) })
	}
	return g.Wait()
}

// attempt takes or renews the Lease and reports whether this server leads. What
// cannot be told changes nothing.
func (e *elected) attempt(ctx context.Context, now time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, leaseDuration)
	defer cancel()
	err := e.renew(ctx, now)
	switch {
	case err == nil:
		e.renewing = true
	case errors.Is(err, errHeld):
		e.renewing = false
	case ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err):
		slog.WarnContext(ctx, "renew lease", "lease", e.name, "err", err)
	}
	return e.renewing
}

var errHeld = errors.New("the lease is held by another")

func (e *elected) ref() client.Ref {
	return client.Ref{Resource: leases, Namespace: metav1.NamespaceSystem, Name: e.name}
}

func (e *elected) renew(ctx context.Context, now time.Time) error {
	obj, err := e.api.Get(ctx, e.ref(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: e.name}}
		e.claim(&lease.Spec, now)
		_, err = e.api.Create(ctx, client.Ref{Resource: leases, Namespace: lease.Namespace}, lease, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease := obj.(*coordinationv1.Lease).DeepCopy()
	if e.heldByAnother(lease.Spec, now) {
		return errHeld
	}
	e.claim(&lease.Spec, now)
	_, err = e.api.Update(ctx, e.ref(), lease, metav1.UpdateOptions{})
	return err
}

// heldByAnother goes by this server's clock alone: a Lease has ended when it has
// not been seen to change for its duration.
func (e *elected) heldByAnother(spec coordinationv1.LeaseSpec, now time.Time) bool {
	holder := ptr.Deref(spec.HolderIdentity, "")
	if holder == "" || holder == e.identity {
		return false
	}
	if holder != ptr.Deref(e.seen.HolderIdentity, "") || !e.seen.RenewTime.Equal(spec.RenewTime) {
		e.seen, e.seenAt = spec, now
	}
	seconds := ptr.Deref(spec.LeaseDurationSeconds, int32(leaseDuration/time.Second))
	return now.Before(e.seenAt.Add(time.Duration(seconds) * time.Second))
}

// claim makes this server the holder as of now.
func (e *elected) claim(spec *coordinationv1.LeaseSpec, now time.Time) {
	stamp := metav1.NewMicroTime(now)
	if ptr.Deref(spec.HolderIdentity, "") != e.identity {
		spec.AcquireTime, spec.LeaseTransitions = &stamp, new(ptr.Deref(spec.LeaseTransitions, -1)+1)
	}
	spec.HolderIdentity, spec.RenewTime = new(e.identity), &stamp
	spec.LeaseDurationSeconds = new(int32(leaseDuration / time.Second))
}

// release lets another server lead at once.
func (e *elected) release(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, leaseRetry)
	defer cancel()
	obj, err := e.api.Get(ctx, e.ref(), metav1.GetOptions{})
	if err != nil {
		return // it ends by itself
	}
	lease := obj.(*coordinationv1.Lease).DeepCopy()
	if ptr.Deref(lease.Spec.HolderIdentity, "") != e.identity {
		return
	}
	stamp := metav1.NewMicroTime(now)
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = new(""), new(int32(1)), &stamp
	_, _ = e.api.Update(ctx, e.ref(), lease, metav1.UpdateOptions{})
}

// identity names the server among those that share a datastore.
func (l Layout) identity(s Settings) string { return s.NodeName + "_" + l.ID }
