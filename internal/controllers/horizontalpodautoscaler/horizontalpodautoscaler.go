// Package horizontalpodautoscaler sets the replicas of whatever has a scale
// subresource by what its pods use, or by what other metrics say. It reads
// metrics through the API, computes in pure functions, and scales.
package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
)

// syncPeriod is how often every autoscaler is looked at.
const syncPeriod = 15 * time.Second

// Controller reconciles HorizontalPodAutoscalers.
type Controller struct {
	loop      *controllers.Loop
	api       client.API
	catalogue *apis.Catalogue
	scalers   *client.Informer[*autoscalingv2.HorizontalPodAutoscaler]
	pods      *client.Informer[*corev1.Pod]
	sources   sources
	events    controllers.EventRecorder
	clock     clock.PassiveClock
	measure   *measures

	mu        sync.Mutex // guards what follows
	histories map[controllers.Key]*history
	selectors map[controllers.Key]labels.Selector // of the pods that each scales
}

// New returns the controller. catalogue says which resource a kind is; raw reads
// the custom and external metrics APIs, nil where nothing can serve them.
func New(c controllers.Config, catalogue *apis.Catalogue, raw Raw) *Controller {
	h := &Controller{
		api:       c.Cache.API(),
		catalogue: catalogue,
		scalers:   client.Shared[*autoscalingv2.HorizontalPodAutoscaler](c.Cache),
		pods:      client.Shared[*corev1.Pod](c.Cache),
		sources:   sources{api: c.Cache.API(), catalogue: catalogue, raw: raw},
		events:    c.Events("horizontal-pod-autoscaler"),
		clock:     c.Clock,
		measure:   newMeasures(),
		histories: map[controllers.Key]*history{},
		selectors: map[controllers.Key]labels.Selector{},
	}
	c.Register(h.measure.collectors()...)
	h.loop = controllers.NewLoop("horizontalpodautoscaler", c, h.reconcile)
	h.scalers.OnChange(func(old, hpa *autoscalingv2.HorizontalPodAutoscaler) {
		if old == nil {
			h.measure.scalers.Inc()
		}
		switch {
		case hpa == nil:
			h.measure.scalers.Dec()
			h.loop.EnqueueObject(old)
		case old == nil || old.UID != hpa.UID || !apiequality.Semantic.DeepEqual(old.Spec, hpa.Spec):
			h.loop.EnqueueObject(hpa)
		}
	})
	return h
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// reconcile looks at one autoscaler, again every syncPeriod whether or not it
// could be computed: metrics that fail come back by themselves.
func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	shared, ok := c.scalers.Cached(key.Namespace, key.Name)
	if !ok {
		c.forget(key)
		return controllers.Result{}, nil
	}
	if shared.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	r := &run{Controller: c, hpa: shared.DeepCopy(), key: key, now: c.clock.Now(), action: noAction}
	err := r.autoscale(ctx)
	c.measure.looked(r.action, err, c.clock.Since(r.now))
	if !apiequality.Semantic.DeepEqual(shared.Status, r.hpa.Status) {
		if _, writeErr := c.scalers.UpdateStatus(ctx, r.hpa); writeErr != nil {
			c.events.Event(r.hpa, corev1.EventTypeWarning, "FailedUpdateStatus", writeErr.Error())
			err = errors.Join(err, fmt.Errorf("failed to update status for %s: %w", key.Name, writeErr))
		}
	}
	if err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "autoscale", "autoscaler", key.String(), "err", err)
	}
	return controllers.Result{After: syncPeriod}, nil
}

func (c *Controller) forget(key controllers.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.histories, key)
	delete(c.selectors, key)
	c.measure.desired.DeleteLabelValues(key.Namespace, key.Name)
}

// history returns what is remembered of an autoscaler. What its target had when
// it was first seen counts as a recommendation, so that a restart scales nothing
// down at once.
func (c *Controller) history(key controllers.Key, replicas int32, now time.Time) *history {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.histories[key]
	if h == nil {
		h = &history{recommendations: []recommendation{{replicas, now}}}
		c.histories[key] = h
	}
	return h
}

// run is one look at one autoscaler. hpa is its own copy; only status changes.
type run struct {
	*Controller
	hpa *autoscalingv2.HorizontalPodAutoscaler
	key controllers.Key
	now time.Time

	action string // what it came to
}

func (r *run) autoscale(ctx context.Context) error {
	reference := fmt.Sprintf("%s/%s/%s", r.hpa.Spec.ScaleTargetRef.Kind, r.hpa.Namespace, r.hpa.Spec.ScaleTargetRef.Name)
	ref, scale, err := r.scale(ctx, reference)
	if err != nil {
		cause := err
		if inner := errors.Unwrap(err); inner != nil {
			cause = inner
		}
		r.events.Event(r.hpa, corev1.EventTypeWarning, "FailedGetScale", cause.Error())
		r.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale", "the HPA controller was unable to get the target's current scale: %v", cause)
		return err
	}
	r.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
	current := scale.Spec.Replicas
	past := r.history(r.key, current, r.now)
	d, computeErr := r.decide(ctx, scale, past)
	if d.failed {
		r.status(current, r.hpa.Status.DesiredReplicas, d.metrics)
		r.events.Event(r.hpa, corev1.EventTypeWarning, "FailedComputeMetricsReplicas", computeErr.Error())
		return fmt.Errorf("failed to compute desired number of replicas based on listed metrics for %s: %w", reference, computeErr)
	}
	if d.replicas != current {
		if err := r.rescale(ctx, ref, scale, d); err != nil {
			return fmt.Errorf("failed to rescale %s: %w", reference, err)
		}
		r.action = action(current, d.replicas)
		past.scaled(r.hpa.Spec.Behavior, current, d.replicas, r.now)
	}
	r.status(current, d.replicas, d.metrics)
	return computeErr
}

// scale reads the scale subresource of the target.
func (r *run) scale(ctx context.Context, reference string) (client.Ref, *autoscalingv1.Scale, error) {
	target := r.hpa.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(target.APIVersion)
	if err != nil {
		return client.Ref{}, nil, &specFault{"invalid API version in scale target reference", err}
	}
	resource, err := resourceOf(r.catalogue, gv.WithKind(target.Kind))
	if err != nil {
		return client.Ref{}, nil, fmt.Errorf("unable to determine resource for scale target reference: %w", err)
	}
	ref := client.Ref{Resource: resource, Namespace: r.hpa.Namespace, Name: target.Name, Subresource: "scale"}
	obj, err := r.api.Get(ctx, ref, metav1.GetOptions{})
	if err != nil {
		return ref, nil, fmt.Errorf("failed to query scale subresource for %s: %w", reference, err)
	}
	scale, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return ref, nil, fmt.Errorf("failed to query scale subresource for %s: %w", reference, fmt.Errorf("got %T", obj))
	}
	return ref, scale.DeepCopy(), nil
}

// resourceOf finds the resource of a kind: in its version, or in any.
func resourceOf(catalogue *apis.Catalogue, gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	if view, ok := catalogue.Kind(gvk); ok {
		return gvk.GroupVersion().WithResource(view.Plural), nil
	}
	for _, r := range catalogue.All() {
		if r.Group == gvk.Group && r.Kind == gvk.Kind {
			return r.GroupVersionResource(), nil
		}
	}
	return schema.GroupVersionResource{}, &meta.NoKindMatchError{GroupKind: gvk.GroupKind()}
}

func (r *run) rescale(ctx context.Context, ref client.Ref, scale *autoscalingv1.Scale, d decision) error {
	current := scale.Spec.Replicas
	if err := r.write(ctx, ref, scale, d.replicas); err != nil {
		r.events.Eventf(r.hpa, corev1.EventTypeWarning, "FailedRescale", "New size: %d; reason: %s; error: %v", d.replicas, d.reason, err.Error())
		r.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale", "the HPA controller was unable to update the target scale: %v", err)
		r.status(current, r.hpa.Status.DesiredReplicas, d.metrics)
		return err
	}
	r.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale", "the HPA controller was able to update the target scale to %d", d.replicas)
	r.events.Eventf(r.hpa, corev1.EventTypeNormal, "SuccessfulRescale", "New size: %d; reason: %s", d.replicas, d.reason)
	r.hpa.Status.LastScaleTime = &metav1.Time{Time: r.now}
	if d.replicas == 0 && r.mayScaleToZero() {
		r.condition(autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero", "the HPA controller scaled the workload to zero")
	} else {
		r.condition(autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero", "the HPA controller did not scale the workload to zero")
	}
	return nil
}

// writeTries is how often a scale is written that others write, too.
const writeTries = 5

// write sets the replicas of the target, which may have changed since it was read.
func (r *run) write(ctx context.Context, ref client.Ref, scale *autoscalingv1.Scale, replicas int32) error {
	for n := 1; ; n++ {
		scale.Spec.Replicas = replicas
		_, err := r.api.Update(ctx, ref, scale.DeepCopy(), metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) || n == writeTries {
			return err
		}
		obj, getErr := r.api.Get(ctx, ref, metav1.GetOptions{})
		latest, ok := obj.(*autoscalingv1.Scale)
		if getErr != nil || !ok {
			return err
		}
		scale = latest.DeepCopy()
	}
}

// mayScaleToZero tells that no replicas are as good as any (KEP-2021).
func (r *run) mayScaleToZero() bool {
	least := r.hpa.Spec.MinReplicas
	return least != nil && *least == 0 && r.measuresMoreThanPods()
}

// measuresMoreThanPods tells that there are metrics that do not need pods.
func (r *run) measuresMoreThanPods() bool {
	return slices.ContainsFunc(r.hpa.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}

func (r *run) status(current, desired int32, metrics []autoscalingv2.MetricStatus) {
	s := &r.hpa.Status
	s.CurrentReplicas, s.DesiredReplicas, s.CurrentMetrics = current, desired, metrics
	r.measure.desired.WithLabelValues(r.key.Namespace, r.key.Name).Set(float64(desired))
	if r.hpa.Generation > 0 {
		s.ObservedGeneration = new(r.hpa.Generation)
	}
}

// condition sets a condition; its time moves only with its status.
func (r *run) condition(t autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason, format string, args ...any) {
	next := autoscalingv2.HorizontalPodAutoscalerCondition{
		Type: t, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...), LastTransitionTime: metav1.NewTime(r.now),
	}
	list := r.hpa.Status.Conditions
	for i := range list {
		if list[i].Type == t {
			if list[i].Status == status {
				next.LastTransitionTime = list[i].LastTransitionTime
			}
			list[i] = next
			return
		}
	}
	r.hpa.Status.Conditions = append(list, next)
}
