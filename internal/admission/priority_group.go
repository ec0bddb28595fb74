package admission

import (
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
)

// admitGroup resolves the class of a new group of pods (KEP-4671): its pods are as
// urgent as it is.
func (p Priority) admitGroup(a *Attributes) error {
	if a.Operation != admissionv1.Create || a.Subresource != "" {
		return nil
	}
	switch g := a.Object.(type) {
	case *schedulingv1beta1.PodGroup:
		return resolveGroup(p, a, &g.Spec.PriorityClassName, &g.Spec.Priority, &g.Spec.PreemptionPolicy)
	case *schedulingv1alpha3.CompositePodGroup:
		return resolveGroup(p, a, &g.Spec.PriorityClassName, &g.Spec.Priority, &g.Spec.PreemptionPolicy)
	}
	return nil
}

// resolveGroup fills in what follows from the class. The policy is dropped again
// where its gate is off.
func resolveGroup[P ~string](p Priority, a *Attributes, class *string, value **int32, policy **P) error {
	found, err := p.established(a, *class)
	if err != nil {
		return err
	}
	if given := *value; given != nil && *given != found.value {
		return a.forbidden(fmt.Errorf("the integer value of priority (%d) must not be provided in pod group spec; priority admission controller computed %d from the given PriorityClass name", *given, found.value))
	}
	preempts := P(found.policy)
	if given := *policy; given != nil && *given != preempts {
		return a.forbidden(fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod group spec; priority admission controller computed %s from the given PriorityClass name", *given, preempts))
	}
	*class, *value, *policy = found.class, &found.value, &preempts
	return nil
}
