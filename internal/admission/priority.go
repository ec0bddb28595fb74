package admission

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

// Priority resolves the priority class of a pod, and keeps the default class unique.
type Priority struct{ Store *store.Store }

func (Priority) Name() string { return "Priority" }

var priorityClasses = schema.GroupResource{Group: schedulingv1.GroupName, Resource: "priorityclasses"}

func (p Priority) Admit(_ context.Context, a *Attributes) error {
	pod, ok := a.podWritten()
	if !ok {
		return nil
	}
	switch a.Operation {
	case admissionv1.Create:
		return p.resolve(a, pod)
	case admissionv1.Update: // clients that do not know the fields leave them out
		if old, ok := a.OldObject.(*corev1.Pod); ok {
			if pod.Spec.Priority == nil {
				pod.Spec.Priority = old.Spec.Priority
			}
			if pod.Spec.PreemptionPolicy == nil {
				pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
			}
		}
	}
	return nil
}

func (p Priority) resolve(a *Attributes, pod *corev1.Pod) error {
	value, policy := int32(0), corev1.PreemptLowerPriority
	sn := p.Store.Snapshot()
	var class *schedulingv1.PriorityClass
	if name := pod.Spec.PriorityClassName; name != "" {
		var err error
		class, err = find[*schedulingv1.PriorityClass](sn, priorityClasses, "", name)
		if apierrors.IsNotFound(err) {
			return a.forbidden(fmt.Errorf("no PriorityClass with name %v was found", name))
		}
		if err != nil {
			return err
		}
	} else if class = defaultPriority(sn); class != nil {
		pod.Spec.PriorityClassName = class.Name
	}
	if class != nil {
		value = class.Value
		if class.PreemptionPolicy != nil {
			policy = *class.PreemptionPolicy
		}
	}
	if given := pod.Spec.Priority; given != nil && *given != value {
		return a.forbidden(fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *given, value))
	}
	if given := pod.Spec.PreemptionPolicy; given != nil && *given != policy {
		return a.forbidden(fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *given, policy))
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = &value, &policy
	return nil
}

// defaultPriority returns the class marked as default, the lowest of several.
func defaultPriority(sn *store.Snapshot) *schedulingv1.PriorityClass {
	var best *schedulingv1.PriorityClass
	for _, c := range all[*schedulingv1.PriorityClass](sn, priorityClasses, "") {
		if c.GlobalDefault && (best == nil || c.Value < best.Value) {
			best = c
		}
	}
	return best
}

func (p Priority) Validate(_ context.Context, a *Attributes) error {
	if !a.is(admissionv1.Create, priorityClasses) && !a.is(admissionv1.Update, priorityClasses) {
		return nil
	}
	class, ok := a.Object.(*schedulingv1.PriorityClass)
	if !ok || !class.GlobalDefault {
		return nil
	}
	if other := defaultPriority(p.Store.Snapshot()); other != nil && (a.Operation == admissionv1.Create || other.Name != class.Name) {
		return a.forbidden(fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", other.Name))
	}
	return nil
}
