package defaultpreemption

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func covers(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	if b.Namespace != pod.Namespace || len(pod.Labels) == 0 {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && !selector.Empty() && selector.Matches(labels.Set(pod.Labels))
}

// startOf is when a pod began to run; one that did not yet sorts after all others.
func startOf(pod *corev1.Pod) metav1.Time {
	if pod.Status.StartTime != nil {
		return *pod.Status.StartTime
	}
	return metav1.Unix(math.MaxInt32, 0)
}

// pick returns the candidate that costs least. Each criterion is asked only of
// those that are equal in the ones before it.
func pick(candidates []candidate) candidate {
	criteria := []func(c *candidate) int64{
		func(c *candidate) int64 { return int64(c.violations) },
		func(c *candidate) int64 { return int64(c.victims[0].Priority) },
		sumOfPriorities,
		func(c *candidate) int64 { return int64(len(c.victims)) },
		func(c *candidate) int64 { return -earliestStart(c) }, // the important ones ran shortest
	}
	rest := slices.Clone(candidates)
	for _, cost := range criteria {
		if len(rest) == 1 {
			break
		}
		least := int64(math.MaxInt64)
		for i := range rest {
			least = min(least, cost(&rest[i]))
		}
		rest = slices.DeleteFunc(rest, func(c candidate) bool { return cost(&c) > least })
	}
	return rest[0]
}

// sumOfPriorities counts every victim, also those of negative priority, as a cost.
func sumOfPriorities(c *candidate) int64 {
	var sum int64
	for _, v := range c.victims {
		sum += int64(v.Priority) + math.MaxInt32 + 1
	}
	return sum
}

// earliestStart is that of the victims of the highest priority.
func earliestStart(c *candidate) int64 {
	earliest := int64(math.MaxInt64)
	for _, v := range c.victims {
		if v.Priority == c.victims[0].Priority {
			start := startOf(v.Pod)
			earliest = min(earliest, start.UnixNano())
		}
	}
	return earliest
}
