package garbagecollector

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

func (n *node) ref() client.Ref {
	return client.Ref{Resource: n.resource.GroupVersionResource(), Namespace: n.obj.GetNamespace(), Name: n.obj.GetName()}
}

// live reads an object anew: nil when it is gone or another took its name.
func (g *Controller) live(ctx context.Context, n *node) (client.Object, error) {
	obj, err := g.api.Get(ctx, n.ref(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil || obj.GetUID() != n.obj.GetUID() {
		return nil, err
	}
	return obj, nil
}

// delete deletes an object as it was read: one that found an owner since stays.
func (g *Controller) delete(ctx context.Context, n *node, live client.Object, policy metav1.DeletionPropagation) error {
	_, err := g.api.Delete(ctx, n.ref(), metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: ptr.To(live.GetUID()), ResourceVersion: ptr.To(live.GetResourceVersion())},
		PropagationPolicy: &policy,
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// metadataPatch is a merge patch of an object in the state that was read.
type metadataPatch struct {
	UID             types.UID                `json:"uid"`
	ResourceVersion string                   `json:"resourceVersion"`
	OwnerReferences *[]metav1.OwnerReference `json:"ownerReferences,omitempty"`
	Finalizers      *[]string                `json:"finalizers,omitempty"`
}

func (g *Controller) patch(ctx context.Context, n *node, live client.Object, p metadataPatch) error {
	p.UID, p.ResourceVersion = live.GetUID(), live.GetResourceVersion()
	data, err := json.Marshal(map[string]any{"metadata": p})
	if err != nil {
		return fmt.Errorf("marshal patch: %w", err)
	}
	_, err = g.api.Patch(ctx, n.ref(), types.MergePatchType, data, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// dropOwners removes the owner references for which drop is true.
func (g *Controller) dropOwners(ctx context.Context, n *node, live client.Object, drop func(*metav1.OwnerReference) bool) error {
	refs := live.GetOwnerReferences()
	kept := []metav1.OwnerReference{}
	for i := range refs {
		if !drop(&refs[i]) {
			kept = append(kept, refs[i])
		}
	}
	if len(kept) == len(refs) {
		return nil
	}
	return g.patch(ctx, n, live, metadataPatch{OwnerReferences: &kept})
}

// unblockOwners makes an object hold back none of its owners.
func (g *Controller) unblockOwners(ctx context.Context, n *node, live client.Object) error {
	refs := slices.Clone(live.GetOwnerReferences())
	blocking := false
	for i := range refs {
		if blocks(&refs[i]) {
			refs[i].BlockOwnerDeletion, blocking = ptr.To(false), true
		}
	}
	if !blocking {
		return nil
	}
	return g.patch(ctx, n, live, metadataPatch{OwnerReferences: &refs})
}

func (g *Controller) dropFinalizer(ctx context.Context, n *node, finalizer string) error {
	live, err := g.live(ctx, n)
	if err != nil || live == nil {
		return err
	}
	kept := slices.DeleteFunc(slices.Clone(live.GetFinalizers()), func(f string) bool { return f == finalizer })
	if len(kept) == len(live.GetFinalizers()) {
		return nil
	}
	return g.patch(ctx, n, live, metadataPatch{Finalizers: &kept})
}
