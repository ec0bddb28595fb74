// Package deployment rolls Deployments out: it keeps one ReplicaSet per revision
// of the pod template and moves the replicas from the old ones to the newest as
// the strategy allows.
package deployment

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/ownership"
	"proa/internal/controllers/podcontrol"
)

const name = "deployment-controller"

var (
	kind    = appsv1.SchemeGroupVersion.WithKind("Deployment")
	setKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
)

// Controller reconciles Deployments.
type Controller struct {
	loop        *controllers.Loop
	deployments *client.Informer[*appsv1.Deployment]
	sets        *client.Informer[*appsv1.ReplicaSet]
	claims      *ownership.Claims[*appsv1.ReplicaSet]
	pods        *ownership.Claims[*corev1.Pod]
	events      controllers.EventRecorder
	clock       clock.PassiveClock
}

// New returns the Deployment controller.
func New(c controllers.Config) *Controller {
	pods := client.Shared[*corev1.Pod](c.Cache)
	d := &Controller{
		deployments: client.Shared[*appsv1.Deployment](c.Cache),
		sets:        client.Shared[*appsv1.ReplicaSet](c.Cache),
		pods:        ownership.New(pods, setKind),
		events:      c.Events(name),
		clock:       c.Clock,
	}
	d.claims = ownership.New(d.sets, kind)
	d.loop = controllers.NewLoop("deployment", c, d.reconcile)
	d.deployments.OnChange(func(_, new *appsv1.Deployment) {
		if new != nil {
			d.loop.EnqueueObject(new)
		}
	})
	d.claims.OnChange(d.loop.Enqueue, d.adopters)
	pods.OnChange(d.podChanged)
	return d
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) adopters(rs *appsv1.ReplicaSet) []controllers.Key {
	if len(rs.Labels) == 0 {
		return nil
	}
	var keys []controllers.Key
	for _, d := range c.deployments.Select(rs.Namespace, labels.Everything()) {
		selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(rs.Labels)) {
			keys = append(keys, controllers.Key{Namespace: d.Namespace, Name: d.Name})
		}
	}
	return keys
}

// podChanged wakes a Deployment that waits for the last old pod before it
// creates new ones.
func (c *Controller) podChanged(old, pod *corev1.Pod) {
	if old == nil || pod != nil && !podcontrol.Ended(pod) {
		return
	}
	key, ok := c.pods.OwnerKey(old)
	if !ok {
		return
	}
	rs, ok := c.sets.Cached(key.Namespace, key.Name)
	if !ok {
		return
	}
	if key, ok = c.claims.OwnerKey(rs); !ok {
		return
	}
	if d, ok := c.deployments.Cached(key.Namespace, key.Name); ok && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.loop.Enqueue(key)
	}
}

// reconcile takes the next step of one Deployment's rollout. All that the step
// changes in the Deployment's status and annotations is one write.
func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	current, ok := c.deployments.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil // garbage collection removes its ReplicaSets
	}
	d := current.DeepCopy()
	if reflect.DeepEqual(d.Spec.Selector, &metav1.LabelSelector{}) {
		c.events.Event(current, corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
		d.Status.ObservedGeneration = d.Generation
		return controllers.Result{}, c.write(ctx, current, d)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return controllers.Result{}, nil // accepted by an older server; nothing it could select
	}
	sets, err := c.claims.Claim(ctx, current, selector, func(ctx context.Context) (client.Object, error) {
		return c.deployments.Get(ctx, key.Namespace, key.Name)
	})
	if err != nil {
		return controllers.Result{}, fmt.Errorf("claim replica sets: %w", err)
	}
	r := newRollout(d, sets, c.clock.Now())
	if revision, asked := rollbackRevision(d); asked && !d.Spec.Paused && d.DeletionTimestamp == nil {
		return controllers.Result{}, c.rollback(ctx, r, revision)
	}
	if err := c.step(ctx, r); err != nil {
		return controllers.Result{}, errors.Join(err, c.write(ctx, current, d))
	}
	return controllers.Result{After: r.deadlineIn()}, c.write(ctx, current, d)
}

// step changes ReplicaSets, and r.d's status and annotations in memory.
func (c *Controller) step(ctx context.Context, r *rollout) error {
	if r.d.DeletionTimestamp != nil {
		r.setStatus()
		return nil
	}
	r.notePause()
	if r.d.Spec.Paused || r.resized() {
		return c.resize(ctx, r)
	}
	var err error
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		err = c.recreate(ctx, r)
	} else {
		err = c.roll(ctx, r)
	}
	if err != nil {
		return err
	}
	r.setStatus()
	r.setProgress()
	return nil
}

// resize brings ReplicaSets to a new number of replicas without rolling further.
func (c *Controller) resize(ctx context.Context, r *rollout) error {
	if err := c.syncNew(ctx, r); err != nil {
		return err
	}
	if err := c.scale(ctx, r, planResize(r)); err != nil {
		return err
	}
	if r.d.Spec.Paused {
		if err := c.cleanup(ctx, r); err != nil {
			return err
		}
	}
	r.setStatus()
	return nil
}

func (c *Controller) roll(ctx context.Context, r *rollout) error {
	if err := c.ensureNew(ctx, r); err != nil || r.new == nil {
		return err // without a new set the namespace goes, and this Deployment with it
	}
	steps := planRolling(r)
	if len(steps) > 0 {
		return c.scale(ctx, r, steps)
	}
	return c.cleanupIfComplete(ctx, r)
}

func (c *Controller) recreate(ctx context.Context, r *rollout) error {
	if err := c.syncNew(ctx, r); err != nil {
		return err
	}
	if steps := scaleToZero(active(r.old)); len(steps) > 0 {
		return c.scale(ctx, r, steps)
	}
	if c.oldPodsRun(r) {
		return nil
	}
	if err := c.ensureNew(ctx, r); err != nil || r.new == nil {
		return err
	}
	if err := c.scale(ctx, r, []scaling{{set: r.new, replicas: *r.d.Spec.Replicas}}); err != nil {
		return err
	}
	return c.cleanupIfComplete(ctx, r)
}

func (c *Controller) oldPodsRun(r *rollout) bool {
	for _, rs := range r.old {
		if rs.Status.Replicas > 0 {
			return true
		}
		for _, pod := range c.pods.Owned(rs.UID) {
			if !podcontrol.Ended(pod) {
				return true
			}
		}
	}
	return false
}

// scale applies steps, those that change something, each in one write.
func (c *Controller) scale(ctx context.Context, r *rollout, steps []scaling) error {
	for _, s := range steps {
		from := *s.set.Spec.Replicas
		rs := s.set.DeepCopy()
		rs.Spec.Replicas = new(s.replicas)
		if annotated := setSizeAnnotations(rs, r.d); from == s.replicas && (!s.resized || !annotated) {
			continue
		}
		updated, err := c.sets.Update(ctx, rs)
		if err != nil {
			return fmt.Errorf("scale replica set %s: %w", rs.Name, err)
		}
		r.replace(updated)
		c.scaled(r.d, rs.Name, from, s.replicas)
	}
	return nil
}

func (c *Controller) scaled(d *appsv1.Deployment, set string, from, to int32) {
	switch {
	case to > from:
		c.events.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from %d to %d", set, from, to)
	case to < from:
		c.events.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled down replica set %s from %d to %d", set, from, to)
	}
}

func (c *Controller) cleanupIfComplete(ctx context.Context, r *rollout) error {
	if !complete(r.d, &r.d.Status) {
		return nil
	}
	return c.cleanup(ctx, r)
}

// cleanup deletes the oldest revisions beyond revisionHistoryLimit.
func (c *Controller) cleanup(ctx context.Context, r *rollout) error {
	for _, rs := range planCleanup(r) {
		uid := rs.UID
		_, err := c.sets.Delete(ctx, rs.Namespace, rs.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err := ignoreNotFound(err); err != nil {
			return fmt.Errorf("delete replica set %s: %w", rs.Name, err)
		}
	}
	return nil
}

func (c *Controller) write(ctx context.Context, current, d *appsv1.Deployment) error {
	if apiequality.Semantic.DeepEqual(current.Status, d.Status) && apiequality.Semantic.DeepEqual(current.Annotations, d.Annotations) {
		return nil
	}
	if _, err := c.deployments.UpdateStatus(ctx, d); err != nil {
		return fmt.Errorf("update status: %w", err)
	}
	return nil
}

// deadlineIn is the time until the rollout may have to be called stuck.
func (r *rollout) deadlineIn() time.Duration {
	progress := condition(&r.d.Status, appsv1.DeploymentProgressing)
	if !hasDeadline(r.d) || progress == nil || progress.Reason == reasonAvailable || progress.Reason == reasonTimedOut {
		return 0
	}
	if complete(r.d, &r.d.Status) || r.d.Spec.Paused {
		return 0
	}
	left := progress.LastUpdateTime.Add(time.Duration(*r.d.Spec.ProgressDeadlineSeconds) * time.Second).Sub(r.now)
	return max(left, 0) + time.Second
}
