package namespace

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
	"proa/internal/client"
)

// remains is what is left in a namespace after everything in it was deleted.
type remains struct {
	objects    map[schema.GroupVersionResource]int
	finalizers map[string]int // objects that each one keeps
	failures   []error
	unknown    []schema.GroupVersion // whose servers do not say what they have
}

// empty deletes every object in a namespace. While there are pods nothing else
// goes: what they rely on (a NetworkPolicy, a Secret) outlives them.
func (n *Controller) empty(ctx context.Context, namespace string) remains {
	left := remains{objects: map[schema.GroupVersionResource]int{}, finalizers: map[string]int{}}
	kinds, unknown := n.deletable()
	for _, r := range kinds {
		if r.GroupResource() == corev1.Resource("pods") {
			left.take(n.emptyOf(ctx, namespace, r))
		}
	}
	if len(left.objects) > 0 || len(left.failures) > 0 {
		return left
	}
	for _, r := range kinds {
		left.take(n.emptyOf(ctx, namespace, r))
	}
	left.unknown = unknown
	return left
}

func (left *remains) take(r *apis.Resource, objs []client.Object, err error) {
	if err != nil {
		left.failures = append(left.failures, err)
	}
	if len(objs) == 0 {
		return
	}
	left.objects[r.GroupVersionResource()] = len(objs)
	for _, obj := range objs {
		for _, finalizer := range obj.GetFinalizers() {
			left.finalizers[finalizer]++
		}
	}
}

func can(r *apis.Resource, verb string) bool { return r.Verbs == nil || slices.Contains(r.Verbs, verb) }

// emptyOf deletes the objects of one kind and returns those that are still there.
func (n *Controller) emptyOf(ctx context.Context, namespace string, r *apis.Resource) (*apis.Resource, []client.Object, error) {
	ref := client.Ref{Resource: r.GroupVersionResource(), Namespace: namespace}
	list, err := n.api.List(ctx, ref, metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		return r, nil, ignoreUnserved(err)
	}
	if err := n.deleteAll(ctx, ref, r, list.Items); err != nil {
		return r, list.Items, err
	}
	list, err = n.api.List(ctx, ref, metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		return r, nil, ignoreUnserved(err)
	}
	for _, obj := range list.Items {
		if obj.GetDeletionTimestamp() == nil {
			return r, list.Items, fmt.Errorf("unexpected items still remain in namespace: %s for gvr: %v", namespace, ref.Resource)
		}
	}
	return r, list.Items, nil
}

// ignoreUnserved: a kind can go while its objects are deleted.
func ignoreUnserved(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil
	}
	return err
}

func (n *Controller) deleteAll(ctx context.Context, ref client.Ref, r *apis.Resource, objs []client.Object) error {
	opts := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	if can(r, "deletecollection") {
		return n.api.DeleteCollection(ctx, ref, opts, metav1.ListOptions{})
	}
	for _, obj := range objs {
		one := ref
		one.Name = obj.GetName()
		if _, err := n.api.Delete(ctx, one, opts); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
