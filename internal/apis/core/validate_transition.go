package core

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateTransitions: a container that ended for good does not come back. Where a
// rule may start all containers anew, none has.
func validateTransitions(is, was []corev1.ContainerStatus, containers []corev1.Container, s *corev1.PodSpec, path *field.Path) field.ErrorList {
	if allMayRestart(s) {
		return nil
	}
	var errs field.ErrorList
	for i := range was {
		ended := was[i].State.Terminated
		if ended == nil || !cameBack(&was[i], is) {
			continue
		}
		if c := containerNamed(containers, was[i].Name); c == nil || !ContainerRestarts(c, s.RestartPolicy, ended.ExitCode) {
			errs = append(errs, notBack(path, i))
		}
	}
	return errs
}

// validateEphemeralTransitions: ephemeral containers run once.
func validateEphemeralTransitions(is, was []corev1.ContainerStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range was {
		if was[i].State.Terminated != nil && cameBack(&was[i], is) {
			errs = append(errs, notBack(path, i))
		}
	}
	return errs
}

func notBack(path *field.Path, i int) *field.Error {
	return field.Forbidden(path.Index(i).Child("state"), "may not be transitioned to non-terminated state")
}

// cameBack says that a container which had ended is said not to have.
func cameBack(was *corev1.ContainerStatus, is []corev1.ContainerStatus) bool {
	return slices.ContainsFunc(is, func(s corev1.ContainerStatus) bool { return s.Name == was.Name && s.State.Terminated == nil })
}

func allMayRestart(s *corev1.PodSpec) bool {
	restartsAll := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	}
	return slices.ContainsFunc(s.Containers, restartsAll) || slices.ContainsFunc(s.InitContainers, restartsAll)
}

// ContainerRestarts says whether a container that ended with a code runs again: by its
// first rule for the code, by its own policy, or by the pod's (KEP-5307).
func ContainerRestarts(c *corev1.Container, policy corev1.RestartPolicy, code int32) bool {
	if c.RestartPolicy != nil {
		for _, r := range c.RestartPolicyRules {
			if on := r.ExitCodes; on != nil && slices.Contains(on.Values, code) != (on.Operator == corev1.ContainerRestartRuleOnExitCodesOpNotIn) {
				return r.Action == corev1.ContainerRestartRuleActionRestart
			}
		}
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}
