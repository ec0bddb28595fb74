// Package endpoints keeps the Endpoints of every Service with a selector, for
// the clients that do not read EndpointSlices yet.
package endpoints

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	endpointsliceutil "k8s.io/endpointslice/util"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	managedByLabel = "endpoints.kubernetes.io/managed-by"
	managedBy      = "endpoint-controller"
	overCapacity   = "truncated"

	conflictWait = 20 * time.Millisecond
)

// Controller keeps Endpoints in step with Services and Pods.
type Controller struct {
	loop      *controllers.Loop
	services  *client.Informer[*corev1.Service]
	pods      *client.Informer[*corev1.Pod]
	endpoints *client.Informer[*corev1.Endpoints]
	triggers  *endpointsliceutil.TriggerTimeTracker
	events    controllers.EventRecorder
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	e := &Controller{
		services:  client.Shared[*corev1.Service](c.Cache),
		pods:      client.Shared[*corev1.Pod](c.Cache),
		endpoints: client.Shared[*corev1.Endpoints](c.Cache),
		triggers:  endpointsliceutil.NewTriggerTimeTracker(),
		events:    c.Events("endpoint-controller"),
	}
	e.loop = controllers.NewLoop("endpoint", c, e.reconcile)
	e.services.OnChange(func(old, svc *corev1.Service) {
		if svc == nil {
			svc = old
		}
		e.loop.EnqueueObject(svc)
	})
	e.pods.OnChange(e.podChanged)
	e.endpoints.OnChange(e.endpointsChanged)
	return e
}

// Run works until ctx ends.
func (e *Controller) Run(ctx context.Context) error { return e.loop.Run(ctx) }

// podChanged asks for the Services that select the pod as it was or is.
func (e *Controller) podChanged(old, pod *corev1.Pod) {
	switch {
	case old == nil:
		e.enqueueSelecting(pod)
	case pod == nil:
		e.enqueueSelecting(old)
	case matters(old, pod):
		e.enqueueSelecting(pod)
		if !maps.Equal(old.Labels, pod.Labels) {
			e.enqueueSelecting(old)
		}
	}
}

func matters(old, pod *corev1.Pod) bool {
	return !maps.Equal(old.Labels, pod.Labels) ||
		(old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) ||
		old.Status.Phase != pod.Status.Phase ||
		endpointsliceutil.IsPodReady(old) != endpointsliceutil.IsPodReady(pod) ||
		!equality.Semantic.DeepEqual(old.Status.PodIPs, pod.Status.PodIPs) ||
		old.Spec.NodeName != pod.Spec.NodeName
}

func (e *Controller) enqueueSelecting(pod *corev1.Pod) {
	for _, svc := range e.services.Select(pod.Namespace, labels.Everything()) {
		if svc.Spec.Selector != nil && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			e.loop.EnqueueObject(svc)
		}
	}
}

// endpointsChanged notices Endpoints that somebody else changed or deleted, and
// ours whose Service went while nobody looked.
func (e *Controller) endpointsChanged(old, ep *corev1.Endpoints) {
	if ep == nil {
		ep = old
	}
	if ep.Labels[managedByLabel] == managedBy || old != nil && old.Labels[managedByLabel] == managedBy {
		e.loop.EnqueueObject(ep)
	}
}

func (e *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	svc, ok := e.services.Cached(key.Namespace, key.Name)
	if !ok {
		e.triggers.DeleteService(key.Namespace, key.Name)
		return controllers.Result{}, e.remove(ctx, key)
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.Selector == nil {
		return controllers.Result{}, nil
	}
	pods := e.pods.Select(svc.Namespace, labels.SelectorFromSet(svc.Spec.Selector))
	trigger := e.triggers.ComputeEndpointLastChangeTriggerTime(svc.Namespace, svc, pods)
	current, _ := e.endpoints.Cached(key.Namespace, key.Name)
	want := desired(svc, current, subsetsOf(svc, pods))
	if want == nil {
		return controllers.Result{}, nil
	}
	if trigger.IsZero() {
		delete(want.Annotations, corev1.EndpointsLastChangeTriggerTime)
	} else {
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, corev1.EndpointsLastChangeTriggerTime, trigger.UTC().Format(time.RFC3339Nano))
	}
	err := e.write(ctx, svc, current, want)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return controllers.Result{After: conflictWait}, nil
	}
	return controllers.Result{}, err
}

func (e *Controller) remove(ctx context.Context, key controllers.Key) error {
	current, ok := e.endpoints.Cached(key.Namespace, key.Name)
	if !ok {
		return nil
	}
	_, err := e.endpoints.Delete(ctx, key.Namespace, key.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(current.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// desired returns the Endpoints to be written, nil when current is as it should be.
func desired(svc *corev1.Service, current *corev1.Endpoints, subsets []corev1.EndpointSubset) *corev1.Endpoints {
	subsets, truncated := truncate(subsets)
	wantLabels := labelsOf(svc)
	if current != nil && maps.Equal(current.Labels, wantLabels) &&
		(current.Annotations[corev1.EndpointsOverCapacity] == overCapacity) == truncated &&
		equality.Semantic.DeepEqual(current.Subsets, subsets) {
		return nil
	}
	want := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: svc.Name, Namespace: svc.Namespace}}
	if current != nil {
		want = current.DeepCopy()
	}
	want.Labels, want.Subsets = wantLabels, subsets
	if truncated {
		metav1.SetMetaDataAnnotation(&want.ObjectMeta, corev1.EndpointsOverCapacity, overCapacity)
	} else {
		delete(want.Annotations, corev1.EndpointsOverCapacity)
	}
	return want
}

func labelsOf(svc *corev1.Service) map[string]string {
	out := maps.Clone(svc.Labels)
	if out == nil {
		out = map[string]string{}
	}
	delete(out, corev1.IsHeadlessService)
	if svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		out[corev1.IsHeadlessService] = ""
	}
	out[managedByLabel] = managedBy
	return out
}

func (e *Controller) write(ctx context.Context, svc *corev1.Service, current, want *corev1.Endpoints) error {
	if current != nil {
		_, err := e.endpoints.Update(ctx, want)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			e.events.Eventf(want, corev1.EventTypeWarning, "FailedToUpdateEndpoint", "Failed to update endpoint %v/%v: %v", svc.Namespace, svc.Name, err)
		}
		return err
	}
	_, err := e.endpoints.Create(ctx, want)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if err != nil && ctx.Err() == nil {
		e.events.Eventf(want, corev1.EventTypeWarning, "FailedToCreateEndpoint", "Failed to create endpoint for service %v/%v: %v", svc.Namespace, svc.Name, err)
	}
	return err
}
