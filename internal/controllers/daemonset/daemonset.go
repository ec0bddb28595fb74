// Package daemonset runs one pod of every DaemonSet on each node that its
// template fits. The controller names the node in the pod's affinity and leaves
// the binding to the scheduler.
package daemonset

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
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/ownership"
	"proa/internal/controllers/podcontrol"
)

const (
	name  = "daemonset-controller"
	burst = 250 // pods created or deleted in one reconcile

	failedPodBackoff    = time.Second
	failedPodBackoffMax = 15 * time.Minute
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// Controller reconciles DaemonSets.
type Controller struct {
	loop      *controllers.Loop
	sets      *client.Informer[*appsv1.DaemonSet]
	nodes     *client.Informer[*corev1.Node]
	revisions *client.Informer[*appsv1.ControllerRevision]
	claims    *ownership.Claims[*corev1.Pod]
	history   *ownership.Claims[*appsv1.ControllerRevision]
	control   *podcontrol.Control
	events    controllers.EventRecorder
	clock     clock.PassiveClock
	failed    *flowcontrol.Backoff // of replacing failed pods, by set and node
}

// New returns the DaemonSet controller.
func New(c controllers.Config) *Controller {
	pods := client.Shared[*corev1.Pod](c.Cache)
	events := c.Events(name)
	d := &Controller{
		sets:      client.Shared[*appsv1.DaemonSet](c.Cache),
		nodes:     client.Shared[*corev1.Node](c.Cache),
		revisions: client.Shared[*appsv1.ControllerRevision](c.Cache),
		claims:    ownership.New(pods, kind),
		control:   podcontrol.New(pods, events),
		events:    events,
		clock:     c.Clock,
		failed:    flowcontrol.NewBackOff(failedPodBackoff, failedPodBackoffMax),
	}
	d.failed.Clock = c.Clock
	d.history = ownership.New(d.revisions, kind)
	d.history.QuietAdditions = true
	d.loop = controllers.NewLoop("daemonset", c, d.reconcile)
	d.sets.OnChange(func(_, ds *appsv1.DaemonSet) {
		if ds != nil {
			d.loop.EnqueueObject(ds)
		}
	})
	adopters := func(obj client.Object) []controllers.Key { return d.adopters(obj) }
	d.claims.OnChange(d.loop.Enqueue, func(pod *corev1.Pod) []controllers.Key { return adopters(pod) })
	d.history.OnChange(d.loop.Enqueue, func(r *appsv1.ControllerRevision) []controllers.Key { return adopters(r) })
	d.nodes.OnChange(d.nodeChanged)
	return d
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) adopters(obj client.Object) []controllers.Key {
	if len(obj.GetLabels()) == 0 {
		return nil
	}
	var keys []controllers.Key
	for _, ds := range c.sets.Select(obj.GetNamespace(), labels.Everything()) {
		selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(obj.GetLabels())) {
			keys = append(keys, controllers.Key{Namespace: ds.Namespace, Name: ds.Name})
		}
	}
	return keys
}

// nodeChanged looks at every set when a node comes, goes, or changes in what
// decides whether a pod fits. Node status, which changes all the time, does not.
func (c *Controller) nodeChanged(old, node *corev1.Node) {
	if old != nil && node != nil && labels.Equals(old.Labels, node.Labels) && apiequality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		return
	}
	for _, ds := range c.sets.Select("", labels.Everything()) {
		c.loop.EnqueueObject(ds)
	}
}

// reconcile brings the pods of one set on all nodes, its revisions and its status in order.
func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	ds, ok := c.sets.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil // garbage collection removes its pods
	}
	if reflect.DeepEqual(ds.Spec.Selector, &metav1.LabelSelector{}) {
		c.events.Event(ds, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return controllers.Result{}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil || ds.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	s := &sync{ds: ds, selector: selector, nodes: c.nodes.Select("", labels.Everything())}
	if err := c.findRevisions(ctx, s); err != nil {
		return controllers.Result{}, err
	}
	wait, err := c.syncPods(ctx, s)
	if err == nil {
		err = c.truncateHistory(ctx, s)
	}
	until, statusErr := c.syncStatus(ctx, s)
	return controllers.Result{After: podcontrol.Sooner(wait, until)}, errors.Join(err, statusErr)
}

func (c *Controller) live(ds *appsv1.DaemonSet) func(context.Context) (client.Object, error) {
	return func(ctx context.Context) (client.Object, error) { return c.sets.Get(ctx, ds.Namespace, ds.Name) }
}

func (c *Controller) syncPods(ctx context.Context, s *sync) (time.Duration, error) {
	pods, err := c.claims.Claim(ctx, s.ds, s.selector, c.live(s.ds))
	if err != nil {
		return 0, fmt.Errorf("claim pods: %w", err)
	}
	s.place(pods)
	wait, err := c.apply(ctx, s, planPods(s, c.clock.Now()))
	if err != nil || s.ds.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		return wait, err
	}
	s.place(s.selected(c.claims.Owned(s.ds.UID)))
	_, err = c.apply(ctx, s, planRollingUpdate(s, c.clock.Now()))
	return wait, err
}

// apply deletes and creates pods. Failed pods on which a node's backoff has not
// run out stay; wait is the time until the first of them may go.
func (c *Controller) apply(ctx context.Context, s *sync, p plan) (wait time.Duration, err error) {
	remove := p.delete
	for _, pod := range p.failed {
		if left := c.failedBackoff(s.ds, pod); left > 0 {
			wait = podcontrol.Sooner(wait, left)
			continue
		}
		c.events.Eventf(s.ds, corev1.EventTypeWarning, "FailedDaemonPod",
			"Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name, pod.Spec.NodeName)
		remove = append(remove, pod)
	}
	for _, pod := range p.succeeded {
		c.events.Eventf(s.ds, corev1.EventTypeNormal, "SucceededDaemonPod",
			"Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod.Namespace, pod.Name, pod.Spec.NodeName)
		remove = append(remove, pod)
	}
	create := p.create[:min(len(p.create), burst)]
	_, createErr := podcontrol.SlowStart(len(create), func(i int) error {
		_, err := c.control.Create(ctx, s.ds, s.newPod(c.claims.Reference(s.ds), create[i]))
		if podcontrol.NamespaceGoes(err) {
			return nil
		}
		return err
	})
	return wait, errors.Join(createErr, c.control.DeleteAll(ctx, s.ds, remove[:min(len(remove), burst)]))
}

// failedBackoff returns how long the failed pod has to stay, and takes note of
// the attempt when it may go.
func (c *Controller) failedBackoff(ds *appsv1.DaemonSet, pod *corev1.Pod) time.Duration {
	key := fmt.Sprintf("%s/%d/%s", ds.UID, ds.Status.ObservedGeneration, pod.Spec.NodeName)
	now := c.clock.Now()
	if c.failed.IsInBackOffSinceUpdate(key, now) {
		return c.failed.Get(key)
	}
	c.failed.Next(key, now)
	return 0
}

func (c *Controller) syncStatus(ctx context.Context, s *sync) (time.Duration, error) {
	s.place(s.selected(c.claims.Owned(s.ds.UID)))
	status, wait := s.status(c.clock.Now())
	if apiequality.Semantic.DeepEqual(s.ds.Status, status) {
		return wait, nil
	}
	ds := s.ds.DeepCopy()
	ds.Status = status
	if _, err := c.sets.UpdateStatus(ctx, ds); err != nil {
		return wait, fmt.Errorf("update status: %w", err)
	}
	return wait, nil
}
