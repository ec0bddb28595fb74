package status

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Condition reasons.
const (
	containersNotReady       = "ContainersNotReady"
	containersNotInitialized = "ContainersNotInitialized"
	podCompleted             = "PodCompleted"
	podFailed                = "PodFailed"
	readinessGatesNotReady   = "ReadinessGatesNotReady"
)

func setConditions(s *corev1.PodStatus, in Input) {
	ready := containersReady(in.Pod, s)
	list := []corev1.PodCondition{
		sandboxReady(in),
		initialized(in.Pod, s),
		podReady(in.Pod, s, ready),
		ready,
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}
	if in.Resize != nil {
		list = append(list, *in.Resize)
	} else {
		s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizePending })
	}
	if in.End != nil {
		list = append(list, in.End.Conditions...)
	}
	for _, c := range list {
		c.ObservedGeneration = in.Pod.Generation
		s.Conditions = setCondition(s.Conditions, c, in.Now)
	}
}

func sandboxReady(in Input) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}
	if in.Runtime.SandboxReady() && (in.Pod.Spec.HostNetwork || len(in.Runtime.IPs()) > 0) {
		c.Status = corev1.ConditionTrue
	}
	return c
}

func initialized(pod *corev1.Pod, s *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if s.Phase == corev1.PodSucceeded {
		c.Reason = podCompleted
		return c
	}
	if anyEverStarted(s.ContainerStatuses) {
		return c
	}
	var incomplete []string
	for i := range pod.Spec.InitContainers {
		st := &s.InitContainerStatuses[i]
		done := st.Ready
		if isSidecar(&pod.Spec.InitContainers[i]) {
			done = st.Started != nil && *st.Started
		}
		if !done {
			incomplete = append(incomplete, st.Name)
		}
	}
	if len(incomplete) > 0 {
		c.Status, c.Reason = corev1.ConditionFalse, containersNotInitialized
		c.Message = fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return c
}

func containersReady(pod *corev1.Pod, s *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch s.Phase {
	case corev1.PodSucceeded:
		c.Reason = podCompleted
		return c
	case corev1.PodFailed:
		c.Reason = podFailed
		return c
	}
	var unready []string
	for i := range pod.Spec.InitContainers {
		if isSidecar(&pod.Spec.InitContainers[i]) && !s.InitContainerStatuses[i].Ready {
			unready = append(unready, s.InitContainerStatuses[i].Name)
		}
	}
	for i := range s.ContainerStatuses {
		if !s.ContainerStatuses[i].Ready {
			unready = append(unready, s.ContainerStatuses[i].Name)
		}
	}
	if len(unready) > 0 {
		c.Reason, c.Message = containersNotReady, fmt.Sprintf("containers with unready status: %s", unready)
		return c
	}
	c.Status = corev1.ConditionTrue
	return c
}

func podReady(pod *corev1.Pod, s *corev1.PodStatus, containers corev1.PodCondition) corev1.PodCondition {
	c := containers
	c.Type = corev1.PodReady
	if containers.Status != corev1.ConditionTrue {
		return c
	}
	var missing []string
	for _, gate := range pod.Spec.ReadinessGates {
		switch status, ok := conditionStatus(s.Conditions, gate.ConditionType); {
		case !ok:
			missing = append(missing, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case status != corev1.ConditionTrue:
			missing = append(missing, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, status))
		}
	}
	if len(missing) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, readinessGatesNotReady, strings.Join(missing, ", ")
	}
	return c
}

func conditionStatus(list []corev1.PodCondition, t corev1.PodConditionType) (corev1.ConditionStatus, bool) {
	for i := range list {
		if list[i].Type == t {
			return list[i].Status, true
		}
	}
	return "", false
}
