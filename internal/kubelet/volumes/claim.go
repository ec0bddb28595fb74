package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

// claim is what a volume's PersistentVolumeClaim is bound to.
type claim struct {
	path     string
	block    bool
	readOnly bool
}

// setUpClaim finds the volume behind a claim and checks that this pod may use it
// here. The node uses local and hostPath volumes in place.
func (m *Manager) setUpClaim(ctx context.Context, pv *podVolumes, pod *corev1.Pod, v *corev1.Volume) error {
	name, readOnly := ephemeral.VolumeClaimName(pod, v), false
	if s := v.PersistentVolumeClaim; s != nil {
		name, readOnly = s.ClaimName, s.ReadOnly
	}
	pvc, err := m.boundClaim(ctx, pod, v, name)
	if err != nil {
		return fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, name, err)
	}
	volume, err := m.boundVolume(ctx, pvc)
	if err != nil {
		return fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, name, err)
	}
	if err := m.checkAffinity(volume); err != nil {
		return fmt.Errorf("MountVolume.NodeAffinity check failed for volume %q : %w", volume.Name, err)
	}
	c := &claim{readOnly: readOnly || onlyReads(pvc)}
	c.block = ptr.Deref(volume.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
	switch s := &volume.Spec.PersistentVolumeSource; {
	case s.Local != nil:
		c.path = s.Local.Path
	case s.HostPath != nil:
		c.path = s.HostPath.Path
		if err := checkHostPath(s.HostPath); err != nil {
			return err
		}
	default:
		return fmt.Errorf("no volume plugin matched: persistent volume %q is of a kind that is not supported by this node", volume.Name)
	}
	if err := m.useInPlace(pv, pod, v, volume, c); err != nil {
		return err
	}
	pv.claims[v.Name] = c
	return nil
}

func (m *Manager) useInPlace(pv *podVolumes, pod *corev1.Pod, v *corev1.Volume, volume *corev1.PersistentVolume, c *claim) error {
	if err := m.makeLocal(c.path); err != nil {
		return err
	}
	info, err := os.Stat(c.path)
	if volume.Spec.HostPath != nil && errors.Is(err, os.ErrNotExist) && !c.block {
		return nil // the container runtime makes the directory
	}
	if err != nil {
		return fmt.Errorf("path %q does not exist: %w", c.path, err)
	}
	device := info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0
	switch {
	case c.block && !device:
		return fmt.Errorf("path %q of volume %q is not a block device", c.path, volume.Name)
	case !c.block && device:
		return fmt.Errorf("path %q of volume %q is a block device: a volume of mode Filesystem needs a directory", c.path, volume.Name)
	}
	first := pv.claims[v.Name] == nil
	if first && volume.Spec.Local != nil && !c.block && !c.readOnly {
		return own(c.path, pod, false)
	}
	return nil
}

func (m *Manager) boundClaim(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, name string) (*corev1.PersistentVolumeClaim, error) {
	obj, err := m.api.Get(ctx, client.Ref{
		Resource:  corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
		Namespace: pod.Namespace, Name: name,
	}, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	pvc, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil, fmt.Errorf("unexpected %T", obj)
	}
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, pvc); err != nil {
			return nil, err
		}
	}
	if pvc.DeletionTimestamp != nil && pod.DeletionTimestamp == nil {
		return nil, errors.New("PVC is being deleted")
	}
	if pvc.Status.Phase != corev1.ClaimBound || pvc.Spec.VolumeName == "" {
		return nil, errors.New("PVC is not bound")
	}
	return pvc, nil
}

func (m *Manager) boundVolume(ctx context.Context, pvc *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	obj, err := m.api.Get(ctx, client.Ref{
		Resource: corev1.SchemeGroupVersion.WithResource("persistentvolumes"), Name: pvc.Spec.VolumeName,
	}, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("failed to fetch PV %s from API server: %w", pvc.Spec.VolumeName, err)
	}
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return nil, fmt.Errorf("unexpected %T", obj)
	}
	switch ref := pv.Spec.ClaimRef; {
	case ref == nil:
		return nil, fmt.Errorf("found PV object %s with nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", pv.Name)
	case ref.UID != pvc.UID:
		return nil, fmt.Errorf("found PV object %s with pv.Spec.ClaimRef.UID %s but expected %s", pv.Name, ref.UID, pvc.UID)
	}
	return pv, nil
}

func (m *Manager) checkAffinity(pv *corev1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil {
		return nil
	}
	node, err := m.node()
	if err != nil {
		return err
	}
	return storagehelpers.CheckNodeAffinity(pv, node.Labels)
}

func onlyReads(pvc *corev1.PersistentVolumeClaim) bool {
	modes := pvc.Spec.AccessModes
	return len(modes) == 1 && slices.Contains(modes, corev1.ReadOnlyMany)
}
