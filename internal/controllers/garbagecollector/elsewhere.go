package garbagecollector

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
)

// Elsewhere reads objects that other servers keep.
type Elsewhere interface {
	// Find returns the metadata of an object, nil when it is gone, and whether its
	// kind is namespaced. An error says nothing about the object: nobody serves the
	// kind, or its server does not answer.
	Find(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (meta *metav1.ObjectMeta, namespaced bool, err error)
}

// With has the collector look for owners that other servers keep. It does not
// follow their objects: it looks again for as long as they have dependents here.
func (g *Controller) With(others Elsewhere) *Controller {
	g.others = others
	return g
}

// classifyElsewhere puts a reference to an owner of a kind that is not known here
// where it belongs. As long as it cannot be told whether there is one, nothing happens.
func (g *Controller) classifyElsewhere(ctx context.Context, n *node, ref *metav1.OwnerReference, o *owners) error {
	if g.others == nil {
		o.unsure = true
		return nil
	}
	owner, namespaced, err := g.others.Find(ctx, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind), n.obj.GetNamespace(), ref.Name)
	switch {
	case err != nil:
		o.unsure = true
	case namespaced && n.resource.Scope == apis.Cluster:
		return errNoSuchOwner
	case owner == nil || owner.UID != ref.UID:
		o.dangling = append(o.dangling, *ref)
	default:
		o.solid, o.unfollowed = append(o.solid, *ref), true
	}
	return nil
}
