package admission

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresource "k8s.io/component-helpers/resource"

	"proa/internal/store"
)

// PodResizeValidator refuses a resize that the pod's node could never grant
// (KEP-1287).
type PodResizeValidator struct{ Store *store.Store }

// Name is upstream's.
func (PodResizeValidator) Name() string { return "PodResizeValidator" }

// Why a node cannot grant a resize.
const (
	nodeCapacity        metav1.CauseType = "NodeCapacity"
	unsupportedPlatform metav1.CauseType = "UnsupportedPlatform"
)

// Validate lets pass what does not change the spec of a pod that has a node.
func (p PodResizeValidator) Validate(_ context.Context, a *Attributes) error {
	if a.Operation != admissionv1.Update || a.Resource.GroupResource() != pods || a.Subresource != "resize" {
		return nil
	}
	pod, ok := a.Object.(*corev1.Pod)
	old, wasPod := a.OldObject.(*corev1.Pod)
	if !ok || !wasPod || pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	node, err := nodeOfResize(p.Store, a, pod)
	if err != nil {
		return err
	}
	if os := node.Labels[corev1.LabelOSStable]; os != "" && os != string(corev1.Linux) {
		return refuseResize(a, unsupportedPlatform, fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", node.Name, os))
	}
	if err := withinAllocatable(pod, node.Status.Allocatable); err != nil {
		return refuseResize(a, nodeCapacity, err)
	}
	return nil
}

// nodeOfResize is the node of a pod that is resized. Without it the resize is refused.
func nodeOfResize(s *store.Store, a *Attributes, pod *corev1.Pod) (*corev1.Node, error) {
	node, err := find[*corev1.Node](s.Snapshot(), nodes, "", pod.Spec.NodeName)
	switch {
	case apierrors.IsNotFound(err):
		return nil, a.forbidden(fmt.Errorf("node %q not found", pod.Spec.NodeName))
	case err != nil:
		return nil, a.forbidden(fmt.Errorf("failed to get node %q: %w", pod.Spec.NodeName, err))
	}
	return node, nil
}

func refuseResize(a *Attributes, reason metav1.CauseType, err error) error {
	refusal := a.forbidden(err)
	refusal.ErrStatus.Details.Causes = append(refusal.ErrStatus.Details.Causes, metav1.StatusCause{Type: reason})
	return refusal
}

// withinAllocatable compares what a pod asks for with all that its node has.
func withinAllocatable(pod *corev1.Pod, allocatable corev1.ResourceList) error {
	requests := podresource.PodRequests(pod, podresource.PodResourcesOptions{})
	var over []string
	if want, have := requests.Cpu(), allocatable.Cpu(); want.Cmp(*have) > 0 {
		over = append(over, fmt.Sprintf("cpu, requested: %d, allocatable: %d", want.MilliValue(), have.MilliValue()))
	}
	if want, have := requests.Memory(), allocatable.Memory(); want.Cmp(*have) > 0 {
		over = append(over, fmt.Sprintf("memory, requested: %d, allocatable: %d", want.Value(), have.Value()))
	}
	if len(over) > 0 {
		return fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(over, "; "))
	}
	return nil
}
