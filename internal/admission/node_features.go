package admission

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"proa/internal/store"
)

// NodeDeclaredFeatureValidator refuses a change of a pod that its node has not
// declared it can make (KEP-5328): the resize of a container that runs before the others.
type NodeDeclaredFeatureValidator struct{ Store *store.Store }

// Name is upstream's.
func (NodeDeclaredFeatureValidator) Name() string { return "NodeDeclaredFeatureValidator" }

const resizesInitContainers = "InPlacePodVerticalScalingInitContainers"

// Validate looks at pods that have a node.
func (p NodeDeclaredFeatureValidator) Validate(_ context.Context, a *Attributes) error {
	if a.Operation != admissionv1.Update || a.Resource.GroupResource() != pods || a.Subresource != "resize" {
		return nil
	}
	pod, ok := a.Object.(*corev1.Pod)
	old, wasPod := a.OldObject.(*corev1.Pod)
	if !ok || !wasPod || pod.Spec.NodeName == "" || !resizesInit(pod, old) {
		return nil
	}
	node, err := nodeOfResize(p.Store, a, pod)
	if err != nil {
		return err
	}
	if !slices.Contains(node.Status.DeclaredFeatures, resizesInitContainers) {
		return a.forbidden(fmt.Errorf("pod update requires features %s which are not available on node %q", resizesInitContainers, node.Name))
	}
	return nil
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
