// Package volumeattributesclass keeps a VolumeAttributesClass that is being
// deleted until no claim and no volume names it (KEP-3751).
package volumeattributesclass

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	finalizer = "kubernetes.io/vac-protection"
	byClass   = "volume attributes class"
)

// Controller puts the finalizer on classes and takes it away.
type Controller struct {
	loop    *controllers.Loop
	classes *client.Informer[*storagev1.VolumeAttributesClass]
	claims  *client.Informer[*corev1.PersistentVolumeClaim]
	volumes *client.Informer[*corev1.PersistentVolume]
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	v := &Controller{
		classes: client.Shared[*storagev1.VolumeAttributesClass](c.Cache),
		claims:  client.Shared[*corev1.PersistentVolumeClaim](c.Cache),
		volumes: client.Shared[*corev1.PersistentVolume](c.Cache),
	}
	v.loop = controllers.NewLoop("vacprotection", c, v.reconcile)
	v.classes.OnChange(func(_, class *storagev1.VolumeAttributesClass) {
		if class != nil {
			v.loop.EnqueueObject(class)
		}
	})
	v.claims.AddIndex(byClass, ofClaim)
	v.claims.OnChange(func(old, _ *corev1.PersistentVolumeClaim) {
		if old != nil {
			v.enqueue(ofClaim(old))
		}
	})
	v.volumes.AddIndex(byClass, ofVolume)
	v.volumes.OnChange(func(old, _ *corev1.PersistentVolume) {
		if old != nil {
			v.enqueue(ofVolume(old))
		}
	})
	return v
}

// Run works until ctx ends.
func (v *Controller) Run(ctx context.Context) error { return v.loop.Run(ctx) }

func (v *Controller) enqueue(classes []string) {
	for _, name := range classes {
		v.loop.Enqueue(controllers.Key{Name: name})
	}
}

// ofClaim names the classes that a claim wants, has and is on the way to.
func ofClaim(claim *corev1.PersistentVolumeClaim) []string {
	var names []string
	add := func(name *string) {
		if name != nil && *name != "" && !slices.Contains(names, *name) {
			names = append(names, *name)
		}
	}
	add(claim.Spec.VolumeAttributesClassName)
	add(claim.Status.CurrentVolumeAttributesClassName)
	if m := claim.Status.ModifyVolumeStatus; m != nil {
		add(&m.TargetVolumeAttributesClassName)
	}
	return names
}

func ofVolume(volume *corev1.PersistentVolume) []string {
	if name := volume.Spec.VolumeAttributesClassName; name != nil && *name != "" {
		return []string{*name}
	}
	return nil
}

func (v *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	class, ok := v.classes.Cached("", key.Name)
	if !ok || (class.DeletionTimestamp != nil) != slices.Contains(class.Finalizers, finalizer) {
		return controllers.Result{}, nil
	}
	next := class.DeepCopy()
	switch {
	case class.DeletionTimestamp == nil:
		next.Finalizers = append(next.Finalizers, finalizer)
	case len(v.claims.ByIndex(byClass, key.Name)) > 0 || len(v.volumes.ByIndex(byClass, key.Name)) > 0:
		return controllers.Result{}, nil
	default:
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == finalizer })
	}
	_, err := v.classes.Update(ctx, next)
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return controllers.Result{}, err
}
