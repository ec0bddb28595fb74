// Package volumeexpand tells of claims that want to grow: whoever provides their
// volumes has to expand them, since no kind of volume is expanded from here.
package volumeexpand

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/client"
	"proa/internal/controllers"
)

// Controller writes events.
type Controller struct {
	loop    *controllers.Loop
	claims  *client.Informer[*corev1.PersistentVolumeClaim]
	volumes *client.Informer[*corev1.PersistentVolume]
	events  controllers.EventRecorder
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	e := &Controller{
		claims:  client.Shared[*corev1.PersistentVolumeClaim](c.Cache),
		volumes: client.Shared[*corev1.PersistentVolume](c.Cache),
		events:  c.Events("volume_expand"),
	}
	e.loop = controllers.NewLoop("volume_expand", c, e.reconcile)
	e.claims.OnChange(func(old, claim *corev1.PersistentVolumeClaim) {
		if claim != nil && grows(claim) && (old == nil || !grows(old) || wanted(old) != wanted(claim)) {
			e.loop.EnqueueObject(claim)
		}
	})
	return e
}

// Run works until ctx ends.
func (e *Controller) Run(ctx context.Context) error { return e.loop.Run(ctx) }

func wanted(claim *corev1.PersistentVolumeClaim) int64 {
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return size.Value()
}

// grows tells that a bound claim asks for more than it has.
func grows(claim *corev1.PersistentVolumeClaim) bool {
	have := claim.Status.Capacity[corev1.ResourceStorage]
	return claim.Status.Phase == corev1.ClaimBound && wanted(claim) > have.Value()
}

func (e *Controller) reconcile(_ context.Context, key controllers.Key) (controllers.Result, error) {
	claim, ok := e.claims.Cached(key.Namespace, key.Name)
	if !ok || !grows(claim) {
		return controllers.Result{}, nil
	}
	volume, ok := e.volumes.Cached("", claim.Spec.VolumeName)
	if !ok {
		return controllers.Result{}, fmt.Errorf("failed to get PV %q: not there", claim.Spec.VolumeName)
	}
	if ref := volume.Spec.ClaimRef; ref == nil || ref.Namespace != claim.Namespace || ref.UID != claim.UID {
		return controllers.Result{}, fmt.Errorf("persistent Volume is not bound to PVC being updated : %s", key)
	}
	kind := corev1.EventTypeWarning // a volume that nobody can be expected to expand
	if volume.Spec.CSI != nil || volume.Spec.FlexVolume != nil {
		kind = corev1.EventTypeNormal
	}
	e.events.Event(claim, kind, "ExternalExpanding", "waiting for an external controller to expand this PVC")
	return controllers.Result{}, nil
}
