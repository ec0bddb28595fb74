package queue

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"proa/internal/scheduler/framework"
)

// PodActions tells what changed between two versions of a pod.
func PodActions(old, pod *corev1.Pod) framework.Action {
	var a framework.Action
	if !maps.Equal(old.Labels, pod.Labels) {
		a |= framework.UpdatePodLabel
	}
	if len(old.Spec.SchedulingGates) > 0 && len(pod.Spec.SchedulingGates) == 0 {
		a |= framework.UpdatePodGates
	}
	if len(old.Spec.Tolerations) != len(pod.Spec.Tolerations) {
		a |= framework.UpdatePodToleration
	}
	if scaledDown(old, pod) {
		a |= framework.UpdatePodScaleDown
	}
	if a == 0 && !equality.Semantic.DeepEqual(old.Spec, pod.Spec) {
		a |= framework.UpdateOther
	}
	return a
}

func scaledDown(old, pod *corev1.Pod) bool {
	if old.ResourceVersion == pod.ResourceVersion || len(old.Spec.Containers) != len(pod.Spec.Containers) {
		return false
	}
	for i := range pod.Spec.Containers {
		for name, was := range old.Spec.Containers[i].Resources.Requests {
			is := pod.Spec.Containers[i].Resources.Requests[name]
			if is.Cmp(was) < 0 {
				return true
			}
		}
	}
	return false
}

// NodeActions tells what changed between two versions of a node.
func NodeActions(old, node *corev1.Node) framework.Action {
	var a framework.Action
	if !equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) {
		a |= framework.UpdateNodeAllocatable
	}
	if !maps.Equal(old.Labels, node.Labels) {
		a |= framework.UpdateNodeLabel
	}
	if old.Spec.Unschedulable != node.Spec.Unschedulable || !equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		a |= framework.UpdateNodeTaint
	}
	if !equality.Semantic.DeepEqual(conditions(old), conditions(node)) {
		a |= framework.UpdateNodeCondition
	}
	return a
}

func conditions(node *corev1.Node) map[corev1.NodeConditionType]corev1.ConditionStatus {
	m := make(map[corev1.NodeConditionType]corev1.ConditionStatus, len(node.Status.Conditions))
	for _, c := range node.Status.Conditions {
		m[c.Type] = c.Status
	}
	return m
}
