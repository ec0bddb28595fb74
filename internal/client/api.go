// Package client is the API as every component of this project sees it: one
// typed client over two transports. In the server's process a call goes straight
// into the request path (same defaulting, admission, validation and
// authorization, no codec); elsewhere it goes over HTTP. A component cannot tell
// which one it has.
package client

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"proa/internal/apis"
)

// Object is any API object. One that comes from a read, a list, a watch or an
// informer is shared with the whole process: call DeepCopyObject before changing it.
type Object = apis.Object

// Ref names what a call is about: a collection (Name empty), an object or a
// subresource of it.
type Ref struct {
	Resource    schema.GroupVersionResource
	Namespace   string
	Name        string
	Subresource string
}

// List is the result of a list call, in key order. ResourceVersion and Continue
// are as in metav1.ListMeta.
type List struct {
	Items              []Object
	ResourceVersion    string
	Continue           string
	RemainingItemCount *int64
}

// API is the request path, as one user. Errors are *apierrors.StatusError, or
// the context's error. Objects passed to Create, Update and Patch belong to the
// callee afterwards; objects returned are shared and read-only.
type API interface {
	Get(ctx context.Context, ref Ref, opts metav1.GetOptions) (Object, error)
	List(ctx context.Context, ref Ref, opts metav1.ListOptions) (*List, error)
	Watch(ctx context.Context, ref Ref, opts metav1.ListOptions) (Watch, error)
	Create(ctx context.Context, ref Ref, obj Object, opts metav1.CreateOptions) (Object, error)
	Update(ctx context.Context, ref Ref, obj Object, opts metav1.UpdateOptions) (Object, error)
	Patch(ctx context.Context, ref Ref, pt types.PatchType, data []byte, opts metav1.PatchOptions) (Object, error)
	// Delete returns the object as it is while finalizers or a grace period keep
	// it. Of one that is gone, no more than its name and UID need be there.
	Delete(ctx context.Context, ref Ref, opts metav1.DeleteOptions) (Object, error)
	DeleteCollection(ctx context.Context, ref Ref, opts metav1.DeleteOptions, list metav1.ListOptions) error
}

// Event is one change that a watch reports. A Bookmark's object carries only a
// resourceVersion (and the initial-events-end annotation after the initial list).
type Event struct {
	Type   watch.EventType
	Object Object
}

// Watch is a stream of changes, read in batches.
type Watch interface {
	// Next blocks for at least one event and returns all that wait. It ends with
	// a StatusError (410 Gone, reason Expired: list again), io.EOF when the
	// server closed the stream (resume from the last resourceVersion), or the
	// context's error.
	Next(ctx context.Context) ([]Event, error)
	Stop()
}
