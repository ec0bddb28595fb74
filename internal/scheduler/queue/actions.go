package queue

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	resourcehelpers "k8s.io/component-helpers/resource"
	claims "k8s.io/dynamic-resource-allocation/resourceclaim"

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
	if !claims.PodStatusEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) {
		a |= framework.UpdatePodGeneratedClaim
	}
	if a == 0 && !equality.Semantic.DeepEqual(old.Spec, pod.Spec) {
		a |= framework.UpdateOther
	}
	return a
}

// scaledDown tells whether a pod takes less of some resource. A resize in place
// shows in its status first and last: what is allocated counts until it is given up.
func scaledDown(old, pod *corev1.Pod) bool {
	if sameResources(old, pod) {
		return false
	}
	opts := resourcehelpers.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	is := resourcehelpers.PodRequests(pod, opts)
	for name, was := range resourcehelpers.PodRequests(old, opts) {
		if now := is[name]; now.Cmp(was) < 0 {
			return true
		}
	}
	return false
}

// sameResources spares the sums for the many updates that change no resources.
func sameResources(old, pod *corev1.Pod) bool {
	same := func(a, b []corev1.Container) bool {
		return slices.EqualFunc(a, b, func(x, y corev1.Container) bool { return equality.Semantic.DeepEqual(x.Resources, y.Resources) })
	}
	allocated := func(a, b []corev1.ContainerStatus) bool {
		return slices.EqualFunc(a, b, func(x, y corev1.ContainerStatus) bool {
			return equality.Semantic.DeepEqual(x.AllocatedResources, y.AllocatedResources) && equality.Semantic.DeepEqual(x.Resources, y.Resources)
		})
	}
	return same(old.Spec.Containers, pod.Spec.Containers) && same(old.Spec.InitContainers, pod.Spec.InitContainers) &&
		allocated(old.Status.ContainerStatuses, pod.Status.ContainerStatuses) &&
		allocated(old.Status.InitContainerStatuses, pod.Status.InitContainerStatuses) &&
		equality.Semantic.DeepEqual(old.Spec.Resources, pod.Spec.Resources) &&
		equality.Semantic.DeepEqual(old.Status.AllocatedResources, pod.Status.AllocatedResources) &&
		equality.Semantic.DeepEqual(old.Status.Resources, pod.Status.Resources) &&
		conditionOf(old, corev1.PodResizePending) == conditionOf(pod, corev1.PodResizePending)
}

// conditionOf is a condition's reason, empty when the pod has not got it.
func conditionOf(pod *corev1.Pod, of corev1.PodConditionType) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == of {
			return c.Reason
		}
	}
	return ""
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
