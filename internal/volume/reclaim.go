package volume

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// syncVolume sets a volume's phase from the claim it refers to, and reclaims it
// when that claim has gone.
func (b *binder) syncVolume(ctx context.Context, volume *corev1.PersistentVolume) error {
	volume, err := b.guard(ctx, volume)
	if err != nil {
		return err
	}
	ref := volume.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return b.setVolumePhase(ctx, volume, corev1.VolumeAvailable, "")
	}
	claim, err := b.claimOf(ctx, ref)
	if err != nil {
		return err
	}
	switch {
	case claim == nil:
		return b.release(ctx, volume)
	case claim.Spec.VolumeName == "":
		if storagehelpers.CheckVolumeModeMismatches(&claim.Spec, &volume.Spec) {
			const message = "Cannot bind PersistentVolume to requested PersistentVolumeClaim due to incompatible volumeMode"
			b.events.Event(volume, corev1.EventTypeWarning, "VolumeMismatch", message)
			b.events.Event(claim, corev1.EventTypeWarning, "VolumeMismatch", message)
			return nil
		}
		b.loop.EnqueueObject(claim)
		return nil
	case claim.Spec.VolumeName == volume.Name:
		return b.setVolumePhase(ctx, volume, corev1.VolumeBound, "")
	}
	// The claim is bound elsewhere. A volume made for it is of no more use;
	// any other becomes free again.
	if metav1.HasAnnotation(volume.ObjectMeta, storagehelpers.AnnDynamicallyProvisioned) &&
		volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return b.release(ctx, volume)
	}
	return b.unbind(ctx, volume)
}

// guard keeps the finalizer of a volume that is made here to what its reclaim policy
// says now (KEP-2644).
func (b *binder) guard(ctx context.Context, volume *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	const finalizer = storagehelpers.PVDeletionInTreeProtectionFinalizer
	has := slices.Contains(volume.Finalizers, finalizer)
	wants := volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	made := volume.Annotations[storagehelpers.AnnDynamicallyProvisioned] == LocalPathProvisioner
	if !made || has == wants || wants && volume.DeletionTimestamp != nil {
		return volume, nil
	}
	want := volume.DeepCopy()
	if wants {
		want.Finalizers = append(want.Finalizers, finalizer)
	} else {
		want.Finalizers = slices.DeleteFunc(want.Finalizers, func(f string) bool { return f == finalizer })
	}
	return b.volumes.Update(ctx, want)
}

// claimOf returns nil when the claim is gone, or another one of its name exists.
// The volume's fate depends on it, so absence is checked with the API.
func (b *binder) claimOf(ctx context.Context, ref *corev1.ObjectReference) (*corev1.PersistentVolumeClaim, error) {
	claim, ok := b.claims.Cached(ref.Namespace, ref.Name)
	if !ok {
		fresh, err := b.claims.Get(ctx, ref.Namespace, ref.Name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		claim = fresh
	}
	if claim.UID != ref.UID {
		return nil, nil
	}
	return claim, nil
}

func (b *binder) release(ctx context.Context, volume *corev1.PersistentVolume) error {
	if volume.Status.Phase != corev1.VolumeReleased && volume.Status.Phase != corev1.VolumeFailed {
		if err := b.setVolumePhase(ctx, volume, corev1.VolumeReleased, ""); err != nil {
			return err
		}
		var ok bool
		if volume, ok = b.volumes.Cached("", volume.Name); !ok {
			return nil
		}
	}
	switch volume.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimDelete:
		if volume.Annotations[storagehelpers.AnnDynamicallyProvisioned] == LocalPathProvisioner {
			return b.deleteLocal(ctx, volume)
		}
		return nil // its provisioner deletes it
	case corev1.PersistentVolumeReclaimRecycle:
		if volume.Status.Phase != corev1.VolumeFailed {
			b.events.Event(volume, corev1.EventTypeWarning, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
		}
		return b.setVolumePhase(ctx, volume, corev1.VolumeFailed, "No recycler plugin found for the volume!")
	}
	return nil // Retain: an administrator decides
}

// unbind undoes a binding: wholly when the controller made it, to a reference by
// name when a user did.
func (b *binder) unbind(ctx context.Context, volume *corev1.PersistentVolume) error {
	want := volume.DeepCopy()
	if metav1.HasAnnotation(volume.ObjectMeta, storagehelpers.AnnBoundByController) {
		want.Spec.ClaimRef = nil
		delete(want.Annotations, storagehelpers.AnnBoundByController)
	} else {
		want.Spec.ClaimRef.UID = ""
	}
	updated, err := b.volumes.Update(ctx, want)
	if err != nil {
		return err
	}
	return b.setVolumePhase(ctx, updated, corev1.VolumeAvailable, "")
}

func (b *binder) setVolumePhase(ctx context.Context, volume *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) error {
	if volume.Status.Phase == phase && volume.Status.Message == message {
		return nil
	}
	want := volume.DeepCopy()
	want.Status.Phase, want.Status.Message = phase, message
	if _, err := b.volumes.UpdateStatus(ctx, want); err != nil {
		return fmt.Errorf("set phase of volume %s to %s: %w", volume.Name, phase, err)
	}
	return nil
}
