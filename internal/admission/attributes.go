package admission

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	admissionv1 "k8s.io/api/admission/v1"

	"proa/internal/apis"
	"proa/internal/auth"
	"proa/internal/store"

	"k8s.io/apiserver/pkg/authentication/user"
)

var (
	namespaces = schema.GroupResource{Resource: "namespaces"}
	pods       = schema.GroupResource{Resource: "pods"}
	nodes      = schema.GroupResource{Resource: "nodes"}
	claims     = schema.GroupResource{Resource: "persistentvolumeclaims"}
	volumes    = schema.GroupResource{Resource: "persistentvolumes"}
	accounts   = schema.GroupResource{Resource: "serviceaccounts"}
)

// is reports whether the write is of this operation on this resource itself,
// not on a subresource.
func (a *Attributes) is(op admissionv1.Operation, gr schema.GroupResource) bool {
	return a.Operation == op && a.Subresource == "" && a.of(gr)
}

func (a *Attributes) of(gr schema.GroupResource) bool {
	return a.Resource.Plural == gr.Resource && a.Resource.Group == gr.Group
}

// podWritten returns the pod of a create, or of an update of the pod itself.
func (a *Attributes) podWritten() (*corev1.Pod, bool) {
	if !a.of(pods) || a.Subresource != "" {
		return nil, false
	}
	pod, ok := a.Object.(*corev1.Pod)
	return pod, ok
}

func (a *Attributes) podCreated() (*corev1.Pod, bool) {
	if a.Operation != admissionv1.Create {
		return nil, false
	}
	return a.podWritten()
}

// Forbidden is the 403 of a plugin, naming the object as upstream does.
func (a *Attributes) Forbidden(err error) *apierrors.StatusError { return a.forbidden(err) }

func (a *Attributes) forbidden(err error) *apierrors.StatusError {
	name := a.Name
	if a.Object != nil {
		if name = a.Object.GetName(); name == "" {
			name = a.Object.GetGenerateName()
		}
		if name == "" {
			name = a.Name
		}
	}
	if name == "" {
		name = "Unknown"
	}
	return apierrors.NewForbidden(a.Resource.GroupResource(), name, err)
}

// reader is what plugins read objects from: a snapshot or a transaction.
type reader interface {
	Get(store.Key) (*store.Item, error)
}

// find returns an object of a hub type, or a NotFound status.
func find[T store.Object](r reader, gr schema.GroupResource, namespace, name string) (T, error) {
	var none T
	item, err := r.Get(store.Key{Resource: gr, Namespace: namespace, Name: name})
	if errors.Is(err, store.ErrNotFound) {
		return none, apierrors.NewNotFound(gr, name)
	}
	if err != nil {
		return none, apierrors.NewInternalError(err)
	}
	obj, ok := item.Object.(T)
	if !ok {
		return none, apierrors.NewNotFound(gr, name)
	}
	return obj, nil
}

// all returns the objects of a hub type in one namespace, or in all if empty.
func all[T store.Object](sn *store.Snapshot, gr schema.GroupResource, namespace string) []T {
	var out []T
	sn.Range(gr, namespace, store.Key{}, func(item *store.Item) bool {
		if obj, ok := item.Object.(T); ok {
			out = append(out, obj)
		}
		return true
	})
	return out
}

// newest returns the most recently created of the objects, the first by name of
// those created in the same second, and false when there is none.
func newest[T metav1.Object](objects []T) (best T, ok bool) {
	for _, o := range objects {
		if !ok || best.GetCreationTimestamp().Time.Before(o.GetCreationTimestamp().Time) ||
			best.GetCreationTimestamp().Time.Equal(o.GetCreationTimestamp().Time) && o.GetName() < best.GetName() {
			best, ok = o, true
		}
	}
	return best, ok
}

// Guard puts a handler of a create-only kind or subresource behind the chain.
func (c *Chain) Guard(r *apis.Resource, subresource string, h auth.Handler) auth.Handler {
	return func(ctx context.Context, u user.Info, namespace, name string, obj apis.Object) (apis.Object, error) {
		a := &Attributes{
			Operation: admissionv1.Create, Resource: r, Subresource: subresource,
			Namespace: namespace, Name: name, Object: obj, Options: &metav1.CreateOptions{}, User: u,
		}
		if err := c.Admit(ctx, a); err != nil {
			return nil, err
		}
		if err := c.Validate(ctx, a); err != nil {
			return nil, err
		}
		return h(ctx, u, namespace, name, a.Object)
	}
}
