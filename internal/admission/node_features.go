package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"proa/internal/store"
)

// NodeDeclaredFeatureValidator refuses a change of a pod that its node has not
// declared it can make (KEP-5328): the resize of a container that runs before the
// others, and that of the pod as a whole.
type NodeDeclaredFeatureValidator struct{ Store *store.Store }

// Name is upstream's.
func (NodeDeclaredFeatureValidator) Name() string { return "NodeDeclaredFeatureValidator" }

// Validate looks at pods that have a node.
func (p NodeDeclaredFeatureValidator) Validate(_ context.Context, a *Attributes) error {
	if a.Operation != admissionv1.Update || a.Resource.GroupResource() != pods || a.Subresource != "resize" {
		return nil
	}
	pod, ok := a.Object.(*corev1.Pod)
	old, wasPod := a.OldObject.(*corev1.Pod)
	if !ok || !wasPod || pod.Spec.NodeName == "" {
		return nil
	}
	required := featuresOfResize(pod, old)
	if len(required) == 0 {
		return nil
	}
	node, err := nodeOfResize(p.Store, a, pod)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(required, func(f string) bool { return slices.Contains(node.Status.DeclaredFeatures, f) })
	if len(missing) > 0 {
		return a.forbidden(fmt.Errorf("pod update requires features %s which are not available on node %q", strings.Join(missing, ", "), node.Name))
	}
	return nil
}

// featuresOfResize are what a node must be able to do for a change of resources,
// in upstream's order.
func featuresOfResize(pod, old *corev1.Pod) []string {
	var required []string
	if (pod.Spec.Resources != nil || old.Spec.Resources != nil) && !apiequality.Semantic.DeepEqual(pod.Spec.Resources, old.Spec.Resources) {
		required = append(required, "InPlacePodLevelResourcesVerticalScaling")
	}
	if resizesInit(pod, old) {
		required = append(required, "InPlacePodVerticalScalingInitContainers")
	}
	return required
}

// resizesInit says that the resources of a container change that runs once, before
// the others.
func resizesInit(pod, old *corev1.Pod) bool {
	for i := range min(len(pod.Spec.InitContainers), len(old.Spec.InitContainers)) {
		c := &pod.Spec.InitContainers[i]
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if !sidecar && !apiequality.Semantic.DeepEqual(c.Resources, old.Spec.InitContainers[i].Resources) {
			return true
		}
	}
	return false
}
