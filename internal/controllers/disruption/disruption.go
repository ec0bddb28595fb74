// Package disruption keeps the status of PodDisruptionBudgets: how many of the
// pods that a budget selects may be evicted now. The eviction subresource takes
// from that number; this package gives back once an evicted pod is gone.
package disruption

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/podcontrol"
)

const name = "controllermanager"

// Controller reconciles PodDisruptionBudgets.
type Controller struct {
	loop        *controllers.Loop
	stale       *controllers.Loop // pods that were to be disrupted and were not
	api         client.API
	catalogue   *apis.Catalogue
	budgets     *client.Informer[*policyv1.PodDisruptionBudget]
	pods        *client.Informer[*corev1.Pod]
	deployments *client.Informer[*appsv1.Deployment]
	sets        *client.Informer[*appsv1.ReplicaSet]
	stateful    *client.Informer[*appsv1.StatefulSet]
	rcs         *client.Informer[*corev1.ReplicationController]
	events      controllers.EventRecorder
	clock       clock.PassiveClock
}

// New returns the disruption controller. catalogue says under which resource the
// scale of an owner of unknown kind is found.
func New(c controllers.Config, catalogue *apis.Catalogue) *Controller {
	d := &Controller{
		api:         c.Cache.API(),
		catalogue:   catalogue,
		budgets:     client.Shared[*policyv1.PodDisruptionBudget](c.Cache),
		pods:        client.Shared[*corev1.Pod](c.Cache),
		deployments: client.Shared[*appsv1.Deployment](c.Cache),
		sets:        client.Shared[*appsv1.ReplicaSet](c.Cache),
		stateful:    client.Shared[*appsv1.StatefulSet](c.Cache),
		rcs:         client.Shared[*corev1.ReplicationController](c.Cache),
		events:      c.Events(name),
		clock:       c.Clock,
	}
	d.loop = controllers.NewLoop("disruption", c, d.reconcile)
	d.stale = controllers.NewLoop("stale_pod_disruption", c, d.reconcilePod)
	d.budgets.OnChange(func(_, pdb *policyv1.PodDisruptionBudget) {
		if pdb != nil {
			d.loop.EnqueueObject(pdb)
		}
	})
	d.pods.OnChange(d.podChanged)
	return d
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- c.stale.Run(ctx) }()
	return errors.Join(c.loop.Run(ctx), <-done)
}

func (c *Controller) podChanged(old, pod *corev1.Pod) {
	if old != nil && (pod == nil || !labels.Equals(old.Labels, pod.Labels)) {
		c.enqueueBudgets(old)
	}
	if pod == nil {
		return
	}
	c.enqueueBudgets(pod)
	if _, stale := c.staleIn(pod); stale {
		c.stale.EnqueueObject(pod)
	}
}

func (c *Controller) enqueueBudgets(pod *corev1.Pod) {
	for _, pdb := range c.budgets.Select(pod.Namespace, labels.Everything()) {
		selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			c.loop.EnqueueObject(pdb)
		}
	}
}

// reconcile counts the pods of one budget. A budget that cannot be computed
// allows nothing and says why.
func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	pdb, ok := c.budgets.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	status, wait, err := c.status(ctx, pdb)
	if err != nil {
		err = fmt.Errorf("compute status: %w", err)
		status = failed(pdb, err, c.clock.Now())
	}
	if apiequality.Semantic.DeepEqual(pdb.Status, status) {
		return controllers.Result{After: wait}, err
	}
	next := pdb.DeepCopy()
	next.Status = status
	_, writeErr := c.budgets.UpdateStatus(ctx, next)
	return controllers.Result{After: wait}, errors.Join(err, writeErr)
}

func failed(pdb *policyv1.PodDisruptionBudget, err error, now time.Time) policyv1.PodDisruptionBudgetStatus {
	status := *pdb.Status.DeepCopy()
	status.DisruptionsAllowed = 0
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
		Reason: policyv1.SyncFailedReason, Message: err.Error(),
		ObservedGeneration: pdb.Status.ObservedGeneration, LastTransitionTime: metav1.NewTime(now),
	})
	return status
}

// status computes the budget. wait is the time until an eviction that nothing
// came of is forgotten.
func (c *Controller) status(ctx context.Context, pdb *policyv1.PodDisruptionBudget) (policyv1.PodDisruptionBudgetStatus, time.Duration, error) {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		c.events.Eventf(pdb, corev1.EventTypeWarning, "NoPods", "Failed to get pods: %v", err)
		return policyv1.PodDisruptionBudgetStatus{}, 0, err
	}
	pods := c.pods.Select(pdb.Namespace, selector)
	if len(pods) == 0 {
		c.events.Event(pdb, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	e, err := c.expect(ctx, pdb, pods)
	if err != nil {
		c.events.Eventf(pdb, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", err)
		return policyv1.PodDisruptionBudgetStatus{}, 0, err
	}
	if e.unmanaged {
		c.events.Eventf(pdb, corev1.EventTypeWarning, "UnmanagedPods",
			"Pods selected by this PodDisruptionBudget (selector: %v) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
			metav1.FormatLabelSelector(pdb.Spec.Selector))
	}
	now := c.clock.Now()
	d := planDisruptions(pdb, pods, now)
	for _, pod := range d.spared {
		c.events.Eventf(pod, corev1.EventTypeWarning, "NotDeleted", "Pod was expected by PDB %s/%s to be deleted but it wasn't", pdb.Namespace, pdb.Name)
	}
	return computed(pdb, e, d, now), d.wait, nil
}

// deletionTimeout is how long an evicted pod may take until its deletion is seen
// (the API server deletes it in the same transaction, an older one after it).
const deletionTimeout = 2 * time.Minute

// disruptions are the evictions of a budget that are still under way.
type disruptions struct {
	pods    map[string]metav1.Time
	spared  []*corev1.Pod // were to go and did not
	healthy int32         // pods that count
	wait    time.Duration // until the first is forgotten
}

func planDisruptions(pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod, now time.Time) disruptions {
	d := disruptions{}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if at, ok := pdb.Status.DisruptedPods[pod.Name]; ok {
			left := at.Add(deletionTimeout).Sub(now)
			if left >= 0 {
				if d.pods == nil {
					d.pods = map[string]metav1.Time{}
				}
				d.pods[pod.Name] = at
				d.wait = podcontrol.Sooner(d.wait, max(left, time.Nanosecond))
				continue
			}
			d.spared = append(d.spared, pod)
		}
		if podcontrol.Ready(pod) {
			d.healthy++
		}
	}
	return d
}

func computed(pdb *policyv1.PodDisruptionBudget, e expectation, d disruptions, now time.Time) policyv1.PodDisruptionBudgetStatus {
	next := pdb.DeepCopy()
	next.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: pdb.Generation,
		CurrentHealthy:     d.healthy,
		DesiredHealthy:     e.desired,
		ExpectedPods:       e.expected,
		DisruptedPods:      d.pods,
		Conditions:         next.Status.Conditions,
	}
	// With no pods expected nothing is allowed: the first ones that appear must
	// not be evicted before they are counted.
	if e.expected > 0 {
		next.Status.DisruptionsAllowed = max(0, d.healthy-e.desired)
	}
	if !pdbhelper.ConditionsAreUpToDate(next) {
		allow(&next.Status, now)
	}
	return next.Status
}

// allow makes the condition say whether a disruption is allowed.
func allow(s *policyv1.PodDisruptionBudgetStatus, now time.Time) {
	c := metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
		ObservedGeneration: s.ObservedGeneration, LastTransitionTime: metav1.NewTime(now),
	}
	if s.DisruptionsAllowed > 0 {
		c.Status, c.Reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	meta.SetStatusCondition(&s.Conditions, c)
}

// staleIn returns how long until a pod's DisruptionTarget condition has come to
// nothing; stale is false where it has none, or one that needs no deletion.
func (c *Controller) staleIn(pod *corev1.Pod) (wait time.Duration, stale bool) {
	target := podcontrol.Condition(pod, corev1.DisruptionTarget)
	if pod.DeletionTimestamp != nil || podcontrol.Ended(pod) || target == nil || target.Status != corev1.ConditionTrue ||
		target.Reason == corev1.PodReasonTerminationByKubelet {
		return 0, false
	}
	return max(0, target.LastTransitionTime.Add(deletionTimeout).Sub(c.clock.Now())), true
}

// reconcilePod withdraws the announcement of a disruption that did not happen.
func (c *Controller) reconcilePod(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	pod, ok := c.pods.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	wait, stale := c.staleIn(pod)
	if !stale || wait > 0 {
		return controllers.Result{After: wait}, nil
	}
	pod = pod.DeepCopy()
	target := podcontrol.Condition(pod, corev1.DisruptionTarget)
	target.Status, target.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(c.clock.Now())
	_, err := c.pods.UpdateStatus(ctx, pod)
	return controllers.Result{}, err
}
