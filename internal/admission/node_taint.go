package admission

import (
	"context"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
)

// TaintNodesByCondition keeps pods off a new node until it has reported ready.
type TaintNodesByCondition struct{}

func (TaintNodesByCondition) Name() string { return "TaintNodesByCondition" }

func (TaintNodesByCondition) Admit(_ context.Context, a *Attributes) error {
	if !a.is(admissionv1.Create, nodes) {
		return nil
	}
	node, ok := a.Object.(*corev1.Node)
	if !ok {
		return nil
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return nil
}
