package client

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
)

var catalogue = sync.OnceValue(builtin.Everything)

// ResourceOf returns the catalogue entry of a built-in type. It panics for a
// type that is not a built-in kind: the type is part of the program.
func ResourceOf[T Object]() *apis.Resource {
	var zero T
	obj := reflect.New(reflect.TypeOf(zero).Elem()).Interface().(Object)
	r, ok := catalogue().Of(obj)
	if !ok {
		panic(fmt.Sprintf("client: %T is not a built-in kind", obj))
	}
	return r
}

// Resource is the typed client of one built-in kind. Objects it returns are
// shared and read-only.
type Resource[T Object] struct {
	api API
	gvr schema.GroupVersionResource
}

// Of returns the typed client of T's kind.
func Of[T Object](api API) Resource[T] {
	return Resource[T]{api: api, gvr: ResourceOf[T]().GroupVersionResource()}
}

func (r Resource[T]) ref(namespace, name, subresource string) Ref {
	return Ref{Resource: r.gvr, Namespace: namespace, Name: name, Subresource: subresource}
}

func typed[T Object](obj Object, err error) (T, error) {
	if err != nil {
		var zero T
		return zero, err
	}
	t, ok := obj.(T)
	if !ok {
		return t, fmt.Errorf("client: got %T, want %T", obj, t)
	}
	return t, nil
}

func (r Resource[T]) Get(ctx context.Context, namespace, name string) (T, error) {
	return typed[T](r.api.Get(ctx, r.ref(namespace, name, ""), metav1.GetOptions{}))
}

// List returns the objects of one namespace, or of all when namespace is empty.
func (r Resource[T]) List(ctx context.Context, namespace string, opts metav1.ListOptions) ([]T, error) {
	list, err := r.api.List(ctx, r.ref(namespace, "", ""), opts)
	if err != nil {
		return nil, err
	}
	items := make([]T, len(list.Items))
	for i, obj := range list.Items {
		if items[i], err = typed[T](obj, nil); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func (r Resource[T]) Create(ctx context.Context, obj T) (T, error) {
	ref := r.ref(obj.GetNamespace(), "", "")
	return typed[T](r.api.Create(ctx, ref, obj, metav1.CreateOptions{}))
}

// CreateSubresource posts body to a subresource (binding, eviction, token) and
// returns what the server answers.
func (r Resource[T]) CreateSubresource(ctx context.Context, namespace, name, subresource string, body Object) (Object, error) {
	return r.api.Create(ctx, r.ref(namespace, name, subresource), body, metav1.CreateOptions{})
}

func (r Resource[T]) Update(ctx context.Context, obj T) (T, error) {
	return r.update(ctx, obj, "")
}

func (r Resource[T]) UpdateStatus(ctx context.Context, obj T) (T, error) {
	return r.update(ctx, obj, "status")
}

func (r Resource[T]) update(ctx context.Context, obj T, subresource string) (T, error) {
	ref := r.ref(obj.GetNamespace(), obj.GetName(), subresource)
	return typed[T](r.api.Update(ctx, ref, obj, metav1.UpdateOptions{}))
}

// Patch changes an object, or one subresource of it.
func (r Resource[T]) Patch(ctx context.Context, namespace, name string, pt types.PatchType, data []byte, subresource ...string) (T, error) {
	ref := r.ref(namespace, name, "")
	if len(subresource) > 0 {
		ref.Subresource = subresource[0]
	}
	return typed[T](r.api.Patch(ctx, ref, pt, data, metav1.PatchOptions{}))
}

// MergePatch marshals patch and applies it as a JSON merge patch.
func (r Resource[T]) MergePatch(ctx context.Context, namespace, name string, patch any, subresource ...string) (T, error) {
	data, err := json.Marshal(patch)
	if err != nil {
		var zero T
		return zero, fmt.Errorf("marshal patch: %w", err)
	}
	return r.Patch(ctx, namespace, name, types.MergePatchType, data, subresource...)
}

// Delete starts or finishes the deletion of an object, as API.Delete.
func (r Resource[T]) Delete(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) (T, error) {
	return typed[T](r.api.Delete(ctx, r.ref(namespace, name, ""), opts))
}

// DeleteCollection deletes what opts selects in one namespace.
func (r Resource[T]) DeleteCollection(ctx context.Context, namespace string, opts metav1.DeleteOptions, list metav1.ListOptions) error {
	return r.api.DeleteCollection(ctx, r.ref(namespace, "", ""), opts, list)
}

// Watch streams changes in one namespace, or in all when namespace is empty.
func (r Resource[T]) Watch(ctx context.Context, namespace string, opts metav1.ListOptions) (Watch, error) {
	return r.api.Watch(ctx, r.ref(namespace, "", ""), opts)
}
