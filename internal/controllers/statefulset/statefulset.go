// Package statefulset runs pods with lasting identities: each replica of a
// StatefulSet has an ordinal, a name, and its own PersistentVolumeClaims, which
// a replacement takes over. By default replicas come up in order and go down in
// the reverse order, one at a time.
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/ownership"
	"proa/internal/controllers/podcontrol"
)

const name = "statefulset-controller"

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// Controller reconciles StatefulSets.
type Controller struct {
	loop      *controllers.Loop
	sets      *client.Informer[*appsv1.StatefulSet]
	pods      *client.Informer[*corev1.Pod]
	claims    *client.Informer[*corev1.PersistentVolumeClaim]
	revisions *client.Informer[*appsv1.ControllerRevision]
	owned     *ownership.Claims[*corev1.Pod]
	history   *ownership.Claims[*appsv1.ControllerRevision]
	events    controllers.EventRecorder
	clock     clock.PassiveClock
}

// New returns the StatefulSet controller.
func New(c controllers.Config) *Controller {
	s := &Controller{
		sets:      client.Shared[*appsv1.StatefulSet](c.Cache),
		pods:      client.Shared[*corev1.Pod](c.Cache),
		claims:    client.Shared[*corev1.PersistentVolumeClaim](c.Cache),
		revisions: client.Shared[*appsv1.ControllerRevision](c.Cache),
		events:    c.Events(name),
		clock:     c.Clock,
	}
	s.owned = ownership.New(s.pods, kind)
	s.history = ownership.New(s.revisions, kind)
	s.loop = controllers.NewLoop("statefulset", c, s.reconcile)
	s.sets.OnChange(func(_, set *appsv1.StatefulSet) {
		if set != nil {
			s.loop.EnqueueObject(set)
		}
	})
	s.owned.OnChange(s.loop.Enqueue, func(pod *corev1.Pod) []controllers.Key { return s.adopters(pod) })
	s.claims.OnChange(s.claimChanged)
	c.Register(gauge{s})
	return s
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) adopters(pod *corev1.Pod) []controllers.Key {
	if len(pod.Labels) == 0 {
		return nil
	}
	var keys []controllers.Key
	for _, set := range c.sets.Select(pod.Namespace, labels.Everything()) {
		selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(pod.Labels)) {
			keys = append(keys, controllers.Key{Namespace: set.Namespace, Name: set.Name})
		}
	}
	return keys
}

// claimChanged wakes sets that wait for a claim of an earlier pod to go.
func (c *Controller) claimChanged(old, claim *corev1.PersistentVolumeClaim) {
	if claim != nil {
		return
	}
	for _, set := range c.sets.Select(old.Namespace, labels.Everything()) {
		for i := range set.Spec.VolumeClaimTemplates {
			if strings.HasPrefix(old.Name, set.Spec.VolumeClaimTemplates[i].Name+"-"+set.Name+"-") {
				c.loop.EnqueueObject(set)
				break
			}
		}
	}
}

// reconcile takes the next step that the set's order of things allows.
func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	set, ok := c.sets.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil // garbage collection removes its pods
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return controllers.Result{}, nil // accepted by an older server; nothing it could select
	}
	s := &step{set: set, selector: selector, now: c.clock.Now(), claim: func(name string) (*corev1.PersistentVolumeClaim, bool) {
		return c.claims.Cached(set.Namespace, name)
	}}
	if err := c.findRevisions(ctx, s); err != nil {
		return controllers.Result{}, err
	}
	pods, err := c.owned.ClaimWhere(ctx, set, selector, func(pod *corev1.Pod) bool { return parentOf(pod) == set.Name }, c.live(set))
	if err != nil {
		return controllers.Result{}, fmt.Errorf("claim pods: %w", err)
	}
	s.place(pods)
	applyErr := c.apply(ctx, s, planStep(s))
	wait, err := c.syncStatus(ctx, s)
	if applyErr == nil && err == nil {
		err = c.truncateHistory(ctx, s)
	}
	return controllers.Result{After: wait}, errors.Join(applyErr, err)
}

func (c *Controller) live(set *appsv1.StatefulSet) func(context.Context) (client.Object, error) {
	return func(ctx context.Context) (client.Object, error) { return c.sets.Get(ctx, set.Namespace, set.Name) }
}

func (c *Controller) apply(ctx context.Context, s *step, p plan) error {
	_, err := podcontrol.SlowStart(len(p.create), func(i int) error { return c.create(ctx, s, p.create[i]) })
	errs := []error{err}
	for _, pod := range p.claim {
		errs = append(errs, c.createClaims(ctx, s, pod))
	}
	for _, pod := range p.fix {
		errs = append(errs, c.fix(ctx, s, pod))
	}
	for _, pod := range p.retain {
		errs = append(errs, c.fixRetention(ctx, s, pod))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, pod := range slices.Concat(p.ended, p.delete) {
		errs = append(errs, c.delete(ctx, s, pod))
	}
	return errors.Join(errs...)
}

// create creates a pod after its claims.
func (c *Controller) create(ctx context.Context, s *step, pod *corev1.Pod) error {
	if err := c.createClaims(ctx, s, pod); err != nil {
		c.record(s, "create", pod.Name, err)
		return err
	}
	podName := pod.Name
	created, err := c.pods.Create(ctx, pod)
	switch {
	case podcontrol.NamespaceGoes(err):
		return nil
	case apierrors.IsAlreadyExists(err):
		return err
	case err == nil:
		if err := c.fixRetention(ctx, s, created); err != nil {
			c.record(s, "update", podName, err)
			return err
		}
	}
	c.record(s, "create", podName, err)
	return err
}

// fix brings identity, storage and the claims' owners of a running pod in order.
func (c *Controller) fix(ctx context.Context, s *step, pod *corev1.Pod) error {
	if err := c.fixRetention(ctx, s, pod); err != nil {
		return err
	}
	if identified(s.set, pod) && stored(s.set, pod) {
		return nil
	}
	pod = pod.DeepCopy()
	identify(s.set, pod)
	store(s.set, pod)
	if err := c.createClaims(ctx, s, pod); err != nil {
		return err
	}
	_, err := c.pods.Update(ctx, pod)
	c.record(s, "update", pod.Name, err)
	return err
}

func (c *Controller) delete(ctx context.Context, s *step, pod *corev1.Pod) error {
	uid := pod.UID
	_, err := c.pods.Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.record(s, "delete", pod.Name, err)
	return err
}

// record tells of what was done to a pod in an event of the set.
func (c *Controller) record(s *step, verb, pod string, err error) {
	title := strings.ToUpper(verb[:1]) + verb[1:]
	if err != nil {
		c.events.Eventf(s.set, corev1.EventTypeWarning, "Failed"+title, "%s Pod %s in StatefulSet %s failed error: %s", verb, pod, s.set.Name, err)
		return
	}
	c.events.Eventf(s.set, corev1.EventTypeNormal, "Successful"+title, "%s Pod %s in StatefulSet %s successful", verb, pod, s.set.Name)
}

func (c *Controller) syncStatus(ctx context.Context, s *step) (time.Duration, error) {
	s.now = c.clock.Now()
	status, wait := s.status(c.members(s))
	if apiequality.Semantic.DeepEqual(s.set.Status, status) {
		return wait, nil
	}
	set := s.set.DeepCopy()
	set.Status = status
	if _, err := c.sets.UpdateStatus(ctx, set); err != nil {
		return wait, fmt.Errorf("update status: %w", err)
	}
	return wait, nil
}

// members are the set's pods as they are now.
func (c *Controller) members(s *step) []*corev1.Pod {
	return slices.DeleteFunc(c.owned.Owned(s.set.UID), func(pod *corev1.Pod) bool {
		return parentOf(pod) != s.set.Name || !s.selector.Matches(labels.Set(pod.Labels))
	})
}
