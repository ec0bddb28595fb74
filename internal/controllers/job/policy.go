package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// verdict is what the pod failure policy says about one failed pod (KEP-3329).
type verdict struct {
	action  batchv1.PodFailurePolicyAction // "" where no rule matches
	message string                         // for FailJob
}

// counts tells whether the failure counts towards the backoff limit.
func (v verdict) counts() bool { return v.action != batchv1.PodFailurePolicyActionIgnore }

// judgePod applies the first rule that matches.
func judgePod(policy *batchv1.PodFailurePolicy, pod *corev1.Pod) verdict {
	if policy == nil {
		return verdict{}
	}
	for i := range policy.Rules {
		rule := &policy.Rules[i]
		if rule.OnExitCodes != nil {
			if c := exited(pod, rule.OnExitCodes); c != nil {
				return verdict{rule.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
					c.Name, pod.Namespace, pod.Name, c.State.Terminated.ExitCode, rule.Action, i)}
			}
		} else if t := conditioned(pod, rule.OnPodConditions); t != "" {
			return verdict{rule.Action, fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d",
				pod.Namespace, pod.Name, t, rule.Action, i)}
		}
	}
	return verdict{}
}

// exited returns the container that ended with an exit code that r matches.
// Success is no failure whatever the rule says.
func exited(pod *corev1.Pod, r *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			c := &list[i]
			t := c.State.Terminated
			if r.ContainerName != nil && *r.ContainerName != c.Name || t == nil || t.ExitCode == 0 {
				continue
			}
			if slices.Contains(r.Values, t.ExitCode) == (r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
				return c
			}
		}
	}
	return nil
}

func conditioned(pod *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) corev1.PodConditionType {
	for _, c := range pod.Status.Conditions {
		for _, p := range patterns {
			if c.Type == p.Type && c.Status == p.Status {
				return c.Type
			}
		}
	}
	return ""
}

// succeeds returns the first rule of a success policy that the succeeded
// indexes meet (KEP-3998).
func succeeds(policy *batchv1.SuccessPolicy, completions int, succeeded indexes) (message string, met bool) {
	if policy == nil {
		return "", false
	}
	for i, rule := range policy.Rules {
		have, want := succeeded.total(), completions
		if rule.SucceededIndexes != nil {
			asked := parseIndexes(*rule.SucceededIndexes, completions)
			have, want = succeeded.common(asked), asked.total()
		}
		if rule.SucceededCount != nil {
			want = int(*rule.SucceededCount)
		}
		if have >= want {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
