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

// Priority resolves the priority class of a pod, or of a group of pods, and keeps the
// default class unique.
type Priority struct{ Store *store.Store }

func (Priority) Name() string { return "Priority" }

var priorityClasses = schema.GroupResource{Group: schedulingv1.GroupName, Resource: "priorityclasses"}

func (p Priority) Admit(_ context.Context, a *Attributes) error {
	pod, ok := a.podWritten()
	if !ok {
		return p.admitGroup(a)
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
	found, err := p.established(a, pod.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	if given := pod.Spec.Priority; given != nil && *given != found.value {
		return a.forbidden(fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *given, found.value))
	}
	if given := pod.Spec.PreemptionPolicy; given != nil && *given != found.policy {
		return a.forbidden(fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *given, found.policy))
	}
	pod.Spec.PriorityClassName, pod.Spec.Priority, pod.Spec.PreemptionPolicy = found.class, &found.value, &found.policy
	return nil
}

// established is what a priority class says, or the want of one.
type established struct {
	class  string
	value  int32
	policy corev1.PreemptionPolicy
}

// established looks a class up by its name, or takes the default class.
func (p Priority) established(a *Attributes, name string) (established, error) {
	sn := p.Store.Snapshot()
	class := defaultPriority(sn)
	if name != "" {
		var err error
		class, err = find[*schedulingv1.PriorityClass](sn, priorityClasses, "", name)
		if apierrors.IsNotFound(err) {
			return established{}, a.forbidden(fmt.Errorf("no PriorityClass with name %v was found", name))
		}
		if err != nil {
			return established{}, err
		}
	}
	found := established{policy: corev1.PreemptLowerPriority}
	if class != nil {
		found.class, found.value = class.Name, class.Value
		if class.PreemptionPolicy != nil {
			found.policy = *class.PreemptionPolicy
		}
	}
	return found, nil
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
