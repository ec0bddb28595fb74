package attachdetach

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"proa/internal/controllers"
)

// reconcileNode tells a node what is attached to it.
func (a *Controller) reconcileNode(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	node, ok := a.nodes.Cached("", key.Name)
	if !ok || !managed(node) {
		return controllers.Result{}, nil
	}
	attached := a.attachedTo(node)
	if equality.Semantic.DeepEqual(attached, node.Status.VolumesAttached) {
		return controllers.Result{}, nil
	}
	patch := map[string]any{"status": map[string]any{"volumesAttached": attached}}
	if _, err := a.nodes.MergePatch(ctx, "", node.Name, patch, "status"); err != nil && !apierrors.IsNotFound(err) {
		return controllers.Result{}, fmt.Errorf("tell node %s what is attached: %w", node.Name, err)
	}
	return controllers.Result{}, nil
}

// believes says whether a node was told that a volume is attached, and so may
// mount it.
func (a *Controller) believes(name string, csi *corev1.CSIPersistentVolumeSource) bool {
	node, ok := a.nodes.Cached("", name)
	return ok && managed(node) && slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool {
		return v.Name == uniqueName(csi)
	})
}

// attachedTo is what a node may mount, ordered by name: what is attached and
// neither being detached nor about to be.
func (a *Controller) attachedTo(node *corev1.Node) []corev1.AttachedVolume {
	var all []corev1.AttachedVolume
	for _, va := range a.attachments.ByIndex(byNode, node.Name) {
		going := false
		a.remembered(place{volumeOf(va), node.Name}, func(m *memory) { going = m.going })
		if !va.Status.Attached || va.DeletionTimestamp != nil || going {
			continue
		}
		if csi := a.csiNamed(volumeOf(va)); csi != nil {
			all = append(all, corev1.AttachedVolume{Name: uniqueName(csi)})
		}
	}
	slices.SortFunc(all, func(x, y corev1.AttachedVolume) int { return cmp.Compare(x.Name, y.Name) })
	return all
}
