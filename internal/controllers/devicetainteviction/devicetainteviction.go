// Package devicetainteviction deletes pods that use devices with NoExecute taints
// which their claims do not tolerate, or no longer (KEP-5055). Drivers put taints
// on devices in ResourceSlices, administrators with DeviceTaintRules, whose status
// tells how far it went.
package devicetainteviction

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	draclaim "k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/podcondition"
)

// byPool is the index of slices, and of claims that have devices, by pool.
const byPool = "device-taint-eviction.pool"

const name = "device-taint-eviction-controller"

// Controller evicts pods.
type Controller struct {
	users    *controllers.Loop // pods
	statuses *controllers.Loop // rules
	pods     *client.Informer[*corev1.Pod]
	claims   *client.Informer[*resourcev1.ResourceClaim]
	slices   *client.Informer[*resourcev1.ResourceSlice]
	rules    *client.Informer[*resourcev1.DeviceTaintRule]
	clock    clock.PassiveClock
	events   controllers.EventRecorder
	deleted  prometheus.Counter
	took     prometheus.Histogram // from when a pod had to go, in seconds

	mu      sync.Mutex // guards what follows
	pending map[types.UID]struct{}
	evicted map[types.UID]int64 // pods, by rule
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	e := &Controller{
		pods:   client.Shared[*corev1.Pod](c.Cache),
		claims: client.Shared[*resourcev1.ResourceClaim](c.Cache),
		slices: client.Shared[*resourcev1.ResourceSlice](c.Cache),
		rules:  client.Shared[*resourcev1.DeviceTaintRule](c.Cache),
		clock:  c.Clock, events: c.Events(name),
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "device_taint_eviction_controller_pod_deletions_total", Help: "[ALPHA] Total number of Pods deleted by DeviceTaintEvictionController since its start.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "device_taint_eviction_controller_pod_deletion_duration_seconds",
			Help:    "[ALPHA] Latency, in seconds, between the time when a device taint effect has been activated and a Pod's deletion via DeviceTaintEvictionController.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
		}),
		pending: map[types.UID]struct{}{}, evicted: map[types.UID]int64{},
	}
	c.Register(e.deleted, e.took)
	e.users = controllers.NewLoop(name, c, e.reconcilePod)
	e.statuses = controllers.NewLoop("device-taint-rule-status", c, e.reconcileRule)
	e.slices.AddIndex(byPool, func(s *resourcev1.ResourceSlice) []string { return []string{poolKey(s.Spec.Driver, s.Spec.Pool.Name)} })
	e.claims.AddIndex(byPool, poolsOf)
	e.pods.OnChange(e.podChanged)
	e.claims.OnChange(func(old, claim *resourcev1.ResourceClaim) {
		same := old != nil && claim != nil && (old.Status.Allocation == nil) == (claim.Status.Allocation == nil)
		for _, r := range usersOf(old) {
			if !same || !slices.Contains(usersOf(claim), r) {
				e.enqueueUser(cmp.Or(claim, old).Namespace, r)
			}
		}
		for _, r := range usersOf(claim) {
			if !same || !slices.Contains(usersOf(old), r) {
				e.enqueueUser(claim.Namespace, r)
			}
		}
	})
	e.slices.OnChange(e.sliceChanged)
	e.rules.OnChange(e.ruleChanged)
	return e
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.statuses.Run(ctx) })
	defer wg.Wait()
	return c.users.Run(ctx)
}

func poolKey(driver, pool string) string { return driver + "/" + pool }

func poolsOf(claim *resourcev1.ResourceClaim) (keys []string) {
	for _, r := range resultsOf(claim) {
		keys = append(keys, poolKey(r.Driver, r.Pool))
	}
	return keys
}

func resultsOf(claim *resourcev1.ResourceClaim) []resourcev1.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	return claim.Status.Allocation.Devices.Results
}

func (c *Controller) podChanged(old, pod *corev1.Pod) {
	if pod == nil {
		c.settle(old.UID)
		return
	}
	if len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil || pod.Spec.NodeName == "" {
		return
	}
	if old != nil && old.Spec.NodeName == pod.Spec.NodeName && draclaim.PodStatusEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) &&
		draclaim.PodExtendedStatusEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus) {
		return
	}
	c.users.EnqueueObject(pod)
}

func (c *Controller) enqueueUsers(claim *resourcev1.ResourceClaim) {
	for _, r := range usersOf(claim) {
		c.enqueueUser(claim.Namespace, r)
	}
}

func usersOf(claim *resourcev1.ResourceClaim) []resourcev1.ResourceClaimConsumerReference {
	if claim == nil {
		return nil
	}
	return claim.Status.ReservedFor
}

func (c *Controller) enqueueUser(namespace string, r resourcev1.ResourceClaimConsumerReference) {
	if r.APIGroup == "" && r.Resource == "pods" {
		c.users.Enqueue(controllers.Key{Namespace: namespace, Name: r.Name})
	}
}

func (c *Controller) sliceChanged(old, slice *resourcev1.ResourceSlice) {
	if old != nil && slice != nil && old.Spec.Pool == slice.Spec.Pool && equality.Semantic.DeepEqual(noExecute(old), noExecute(slice)) {
		return
	}
	for _, s := range []*resourcev1.ResourceSlice{old, slice} {
		if s == nil {
			continue
		}
		for _, claim := range c.claims.ByIndex(byPool, poolKey(s.Spec.Driver, s.Spec.Pool.Name)) {
			c.enqueueUsers(claim)
		}
	}
}

// noExecute are the taints of a slice's devices that evict.
func noExecute(s *resourcev1.ResourceSlice) map[string][]resourcev1.DeviceTaint {
	of := map[string][]resourcev1.DeviceTaint{}
	for i := range s.Spec.Devices {
		for _, t := range s.Spec.Devices[i].Taints {
			if t.Effect == resourcev1.DeviceTaintEffectNoExecute {
				of[s.Spec.Devices[i].Name] = append(of[s.Spec.Devices[i].Name], t)
			}
		}
	}
	return of
}

func (c *Controller) ruleChanged(old, rule *resourcev1.DeviceTaintRule) {
	if old != nil && (rule == nil || rule.UID != old.UID) {
		c.mu.Lock()
		delete(c.evicted, old.UID)
		c.mu.Unlock()
	}
	if old != nil && rule != nil && equality.Semantic.DeepEqual(old.Spec, rule.Spec) {
		return
	}
	if rule != nil {
		c.statuses.EnqueueObject(rule)
	}
	for _, claim := range c.claims.Select("", labels.Everything()) {
		for _, r := range resultsOf(claim) {
			if evicts(old) && selects(old, &r) || evicts(rule) && selects(rule, &r) {
				c.enqueueUsers(claim)
				break
			}
		}
	}
}

func evicts(rule *resourcev1.DeviceTaintRule) bool {
	return rule != nil && rule.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute
}

func selects(rule *resourcev1.DeviceTaintRule, r *resourcev1.DeviceRequestAllocationResult) bool {
	return selectsDevice(rule, r.Driver, r.Pool, r.Device)
}

func selectsDevice(rule *resourcev1.DeviceTaintRule, driver, pool, device string) bool {
	s := rule.Spec.DeviceSelector
	same := func(want *string, is string) bool { return want == nil || *want == is }
	return s != nil && same(s.Driver, driver) && same(s.Pool, pool) && same(s.Device, device)
}

func (c *Controller) reconcilePod(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	pod, ok := c.pods.Cached(key.Namespace, key.Name)
	if !ok || pod.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	due := c.evictionOf(pod, c.evictingRules())
	if due == nil {
		if c.settle(pod.UID) {
			c.events.Event(pod, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Cancelling deletion")
		}
		return controllers.Result{}, nil
	}
	c.mu.Lock()
	c.pending[pod.UID] = struct{}{}
	c.mu.Unlock()
	for _, rule := range due.rules {
		c.statuses.EnqueueAfter(controllers.Key{Name: rule.Name}, statusPeriod)
	}
	if left := due.when.Sub(c.clock.Now()); left > 0 {
		return controllers.Result{After: left}, nil
	}
	return controllers.Result{}, c.evict(ctx, pod, due)
}

// settle forgets an eviction and tells whether there was one.
func (c *Controller) settle(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, was := c.pending[uid]
	delete(c.pending, uid)
	return was
}

func (c *Controller) evict(ctx context.Context, pod *corev1.Pod, due *eviction) error {
	c.events.Event(pod, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
	condition := &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByDeviceTaintManager", Message: "Device Taint manager: deleting due to NoExecute taint",
	}
	if err := podcondition.Patch(ctx, c.pods, pod, condition, "", metav1.NewTime(c.clock.Now())); err != nil {
		return fmt.Errorf("mark for deletion: %w", err)
	}
	_, err := c.pods.Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.settle(pod.UID)
	c.deleted.Inc()
	if !due.when.IsZero() { // as it is of a taint that has no time
		c.took.Observe(c.clock.Since(due.when).Seconds())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rule := range due.rules {
		c.evicted[rule.UID]++
	}
	return nil
}

// eviction is when a pod has to go, and which rules have to do with it.
type eviction struct {
	when  time.Time
	rules []*resourcev1.DeviceTaintRule
}

func (c *Controller) evictingRules() []*resourcev1.DeviceTaintRule {
	return slices.DeleteFunc(c.rules.Select("", labels.Everything()), func(r *resourcev1.DeviceTaintRule) bool { return !evicts(r) })
}

// evictionOf is nil for a pod that may stay. It goes as soon as the first of its
// claims has to be given up.
func (c *Controller) evictionOf(pod *corev1.Pod, rules []*resourcev1.DeviceTaintRule) (due *eviction) {
	if pod.Spec.NodeName == "" {
		return nil
	}
	note := func(when time.Time, rule *resourcev1.DeviceTaintRule) {
		if due == nil {
			due = &eviction{when: when}
		}
		if when.Before(due.when) {
			due.when = when
		}
		if rule != nil && !slices.Contains(due.rules, rule) {
			due.rules = append(due.rules, rule)
		}
	}
	for name, generated := range draclaim.PodClaims(pod) {
		claim, ok := c.claims.Cached(pod.Namespace, name)
		if !ok || generated && draclaim.IsForPod(pod, claim, false) != nil || !draclaim.IsReservedForPod(pod, claim, false) {
			continue
		}
		results := resultsOf(claim)
		for j := range results {
			r := &results[j]
			for _, taint := range c.taintsOf(r) {
				if when, stays := tolerated(r.Tolerations, taint); !stays {
					note(when, nil)
				}
			}
			for _, rule := range rules {
				if !selects(rule, r) {
					continue
				}
				taint := rule.Spec.Taint
				taint.Effect = resourcev1.DeviceTaintEffectNoExecute
				if when, stays := tolerated(r.Tolerations, taint); !stays {
					note(when, rule)
				}
			}
		}
	}
	return due
}

// taintsOf are those that evict, of a device as its driver publishes it now.
func (c *Controller) taintsOf(r *resourcev1.DeviceRequestAllocationResult) []resourcev1.DeviceTaint {
	for _, s := range newest(c.slices.ByIndex(byPool, poolKey(r.Driver, r.Pool))) {
		if taints, ok := noExecute(s)[r.Device]; ok {
			return taints
		}
	}
	return nil
}

// newest are the slices of a pool's latest generation.
func newest(pool []*resourcev1.ResourceSlice) (latest []*resourcev1.ResourceSlice) {
	for _, s := range pool {
		switch {
		case len(latest) == 0 || s.Spec.Pool.Generation > latest[0].Spec.Pool.Generation:
			latest = []*resourcev1.ResourceSlice{s}
		case s.Spec.Pool.Generation == latest[0].Spec.Pool.Generation:
			latest = append(latest, s)
		}
	}
	return latest
}

// tolerated says until when a taint is tolerated, or that it is for good. Of several
// tolerations the shortest counts.
func tolerated(tolerations []resourcev1.DeviceToleration, taint resourcev1.DeviceTaint) (until time.Time, forever bool) {
	if taint.TimeAdded != nil {
		until = taint.TimeAdded.Time
	}
	shortest := int64(-1)
	for _, t := range tolerations {
		if t.Effect != resourcev1.DeviceTaintEffectNoExecute || !draclaim.ToleratesTaint(t, taint) {
			continue
		}
		if t.TolerationSeconds == nil {
			return time.Time{}, true
		}
		if s := max(*t.TolerationSeconds, 0); shortest < 0 || s < shortest {
			shortest = s
		}
	}
	return until.Add(time.Duration(max(shortest, 0)) * time.Second), false
}
