package devicetainteviction

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/controllers"
)

// statusPeriod is how long a rule's status stands before pods that come and go
// change it.
const statusPeriod = 10 * time.Second

// reconcileRule tells in a rule's status what it does, or would do.
func (c *Controller) reconcileRule(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	rule, ok := c.rules.Cached("", key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	now := c.clock.Now()
	i := slices.IndexFunc(rule.Status.Conditions, func(d metav1.Condition) bool {
		return d.Type == resourcev1.DeviceTaintConditionEvictionInProgress
	})
	var is metav1.Condition
	if i >= 0 {
		is = rule.Status.Conditions[i]
		if age := now.Sub(is.LastTransitionTime.Time); is.ObservedGeneration == rule.Generation && age >= 0 && age < statusPeriod {
			return controllers.Result{After: statusPeriod - age}, nil
		}
	}
	want := c.condition(rule)
	var next controllers.Result
	if want.Status == metav1.ConditionTrue { // until the last pod has gone
		next.After = statusPeriod
	}
	want.LastTransitionTime = is.LastTransitionTime
	if want == is {
		return next, nil
	}
	want.LastTransitionTime = metav1.NewTime(now)
	rule = rule.DeepCopy()
	if i >= 0 {
		rule.Status.Conditions[i] = want
	} else {
		rule.Status.Conditions = append(rule.Status.Conditions, want)
	}
	_, err := c.rules.UpdateStatus(ctx, rule)
	return next, err
}

func (c *Controller) condition(rule *resourcev1.DeviceTaintRule) metav1.Condition {
	d := metav1.Condition{
		Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse, ObservedGeneration: rule.Generation,
	}
	c.mu.Lock()
	evicted := c.evicted[rule.UID]
	c.mu.Unlock()
	switch rule.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute:
		pods, namespaces := c.affected(rule)
		switch {
		case pods > 0:
			d.Status, d.Reason = metav1.ConditionTrue, "PodsPendingEviction"
			d.Message = counted(pods, "pod needs", "pods need") + " to be evicted in " + counted(namespaces, "namespace", "different namespaces") + "."
		case evicted > 0:
			d.Reason = "Completed"
		default:
			d.Reason = "NotStarted"
		}
	case resourcev1.DeviceTaintEffectNone:
		pods, namespaces := c.affected(rule)
		published, allocated := c.selected(rule)
		d.Reason = "NoEffect"
		d.Message = counted(published, "published device", "published devices") + " selected. " +
			counted(allocated, "allocated device", "allocated devices") + " selected. " +
			counted(pods, "pod", "pods") + " would be evicted in " + counted(namespaces, "namespace", "different namespaces") +
			" if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."
	default:
		d.Reason, d.Message = "OtherEffect", "Eviction only happens for the NoExecute effect."
	}
	if evicted > 0 {
		if d.Message != "" {
			d.Message += " "
		}
		d.Message += counted(int(evicted), "pod", "pods") + " evicted since starting the controller."
	}
	return d
}

func counted(n int, singular, plural string) string {
	if n == 1 {
		return "1 " + singular
	}
	return fmt.Sprint(n, " ", plural)
}

// affected counts the pods that have to go because of a rule, or would if it evicted,
// and their namespaces.
func (c *Controller) affected(rule *resourcev1.DeviceTaintRule) (pods, namespaces int) {
	rules := c.evictingRules()
	if !evicts(rule) {
		rules = append(rules, rule)
	}
	seen, in := map[types.UID]struct{}{}, map[string]struct{}{}
	for _, claim := range c.claims.Select("", labels.Everything()) {
		if !slices.ContainsFunc(resultsOf(claim), func(r resourcev1.DeviceRequestAllocationResult) bool { return selects(rule, &r) }) {
			continue
		}
		for _, consumer := range claim.Status.ReservedFor {
			pod, ok := c.pods.Cached(claim.Namespace, consumer.Name)
			if _, twice := seen[consumer.UID]; twice || !ok || pod.UID != consumer.UID || pod.DeletionTimestamp != nil {
				continue
			}
			seen[consumer.UID] = struct{}{}
			due := c.evictionOf(pod, rules)
			if due != nil && slices.ContainsFunc(due.rules, func(r *resourcev1.DeviceTaintRule) bool { return r.UID == rule.UID }) {
				pods++
				in[pod.Namespace] = struct{}{}
			}
		}
	}
	return pods, len(in)
}

// selected counts the devices that a rule is about.
func (c *Controller) selected(rule *resourcev1.DeviceTaintRule) (published, allocated int) {
	pools := map[string][]*resourcev1.ResourceSlice{}
	for _, s := range c.slices.Select("", labels.Everything()) {
		key := poolKey(s.Spec.Driver, s.Spec.Pool.Name)
		pools[key] = append(pools[key], s)
	}
	for _, pool := range pools {
		for _, s := range newest(pool) {
			for i := range s.Spec.Devices {
				if selectsDevice(rule, s.Spec.Driver, s.Spec.Pool.Name, s.Spec.Devices[i].Name) {
					published++
				}
			}
		}
	}
	for _, claim := range c.claims.Select("", labels.Everything()) {
		for _, r := range resultsOf(claim) {
			if selects(rule, &r) {
				allocated++
			}
		}
	}
	return published, allocated
}
