package admission

import (
	"context"
	"errors"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

var (
	storageClasses    = schema.GroupResource{Group: storagev1.GroupName, Resource: "storageclasses"}
	attributesClasses = schema.GroupResource{Group: storagev1.GroupName, Resource: "volumeattributesclasses"}
)

const (
	defaultClass     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"
)

// DefaultStorageClass gives claims that name no class the default one.
type DefaultStorageClass struct{ Store *store.Store }

func (DefaultStorageClass) Name() string { return "DefaultStorageClass" }

func (p DefaultStorageClass) Admit(_ context.Context, a *Attributes) error {
	if !a.is(admissionv1.Create, claims) {
		return nil
	}
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	if !ok || hasClass(claim) {
		return nil
	}
	defaults := slices.DeleteFunc(all[*storagev1.StorageClass](p.Store.Snapshot(), storageClasses, ""), func(c *storagev1.StorageClass) bool {
		return c.Annotations[defaultClass] != "true" && c.Annotations[betaDefaultClass] != "true"
	})
	if class, ok := newest(defaults); ok {
		name := class.Name
		claim.Spec.StorageClassName = &name
	}
	return nil
}

func hasClass(claim *corev1.PersistentVolumeClaim) bool {
	_, beta := claim.Annotations[corev1.BetaStorageClassAnnotation]
	return beta || claim.Spec.StorageClassName != nil
}

// className is the class of a claim, "" for none.
func className(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// StorageObjectInUseProtection keeps claims, volumes and attribute classes until
// nothing uses them.
type StorageObjectInUseProtection struct{}

func (StorageObjectInUseProtection) Name() string { return "StorageObjectInUseProtection" }

func (StorageObjectInUseProtection) Admit(_ context.Context, a *Attributes) error {
	finalizer := ""
	switch {
	case a.is(admissionv1.Create, claims):
		finalizer = "kubernetes.io/pvc-protection"
	case a.is(admissionv1.Create, volumes):
		finalizer = "kubernetes.io/pv-protection"
	case a.is(admissionv1.Create, attributesClasses):
		finalizer = "kubernetes.io/vac-protection"
	default:
		return nil
	}
	if list := a.Object.GetFinalizers(); !slices.Contains(list, finalizer) {
		a.Object.SetFinalizers(append(list, finalizer))
	}
	return nil
}

// PersistentVolumeClaimResize lets a claim grow only where its class allows it.
type PersistentVolumeClaimResize struct{ Store *store.Store }

func (PersistentVolumeClaimResize) Name() string { return "PersistentVolumeClaimResize" }

func (p PersistentVolumeClaimResize) Validate(_ context.Context, a *Attributes) error {
	if !a.is(admissionv1.Update, claims) {
		return nil
	}
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	old, okOld := a.OldObject.(*corev1.PersistentVolumeClaim)
	if !ok || !okOld {
		return nil
	}
	size, was := claim.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(was) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return a.forbidden(errors.New("Only bound persistent volume claims can be expanded"))
	}
	name := className(claim)
	class, err := find[*storagev1.StorageClass](p.Store.Snapshot(), storageClasses, "", name)
	if name == "" || name != className(old) || err != nil || class.AllowVolumeExpansion == nil || !*class.AllowVolumeExpansion {
		return a.forbidden(errors.New("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
	}
	return nil
}
