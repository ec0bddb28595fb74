package volume

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"proa/internal/client"
	"proa/internal/controllers"
)

// EphemeralClaims makes the claims of pods' generic ephemeral volumes. A claim
// belongs to its pod and goes with it.
type EphemeralClaims struct {
	loop   *controllers.Loop
	pods   *client.Informer[*corev1.Pod]
	claims *client.Informer[*corev1.PersistentVolumeClaim]
	events controllers.EventRecorder

	created, failed prometheus.Counter
}

// NewEphemeralClaims returns what makes them.
func NewEphemeralClaims(c controllers.Config) *EphemeralClaims {
	e := &EphemeralClaims{
		pods:   client.Shared[*corev1.Pod](c.Cache),
		claims: client.Shared[*corev1.PersistentVolumeClaim](c.Cache),
		events: c.Events("ephemeral_volume"),

		created: prometheus.NewCounter(prometheus.CounterOpts{Name: "ephemeral_volume_controller_create_total", Help: "[ALPHA] Number of PersistentVolumeClaim creation requests"}),
		failed:  prometheus.NewCounter(prometheus.CounterOpts{Name: "ephemeral_volume_controller_create_failures_total", Help: "[ALPHA] Number of PersistentVolumeClaim creation requests that failed"}),
	}
	c.Register(e.created, e.failed)
	e.loop = controllers.NewLoop("ephemeral_volume", c, e.reconcile)
	e.pods.AddIndex(byPodUsed, usedClaims)
	e.pods.OnChange(func(_, pod *corev1.Pod) {
		if pod != nil && hasEphemeral(pod) {
			e.loop.EnqueueObject(pod)
		}
	})
	e.claims.OnChange(func(old, claim *corev1.PersistentVolumeClaim) {
		if claim != nil {
			return
		}
		for _, pod := range e.pods.ByIndex(byPodUsed, claimKey(old)) {
			e.loop.EnqueueObject(pod)
		}
	})
	return e
}

// Run works until ctx ends. The cache must have synced.
func (e *EphemeralClaims) Run(ctx context.Context) error { return e.loop.Run(ctx) }

func hasEphemeral(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return false
}

func (e *EphemeralClaims) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	pod, ok := e.pods.Cached(key.Namespace, key.Name)
	if !ok || pod.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Ephemeral != nil {
			if err := e.ensure(ctx, pod, v); err != nil {
				e.events.Event(pod, corev1.EventTypeWarning, "FailedBinding", fmt.Sprintf("ephemeral volume %s: %s", v.Name, err))
				return controllers.Result{}, err
			}
		}
	}
	return controllers.Result{}, nil
}

func (e *EphemeralClaims) ensure(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	name := ephemeral.VolumeClaimName(pod, v)
	if claim, ok := e.claims.Cached(pod.Namespace, name); ok {
		return ephemeral.VolumeIsForPod(pod, claim)
	}
	template := v.Ephemeral.VolumeClaimTemplate
	yes := true
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: pod.Namespace, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	_, err := e.claims.Create(ctx, claim.DeepCopy())
	e.created.Inc()
	if err != nil {
		e.failed.Inc()
		return fmt.Errorf("create PVC %s: %w", name, err)
	}
	return nil
}
