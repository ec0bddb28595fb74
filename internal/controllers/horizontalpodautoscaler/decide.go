package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// decision is how many replicas a target is to have, and why.
type decision struct {
	replicas int32
	reason   string
	metrics  []autoscalingv2.MetricStatus
	failed   bool // no number came out
}

// decide computes the replicas. It may both decide and fail: on the metrics that work.
func (r *run) decide(ctx context.Context, scale *autoscalingv1.Scale, past *history) (decision, error) {
	spec := &r.hpa.Spec
	current, least := scale.Spec.Replicas, int32(1)
	if spec.MinReplicas != nil {
		least = *spec.MinReplicas
	}
	switch {
	case current == 0 && !r.mayScaleFromZero(least):
		r.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
		return decision{}, nil
	case current > spec.MaxReplicas:
		return decision{replicas: spec.MaxReplicas, reason: "Current number of replicas above Spec.MaxReplicas"}, nil
	case current != 0 && current < least:
		return decision{replicas: least, reason: belowMinimum}, nil
	}
	p, statuses, err := r.propose(ctx, scale)
	if p == nil {
		return decision{metrics: statuses, failed: true}, err
	}
	d := decision{replicas: p.replicas, metrics: statuses}
	switch {
	case p.replicas > current:
		d.reason = p.metric + " above target"
	case p.replicas < current:
		d.reason = "All metrics below target"
	}
	v := past.limit(bounds{current: current, min: least, max: spec.MaxReplicas, behavior: spec.Behavior}, p.replicas, r.now)
	r.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, v.stabilized.reason, "%s", v.stabilized.message)
	limited := corev1.ConditionFalse
	if v.limited {
		limited = corev1.ConditionTrue
	}
	r.condition(autoscalingv2.ScalingLimited, limited, v.reason, "%s", v.message)
	d.replicas = v.replicas
	if current == 0 && d.replicas < least {
		d.replicas = least
		if d.reason == "" {
			d.reason = belowMinimum
		}
	}
	return d, err
}

const belowMinimum = "Current number of replicas below Spec.MinReplicas"

// mayScaleFromZero tells that a target without replicas is to get some: this
// autoscaler took them, and has either to bring it to its minimum or a metric that
// does not need pods.
func (r *run) mayScaleFromZero(least int32) bool {
	return r.scaledToZero() && (least != 0 || r.measuresMoreThanPods())
}

// scaledToZero tells that the target has no replicas because this autoscaler
// took them, not because someone switched it off.
func (r *run) scaledToZero() bool {
	return slices.ContainsFunc(r.hpa.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScaledToZero && c.Status == corev1.ConditionTrue
	})
}

// proposal is what one metric asks for.
type proposal struct {
	replicas int32
	metric   string // as in events and conditions
	status   autoscalingv2.MetricStatus
}

// failure is why a metric asks for nothing: the reason of event and condition,
// and what they tell, of which the run's error says more.
type failure struct {
	reason string
	cause  error
	within string
}

func (f *failure) Error() string { return f.within + ": " + f.cause.Error() }
func (f *failure) Unwrap() error { return f.cause }

// propose asks every metric and takes the largest answer, nil if there is none:
// all metrics fail, or some do and the others would scale down.
func (r *run) propose(ctx context.Context, scale *autoscalingv1.Scale) (*proposal, []autoscalingv2.MetricStatus, error) {
	selector, pods, err := r.selected(scale)
	if err != nil {
		return nil, nil, err
	}
	specs := r.hpa.Spec.Metrics
	statuses := make([]autoscalingv2.MetricStatus, len(specs))
	m := measurement{run: r, scale: scale, selector: selector, pods: pods}
	var best *proposal
	var failures []*failure
	for i := range specs {
		began := r.clock.Now()
		p, f := m.of(ctx, &specs[i])
		if f != nil {
			r.measure.computed(noAction, f, string(specs[i].Type), r.clock.Since(began))
			r.events.Event(r.hpa, corev1.EventTypeWarning, f.reason, f.cause.Error())
			failures = append(failures, f)
			continue
		}
		r.measure.computed(action(scale.Spec.Replicas, p.replicas), nil, string(specs[i].Type), r.clock.Since(began))
		statuses[i] = p.status
		if best == nil || p.replicas > best.replicas {
			best = p
		}
	}
	if len(failures) > 0 {
		first := failures[0]
		err = fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", len(failures), len(specs), first)
		if best == nil || best.replicas < scale.Spec.Replicas {
			r.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, first.reason, "the HPA was unable to compute the replica count: %v", first.cause)
			return nil, statuses, err
		}
	}
	if best == nil {
		return nil, statuses, errors.New("no metrics")
	}
	r.condition(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from %s", best.metric)
	return best, statuses, err
}

// selected finds the pods of the target, which no other autoscaler may scale.
func (r *run) selected(scale *autoscalingv1.Scale) (labels.Selector, []*corev1.Pod, error) {
	if scale.Status.Selector == "" {
		const message = "selector is required"
		r.events.Event(r.hpa, corev1.EventTypeWarning, "SelectorRequired", message)
		r.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "InvalidSelector", "the HPA target's scale is missing a selector")
		return nil, nil, errors.New(message)
	}
	selector, err := labels.Parse(scale.Status.Selector)
	if err != nil {
		return nil, nil, r.refuse("InvalidSelector", fmt.Errorf("couldn't convert selector into a corresponding internal selector object: %w", err))
	}
	pods := r.pods.Select(r.hpa.Namespace, selector)
	if sharing := r.claim(selector, pods); len(sharing) > 1 {
		return nil, nil, r.refuse("AmbiguousSelector", fmt.Errorf("pods by selector %v are controlled by more than one HPA (e.g. %v)", scale.Status.Selector, sharing[:2]))
	}
	return selector, pods, nil
}

func (r *run) refuse(reason string, err error) error {
	r.events.Event(r.hpa, corev1.EventTypeWarning, reason, err.Error())
	r.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, reason, "%s", err.Error())
	return err
}

// claim remembers which pods this autoscaler scales and returns all that scale any of them.
func (r *run) claim(selector labels.Selector, pods []*corev1.Pod) []scaler {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Controller.selectors[r.key] = selector
	var sharing []scaler
	for key, other := range r.Controller.selectors {
		if key.Namespace == r.key.Namespace && slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return other.Matches(labels.Set(p.Labels)) }) {
			sharing = append(sharing, scaler{key.Name, key.Namespace})
		}
	}
	slices.SortFunc(sharing, func(a, b scaler) int { return strings.Compare(a.Name, b.Name) })
	return sharing
}

// scaler names an autoscaler as messages print it.
type scaler struct{ Name, Namespace string }
