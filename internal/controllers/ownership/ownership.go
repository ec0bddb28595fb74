// Package ownership decides which objects a controller's object owns: it keeps
// those that its selector matches, adopts matching ones that nobody controls and
// releases those that no longer match. Two controllers never own one object:
// the server accepts at most one controller reference.
package ownership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/client"
	"proa/internal/controllers"
)

// index holds objects by their controller's UID, and those without a controller
// by orphansOf their namespace.
const index = "controller"

func orphansOf(namespace string) string { return "orphans in " + namespace }

// Claims finds and keeps what objects of one kind own among objects of type T.
type Claims[T client.Object] struct {
	informer *client.Informer[T]
	owner    schema.GroupVersionKind
	// Finalizers are added with adoption and removed with release.
	Finalizers []string
	// QuietAdditions says that an owned object which appears wakes nobody, as its
	// owner has made it.
	QuietAdditions bool
}

// New returns the claims of owners of one kind. Call before the cache runs.
func New[T client.Object](informer *client.Informer[T], owner schema.GroupVersionKind) *Claims[T] {
	informer.AddIndex(index, func(obj T) []string {
		if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
			return []string{string(ref.UID)}
		}
		return []string{orphansOf(obj.GetNamespace())}
	})
	return &Claims[T]{informer: informer, owner: owner}
}

// Owned returns what the object with this UID controls, ordered by name.
func (c *Claims[T]) Owned(uid types.UID) []T { return c.informer.ByIndex(index, string(uid)) }

// Reference is the controller reference to owner.
func (c *Claims[T]) Reference(owner metav1.Object) *metav1.OwnerReference {
	return metav1.NewControllerRef(owner, c.owner)
}

// OwnerKey names the owner that obj's controller reference points at, if it is
// of these claims' kind.
func (c *Claims[T]) OwnerKey(obj metav1.Object) (controllers.Key, bool) {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref == nil || ref.Kind != c.owner.Kind {
		return controllers.Key{}, false
	}
	if gv, err := schema.ParseGroupVersion(ref.APIVersion); err != nil || gv.Group != c.owner.Group {
		return controllers.Key{}, false
	}
	return controllers.Key{Namespace: obj.GetNamespace(), Name: ref.Name}, true
}

// OnChange calls enqueue with the owners that a change of a T concerns: those it
// had and has and, for one that nobody controls, those that may adopt it.
func (c *Claims[T]) OnChange(enqueue func(controllers.Key), adopters func(obj T) []controllers.Key) {
	c.informer.OnChange(func(old, new T) {
		had, has := client.Object(old), client.Object(new)
		var before, after controllers.Key
		var owned bool
		if !isNil(old) {
			if before, owned = c.OwnerKey(had); owned {
				enqueue(before)
			}
		}
		if isNil(new) {
			return
		}
		if after, owned = c.OwnerKey(has); owned {
			if after != before && !(isNil(old) && c.QuietAdditions) {
				enqueue(after)
			}
			return
		}
		if metav1.GetControllerOfNoCopy(has) != nil || has.GetDeletionTimestamp() != nil {
			return
		}
		if isNil(old) || before.Name != "" || !labels.Equals(had.GetLabels(), has.GetLabels()) || metav1.GetControllerOfNoCopy(had) != nil {
			for _, key := range adopters(new) {
				enqueue(key)
			}
		}
	})
}

func isNil[T client.Object](obj T) bool {
	var zero T
	return client.Object(obj) == client.Object(zero)
}

// Claim returns what owner controls after adopting and releasing. live reads
// owner past every cache: an owner that is gone or going adopts nothing.
func (c *Claims[T]) Claim(ctx context.Context, owner client.Object, selector labels.Selector, live func(context.Context) (client.Object, error)) ([]T, error) {
	return c.ClaimWhere(ctx, owner, selector, func(T) bool { return true }, live)
}

// ClaimWhere is Claim among the objects that consider is true of.
func (c *Claims[T]) ClaimWhere(ctx context.Context, owner client.Object, selector labels.Selector, consider func(T) bool, live func(context.Context) (client.Object, error)) ([]T, error) {
	var claimed []T
	var errs []error
	for _, obj := range c.Owned(owner.GetUID()) {
		switch {
		case !consider(obj):
		case selector.Matches(labels.Set(obj.GetLabels())):
			claimed = append(claimed, obj)
		case owner.GetDeletionTimestamp() == nil:
			errs = append(errs, c.release(ctx, owner, obj))
		}
	}
	if owner.GetDeletionTimestamp() != nil {
		return claimed, errors.Join(errs...)
	}
	checked := false
	for _, obj := range c.informer.ByIndex(index, orphansOf(owner.GetNamespace())) {
		if obj.GetDeletionTimestamp() != nil || !selector.Matches(labels.Set(obj.GetLabels())) || !consider(obj) {
			continue
		}
		if !checked {
			if err := c.mayAdopt(ctx, owner, live); err != nil {
				errs = append(errs, err)
				break
			}
			checked = true
		}
		adopted, err := c.adopt(ctx, owner, obj)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			errs = append(errs, err)
		default:
			claimed = append(claimed, adopted)
		}
	}
	return claimed, errors.Join(errs...)
}

func (c *Claims[T]) mayAdopt(ctx context.Context, owner client.Object, live func(context.Context) (client.Object, error)) error {
	fresh, err := live(ctx)
	if err != nil {
		return fmt.Errorf("can't adopt: %w", err)
	}
	if fresh.GetUID() != owner.GetUID() {
		return fmt.Errorf("can't adopt: original %s %s/%s is gone: got uid %s, wanted %s",
			c.owner.Kind, owner.GetNamespace(), owner.GetName(), fresh.GetUID(), owner.GetUID())
	}
	if at := fresh.GetDeletionTimestamp(); at != nil {
		return fmt.Errorf("can't adopt: %s/%s has just been deleted at %v", owner.GetNamespace(), owner.GetName(), at)
	}
	return nil
}

type metadataPatch struct {
	UID             types.UID `json:"uid"`
	OwnerReferences []any     `json:"ownerReferences,omitempty"`
	Finalizers      []string  `json:"finalizers,omitempty"`
	DropFinalizers  []string  `json:"$deleteFromPrimitiveList/finalizers,omitempty"`
}

func (c *Claims[T]) adopt(ctx context.Context, owner client.Object, obj T) (T, error) {
	return c.patch(ctx, obj, metadataPatch{
		UID: obj.GetUID(), OwnerReferences: []any{c.Reference(owner)}, Finalizers: c.Finalizers,
	})
}

// release removes owner's reference. An object that is gone, or whose UID or
// reference is another's by now, needs no release.
func (c *Claims[T]) release(ctx context.Context, owner client.Object, obj T) error {
	_, err := c.patch(ctx, obj, metadataPatch{
		UID:             obj.GetUID(),
		OwnerReferences: []any{map[string]any{"$patch": "delete", "uid": owner.GetUID()}},
		DropFinalizers:  c.Finalizers,
	})
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return err
}

func (c *Claims[T]) patch(ctx context.Context, obj T, p metadataPatch) (T, error) {
	data, err := json.Marshal(map[string]any{"metadata": p})
	if err != nil {
		return obj, fmt.Errorf("marshal ownership patch: %w", err)
	}
	return c.informer.Patch(ctx, obj.GetNamespace(), obj.GetName(), types.StrategicMergePatchType, data)
}
