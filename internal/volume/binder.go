package volume

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/controllers"
)

// binder reconciles claims (keys with a namespace) and volumes (keys without).
type binder struct {
	loop    *controllers.Loop
	claims  *client.Informer[*corev1.PersistentVolumeClaim]
	volumes *client.Informer[*corev1.PersistentVolume]
	classes *client.Informer[*storagev1.StorageClass]
	pods    *client.Informer[*corev1.Pod]
	nodes   *client.Informer[*corev1.Node]
	events  controllers.EventRecorder
	local   LocalPath
	measure *measures
}

func newBinder(c controllers.Config, local LocalPath) *binder {
	b := &binder{
		claims:  client.Shared[*corev1.PersistentVolumeClaim](c.Cache),
		volumes: client.Shared[*corev1.PersistentVolume](c.Cache),
		classes: client.Shared[*storagev1.StorageClass](c.Cache),
		pods:    client.Shared[*corev1.Pod](c.Cache),
		nodes:   client.Shared[*corev1.Node](c.Cache),
		events:  c.Events(component),
		local:   local,
	}
	b.measure = newMeasures(b)
	c.Register(b.measure, b.measure.defaulted, b.measure.failed)
	c.Workers = 1
	b.loop = controllers.NewLoop("claims", c, b.reconcile)
	b.volumes.AddIndex(byClaim, func(v *corev1.PersistentVolume) []string { return []string{referredClaim(v)} })
	b.volumes.AddIndex(byClass, func(v *corev1.PersistentVolume) []string {
		if v.Spec.ClaimRef != nil {
			return nil
		}
		return []string{storagehelpers.GetPersistentVolumeClass(v)}
	})
	b.claims.AddIndex(unbound, func(c *corev1.PersistentVolumeClaim) []string {
		if isBindCompleted(c) {
			return nil
		}
		return []string{storagehelpers.GetPersistentVolumeClaimClass(c)}
	})
	b.pods.AddIndex(byPodUsed, usedClaims)
	b.watch()
	return b
}

func (b *binder) watch() {
	b.claims.OnChange(func(old, c *corev1.PersistentVolumeClaim) {
		if c != nil {
			b.loop.EnqueueObject(c)
			old = c
		}
		if old.Spec.VolumeName != "" {
			b.loop.Enqueue(controllers.Key{Name: old.Spec.VolumeName})
		}
		for _, v := range b.volumes.ByIndex(byClaim, claimKey(old)) {
			b.loop.EnqueueObject(v)
		}
	})
	b.volumes.OnChange(func(old, v *corev1.PersistentVolume) {
		if v != nil {
			b.loop.EnqueueObject(v)
			old = v
		}
		if ref := old.Spec.ClaimRef; ref != nil {
			b.loop.Enqueue(controllers.Key{Namespace: ref.Namespace, Name: ref.Name})
			return
		}
		b.enqueueWaiting(storagehelpers.GetPersistentVolumeClass(old))
	})
	b.classes.OnChange(func(old, c *storagev1.StorageClass) {
		if c == nil {
			c = old
		}
		b.enqueueWaiting(c.Name)
		b.enqueueWaiting("") // it may have become the default
	})
}

func (b *binder) enqueueWaiting(class string) {
	for _, c := range b.claims.ByIndex(unbound, class) {
		b.loop.EnqueueObject(c)
	}
}

func (b *binder) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	if key.Namespace == "" {
		volume, ok := b.volumes.Cached("", key.Name)
		if !ok {
			return controllers.Result{}, nil
		}
		return controllers.Result{}, ignoreStale(b.syncVolume(ctx, volume))
	}
	claim, ok := b.claims.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	if isBindCompleted(claim) {
		return controllers.Result{}, ignoreStale(b.syncBound(ctx, claim))
	}
	return controllers.Result{}, ignoreStale(b.syncUnbound(ctx, claim))
}

// syncUnbound looks for a volume, as the claim's spec.volumeName, class, size,
// modes and selector say.
func (b *binder) syncUnbound(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName != "" {
		return b.syncPrebound(ctx, claim)
	}
	claim, err := b.assignDefaultClass(ctx, claim)
	if err != nil {
		return err
	}
	delayed := b.delayed(claim)
	volume, err := storagehelpers.FindMatchingVolume(claim, b.candidates(claim), nil, nil, delayed, true)
	if err != nil {
		return fmt.Errorf("find volume for claim %s: %w", claimKey(claim), err)
	}
	if volume != nil {
		return b.bind(ctx, volume, claim)
	}
	class := storagehelpers.GetPersistentVolumeClaimClass(claim)
	switch {
	case delayed && !storagehelpers.IsDelayBindingProvisioning(claim):
		b.eventWaiting(claim)
	case class != "":
		if err := b.provision(ctx, claim, class); err != nil {
			return err
		}
	default:
		b.events.Event(claim, corev1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	}
	return b.setClaimStatus(ctx, claim, corev1.ClaimPending, nil)
}

// candidates are the volumes that refer to the claim and the free ones of its
// class, with the access modes it asks for.
func (b *binder) candidates(claim *corev1.PersistentVolumeClaim) []*corev1.PersistentVolume {
	all := b.volumes.ByIndex(byClaim, claimKey(claim))
	all = append(all, b.volumes.ByIndex(byClass, storagehelpers.GetPersistentVolumeClaimClass(claim))...)
	return slices.DeleteFunc(all, func(v *corev1.PersistentVolume) bool { return !storagehelpers.CheckAccessModes(claim, v) })
}

func (b *binder) delayed(claim *corev1.PersistentVolumeClaim) bool {
	class, ok := b.classes.Cached("", storagehelpers.GetPersistentVolumeClaimClass(claim))
	return ok && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
}

func (b *binder) eventWaiting(claim *corev1.PersistentVolumeClaim) {
	for _, pod := range b.pods.ByIndex(byPodUsed, claimKey(claim)) {
		if pod.DeletionTimestamp == nil && pod.Spec.NodeName == "" {
			b.events.Event(claim, corev1.EventTypeNormal, "WaitForPodScheduled", fmt.Sprintf("waiting for pod %s to be scheduled", pod.Name))
			return
		}
	}
	b.events.Event(claim, corev1.EventTypeNormal, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
}

// assignDefaultClass gives a claim that was made when there was no default class
// the one there is now (KEP-3333).
func (b *binder) assignDefaultClass(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	if storagehelpers.PersistentVolumeClaimHasClass(claim) {
		return claim, nil
	}
	class := defaultClass(b.classes.Select("", labels.Everything()))
	if class == nil {
		return claim, nil
	}
	claim = claim.DeepCopy()
	claim.Spec.StorageClassName = &class.Name
	claim, err := b.claims.Update(ctx, claim)
	if err != nil {
		b.measure.failed.Inc()
		return claim, err
	}
	b.measure.defaulted.Inc()
	return claim, nil
}

// syncPrebound handles a claim that names its volume.
func (b *binder) syncPrebound(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	volume, ok := b.volumes.Cached("", claim.Spec.VolumeName)
	switch {
	case !ok:
		return b.setClaimStatus(ctx, claim, corev1.ClaimPending, nil)
	case volume.Spec.ClaimRef == nil:
		if err := satisfies(volume, claim); err != nil {
			b.events.Event(claim, corev1.EventTypeWarning, "VolumeMismatch", fmt.Sprintf("Cannot bind to requested volume %q: %s", volume.Name, err))
			return b.setClaimStatus(ctx, claim, corev1.ClaimPending, nil)
		}
		return b.bind(ctx, volume, claim)
	case storagehelpers.IsVolumeBoundToClaim(volume, claim):
		return b.bind(ctx, volume, claim)
	}
	b.events.Event(claim, corev1.EventTypeWarning, "FailedBinding", fmt.Sprintf("volume %q already bound to a different claim.", volume.Name))
	return b.setClaimStatus(ctx, claim, corev1.ClaimPending, nil)
}

// satisfies checks what even a claim that names its volume must meet.
func satisfies(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	has := volume.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case volume.DeletionTimestamp != nil:
		return fmt.Errorf("the volume is marked for deletion %q", volume.Name)
	case has.Cmp(requested) < 0:
		return fmt.Errorf("requested PV is too small")
	case storagehelpers.GetPersistentVolumeClass(volume) != storagehelpers.GetPersistentVolumeClaimClass(claim):
		return fmt.Errorf("storageClassName does not match")
	case ptr.Deref(volume.Spec.VolumeAttributesClassName, "") != ptr.Deref(claim.Spec.VolumeAttributesClassName, ""):
		return fmt.Errorf("volumeAttributesClassName does not match")
	case storagehelpers.CheckVolumeModeMismatches(&claim.Spec, &volume.Spec):
		return fmt.Errorf("incompatible volumeMode")
	case !storagehelpers.CheckAccessModes(claim, volume):
		return fmt.Errorf("incompatible accessMode")
	}
	return nil
}

// syncBound checks that a claim that was bound once still has its volume.
func (b *binder) syncBound(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName == "" {
		return b.lose(ctx, claim, "ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	volume, ok := b.volumes.Cached("", claim.Spec.VolumeName)
	switch {
	case !ok:
		return b.lose(ctx, claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case volume.Spec.ClaimRef == nil, volume.Spec.ClaimRef.UID == claim.UID:
		return b.bind(ctx, volume, claim)
	}
	return b.lose(ctx, claim, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
}

func (b *binder) lose(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason, message string) error {
	if claim.Status.Phase == corev1.ClaimLost {
		return nil
	}
	b.events.Event(claim, corev1.EventTypeWarning, reason, message)
	return b.setClaimStatus(ctx, claim, corev1.ClaimLost, nil)
}

// bind points volume and claim at each other, in four writes that can each be
// the last before a crash: the volume first, because only that keeps others off.
func (b *binder) bind(ctx context.Context, volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	bound, dirty, err := storagehelpers.GetBindVolumeToClaim(volume, claim)
	if err != nil {
		return err
	}
	if dirty {
		if volume, err = b.volumes.Update(ctx, bound); err != nil {
			return err
		}
	}
	if err := b.setVolumePhase(ctx, volume, corev1.VolumeBound, ""); err != nil {
		return err
	}
	want := claim.DeepCopy()
	if want.Spec.VolumeName != volume.Name {
		want.Spec.VolumeName = volume.Name
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, storagehelpers.AnnBoundByController, "yes")
	}
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, storagehelpers.AnnBindCompleted, "yes")
	if want.Spec.VolumeName != claim.Spec.VolumeName || !maps.Equal(want.Annotations, claim.Annotations) {
		if claim, err = b.claims.Update(ctx, want); err != nil {
			return err
		}
	}
	return b.setClaimStatus(ctx, claim, corev1.ClaimBound, volume)
}

// setClaimStatus writes phase and, when bound, what the volume gives.
func (b *binder) setClaimStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase, volume *corev1.PersistentVolume) error {
	want := claim.DeepCopy()
	want.Status.Phase = phase
	if volume == nil {
		want.Status.AccessModes, want.Status.Capacity = nil, nil
	} else {
		want.Status.AccessModes = volume.Spec.AccessModes
		// After the first binding the capacity is the resizer's to change.
		if claim.Status.Phase != phase || want.Status.Capacity == nil {
			want.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: volume.Spec.Capacity[corev1.ResourceStorage]}
		}
		if want.Status.CurrentVolumeAttributesClassName == nil && phase != claim.Status.Phase {
			want.Status.CurrentVolumeAttributesClassName = volume.Spec.VolumeAttributesClassName
		}
	}
	if claim.Status.Phase == phase && slices.Equal(want.Status.AccessModes, claim.Status.AccessModes) &&
		len(want.Status.Capacity) == len(claim.Status.Capacity) {
		return nil
	}
	_, err := b.claims.UpdateStatus(ctx, want)
	return err
}
