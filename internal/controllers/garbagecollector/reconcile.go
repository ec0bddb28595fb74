package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	listWait     = 50 * time.Millisecond // for the first lists to complete
	listPatience = 30 * time.Second      // a kind that cannot be listed holds the others up no longer
	lookAgain    = 30 * time.Second      // at owners of kinds that are not served or not followed
	changedWait  = 5 * time.Millisecond  // before a look at an object that changed meanwhile
)

// reconcile looks at the object whose UID is the key's name.
func (g *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	if g.listing.Load() > 0 && g.config.Clock.Now().UnixNano() < g.patience.Load() {
		return controllers.Result{After: listWait}, nil // dependents may be missing
	}
	n, ok := g.graph.node(types.UID(key.Name))
	if !ok {
		g.unsure.Delete(types.UID(key.Name))
		return controllers.Result{}, nil
	}
	var result controllers.Result
	var err error
	switch {
	case orphans(n.obj):
		err = g.orphan(ctx, n)
	case waits(n.obj):
		err = g.finishForeground(ctx, n)
	case n.obj.GetDeletionTimestamp() == nil && !g.allSolid(n):
		result, err = g.collect(ctx, n)
	}
	if apierrors.IsConflict(err) {
		return controllers.Result{After: changedWait}, nil
	}
	if err != nil {
		err = fmt.Errorf("%s %s/%s: %w", n.resource.GroupResource(), n.obj.GetNamespace(), n.obj.GetName(), err)
	}
	return result, err
}

func (g *Controller) allSolid(n *node) bool {
	g.graph.mu.RLock()
	defer g.graph.mu.RUnlock()
	return g.graph.allSolidLocked(n.resource, n.obj)
}

// orphan takes the owner out of its dependents' references, then lets it go.
func (g *Controller) orphan(ctx context.Context, owner *node) error {
	var errs []error
	uid := owner.obj.GetUID()
	for _, dependent := range g.graph.dependentsOf(owner) {
		live, err := g.live(ctx, dependent)
		if err == nil && live != nil {
			err = g.dropOwners(ctx, dependent, live, func(r *metav1.OwnerReference) bool { return r.UID == uid })
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("orphan dependents: %w", err)
	}
	return g.dropFinalizer(ctx, owner, metav1.FinalizerOrphanDependents)
}

// finishForeground lets an object go that waited for its dependents, once none of
// them holds it back.
func (g *Controller) finishForeground(ctx context.Context, owner *node) error {
	held := false
	for _, dependent := range g.graph.dependentsOf(owner) {
		i := referenceTo(dependent.obj, owner.obj.GetUID())
		if !blocks(&dependent.obj.GetOwnerReferences()[i]) {
			continue
		}
		held = true
		if !waits(dependent.obj) {
			g.look([]types.UID{dependent.obj.GetUID()})
		}
	}
	if held {
		return nil // the last of them to go has this one looked at again
	}
	return g.dropFinalizer(ctx, owner, metav1.FinalizerDeleteDependents)
}

// owners are the owner references of one object, by what they lead to.
type owners struct {
	solid, dangling, waiting []metav1.OwnerReference
	unsure                   bool // a reference cannot be followed, or not yet
	unfollowed               bool // a solid one whose end the graph would not notice
}

// errNoSuchOwner: a cluster-scoped object names an owner of a namespaced kind.
// That never resolves, and the object stays.
var errNoSuchOwner = errors.New("cluster-scoped objects cannot refer to namespaced owners")

// collect deletes an object without an owner, or takes from it the references
// to owners that are gone.
func (g *Controller) collect(ctx context.Context, n *node) (controllers.Result, error) {
	live, err := g.live(ctx, n)
	if err != nil || live == nil || live.GetDeletionTimestamp() != nil || len(live.GetOwnerReferences()) == 0 {
		return controllers.Result{}, err
	}
	o, err := g.classify(ctx, &node{resource: n.resource, obj: live})
	if errors.Is(err, errNoSuchOwner) {
		return controllers.Result{}, nil
	}
	if err != nil {
		return controllers.Result{}, err
	}
	if o.unsure {
		g.unsure.Store(n.obj.GetUID(), nil)
		return controllers.Result{After: lookAgain}, nil
	}
	switch {
	case len(o.solid) > 0:
		if len(o.dangling)+len(o.waiting) > 0 {
			err = g.dropOwners(ctx, n, live, func(r *metav1.OwnerReference) bool { return !isIn(o.solid, r) })
		}
		if err == nil && o.unfollowed {
			return controllers.Result{After: lookAgain}, nil
		}
	case len(o.waiting) > 0 && len(g.graph.dependentsOf(n)) > 0:
		if slices.ContainsFunc(g.graph.dependentsOf(n), func(d *node) bool { return waits(d.obj) }) {
			// The object may own, in a circle, what waits for it.
			if err := g.unblockOwners(ctx, n, live); err != nil {
				return controllers.Result{}, err
			}
			if live, err = g.live(ctx, n); err != nil || live == nil {
				return controllers.Result{}, err
			}
		}
		err = g.delete(ctx, n, live, metav1.DeletePropagationForeground)
	default:
		err = g.delete(ctx, n, live, propagation(live))
	}
	return controllers.Result{}, err
}

func isIn(refs []metav1.OwnerReference, ref *metav1.OwnerReference) bool {
	return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == ref.UID })
}

// propagation is what the finalizers of an object ask for.
func propagation(obj client.Object) metav1.DeletionPropagation {
	switch {
	case slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	}
	return metav1.DeletePropagationBackground
}

func (g *Controller) classify(ctx context.Context, n *node) (o owners, err error) {
	for _, ref := range n.obj.GetOwnerReferences() {
		if owner, ok := g.graph.owner(n, &ref); ok {
			if waits(owner.obj) {
				o.waiting = append(o.waiting, ref)
			} else {
				o.solid = append(o.solid, ref)
			}
			continue
		}
		r, remote, ok := g.graph.kind(ref.APIVersion, ref.Kind)
		if !ok {
			o.unsure = true
			continue
		}
		g.reportNamespace(n, &ref, r)
		if n.resource.Scope == apis.Cluster && r.Scope == apis.Namespaced {
			return o, errNoSuchOwner
		}
		exists, err := g.exists(ctx, n, &ref, r)
		switch {
		case err != nil && remote:
			o.unsure = true // its server does not answer
		case err != nil:
			return o, fmt.Errorf("owner %s %s: %w", ref.Kind, ref.Name, err)
		case exists:
			o.solid, o.unfollowed = append(o.solid, ref), true
		default:
			o.dangling = append(o.dangling, ref)
		}
	}
	return o, nil
}

// exists reads the owner anew. What is gone stays gone: a UID is never used again.
func (g *Controller) exists(ctx context.Context, n *node, ref *metav1.OwnerReference, r *apis.Resource) (bool, error) {
	name := reference{r.GroupResource(), "", ref.Name, ref.UID}
	if r.Scope == apis.Namespaced {
		name.namespace = n.obj.GetNamespace()
	}
	if _, absent := g.absent.Get(name); absent {
		return false, nil
	}
	owner, err := g.api.Get(ctx, client.Ref{Resource: r.GroupVersionResource(), Namespace: name.namespace, Name: name.name}, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	if err == nil && owner.GetUID() == ref.UID {
		return true, nil
	}
	g.absent.Add(name, nil)
	return false, nil
}

// reportNamespace tells of a reference to an owner in another namespace.
func (g *Controller) reportNamespace(n *node, ref *metav1.OwnerReference, r *apis.Resource) {
	owner, ok := g.graph.node(ref.UID)
	if !ok || owner.resource.Scope == apis.Cluster || owner.obj.GetNamespace() == n.obj.GetNamespace() {
		return
	}
	gvk := n.resource.GroupVersionKind()
	about := &corev1.ObjectReference{
		APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind,
		Namespace: n.obj.GetNamespace(), Name: n.obj.GetName(), UID: n.obj.GetUID(),
	}
	g.events.Eventf(about, corev1.EventTypeWarning, "OwnerRefInvalidNamespace", "ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		ref.APIVersion, ref.Kind, n.obj.GetNamespace(), ref.Name, ref.UID, n.obj.GetNamespace())
}
