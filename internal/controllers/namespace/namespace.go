// Package namespace empties a namespace that is being deleted, pods first, and
// then lets it go.
package namespace

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
)

// What remains is looked at again after a tenth of the time that the deletion
// took so far, within these bounds. The end of a pod needs no waiting.
const (
	shortestWait = 100 * time.Millisecond
	longestWait  = 8 * time.Second
)

// Controller deletes what is in terminating namespaces.
type Controller struct {
	loop       *controllers.Loop
	api        client.API
	clock      clock.PassiveClock
	catalogue  *apis.Catalogue
	namespaces *client.Informer[*corev1.Namespace]
	others     Elsewhere // nil: there are no other servers
}

// New returns a controller that deletes the objects of every kind in catalogue.
func New(c controllers.Config, catalogue *apis.Catalogue) *Controller {
	n := &Controller{
		api: c.Cache.API(), clock: c.Clock, catalogue: catalogue,
		namespaces: client.Shared[*corev1.Namespace](c.Cache),
	}
	n.loop = controllers.NewLoop("namespace", c, n.reconcile)
	n.namespaces.OnChange(func(_, ns *corev1.Namespace) {
		if ns != nil && ns.DeletionTimestamp != nil {
			n.loop.EnqueueObject(ns)
		}
	})
	client.Shared[*corev1.Pod](c.Cache).OnChange(func(old, pod *corev1.Pod) {
		if pod != nil {
			return
		}
		if ns, ok := n.namespaces.Cached("", old.Namespace); ok && ns.DeletionTimestamp != nil {
			n.loop.EnqueueObject(ns)
		}
	})
	return n
}

// Run works until ctx ends.
func (n *Controller) Run(ctx context.Context) error { return n.loop.Run(ctx) }

func (n *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	ns, ok := n.namespaces.Cached("", key.Name)
	if !ok || ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return controllers.Result{}, nil
	}
	left := n.empty(ctx, ns.Name)
	ns, err := n.report(ctx, ns, left)
	switch {
	case err != nil:
		return controllers.Result{}, ignoreStale(err)
	case len(left.failures) > 0:
		return controllers.Result{}, fmt.Errorf("delete contents: %w", left.failures[0])
	case len(left.objects) > 0 || len(left.unknown) > 0:
		age := n.clock.Since(ns.DeletionTimestamp.Time)
		return controllers.Result{After: min(max(age/10, shortestWait), longestWait)}, nil
	}
	return controllers.Result{}, ignoreStale(n.finalize(ctx, ns))
}

// ignoreStale drops errors of writes that the namespace's own change overtook:
// that change brings it back here.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// report writes what is left to the namespace's conditions.
func (n *Controller) report(ctx context.Context, ns *corev1.Namespace, left remains) (*corev1.Namespace, error) {
	updated := ns.DeepCopy()
	if !setConditions(&updated.Status, left.conditions(), metav1.NewTime(n.clock.Now())) && ns.Status.Phase == corev1.NamespaceTerminating {
		return ns, nil
	}
	updated.Status.Phase = corev1.NamespaceTerminating
	return n.namespaces.UpdateStatus(ctx, updated)
}

// finalize takes the finalizer from the namespace, which removes it if it has no other.
func (n *Controller) finalize(ctx context.Context, ns *corev1.Namespace) error {
	updated := ns.DeepCopy()
	updated.Spec.Finalizers = slices.DeleteFunc(updated.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	ref := client.Ref{Resource: corev1.SchemeGroupVersion.WithResource("namespaces"), Name: ns.Name, Subresource: "finalize"}
	_, err := n.api.Update(ctx, ref, updated, metav1.UpdateOptions{})
	return err
}
