package admission

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

// PodTopologyLabels gives a pod the zone and region of the node it is bound to,
// for its containers to read through the downward API (KEP-4742).
type PodTopologyLabels struct{ Store *store.Store }

func (PodTopologyLabels) Name() string { return "PodTopologyLabels" }

var bindings = schema.GroupResource{Resource: "bindings"}

func (p PodTopologyLabels) Admit(_ context.Context, a *Attributes) error {
	if a.Operation != admissionv1.Create || !a.of(bindings) && (!a.of(pods) || a.Subresource != "binding") {
		return nil
	}
	b, ok := a.Object.(*corev1.Binding)
	if !ok || b.Target.Kind != "" && b.Target.Kind != "Node" {
		return nil
	}
	node, err := find[*corev1.Node](p.Store.Snapshot(), nodes, "", b.Target.Name)
	if err != nil {
		return nil // the scheduler may be ahead of the node's registration
	}
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := node.Labels[key]; ok {
			if b.Labels == nil {
				b.Labels = map[string]string{}
			}
			b.Labels[key] = value
		}
	}
	return nil
}
