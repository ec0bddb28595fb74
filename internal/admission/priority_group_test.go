package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
)

func TestGroupsOfPodsAreAsUrgentAsTheirClass(t *testing.T) {
	w := newWorld(t, nil,
		&schedulingv1.PriorityClass{ObjectMeta: meta("", "high"), Value: 7, PreemptionPolicy: new(corev1.PreemptNever)},
		&schedulingv1.PriorityClass{ObjectMeta: meta("", "usual"), Value: 3, GlobalDefault: true})
	group := func(class string, value *int32) *schedulingv1beta1.PodGroup {
		return &schedulingv1beta1.PodGroup{ObjectMeta: meta("ns", "g"), Spec: schedulingv1beta1.PodGroupSpec{PriorityClassName: class, Priority: value}}
	}
	tests := []struct {
		name   string
		group  *schedulingv1beta1.PodGroup
		class  string
		value  int32
		policy schedulingv1beta1.PreemptionPolicy
		want   string
	}{
		{"of a class", group("high", nil), "high", 7, "Never", ""},
		{"of a class whose value it knows", group("high", new(int32(7))), "high", 7, "Never", ""},
		{"of the default class", group("", nil), "usual", 3, "PreemptLowerPriority", ""},
		{"of no class there is", group("none", nil), "", 0, "", `podgroups.scheduling.k8s.io "g" is forbidden: no PriorityClass with name none was found`},
		{"of another value", group("high", new(int32(8))), "", 0, "",
			`podgroups.scheduling.k8s.io "g" is forbidden: the integer value of priority (8) must not be provided in pod group spec; priority admission controller computed 7 from the given PriorityClass name`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := w.run(t, write{obj: tt.group}.attributes(t), false)
			checkError(t, err, tt.want)
			if err != nil {
				return
			}
			s := tt.group.Spec
			if s.PriorityClassName != tt.class || s.Priority == nil || *s.Priority != tt.value || s.PreemptionPolicy == nil || *s.PreemptionPolicy != tt.policy {
				t.Errorf("the group is of class %q, %v, %v", s.PriorityClassName, s.Priority, s.PreemptionPolicy)
			}
		})
	}
	composite := &schedulingv1alpha3.CompositePodGroup{ObjectMeta: meta("ns", "g"), Spec: schedulingv1alpha3.CompositePodGroupSpec{PriorityClassName: "high"}}
	if err := w.run(t, write{obj: composite}.attributes(t), false); err != nil || composite.Spec.Priority == nil || *composite.Spec.Priority != 7 {
		t.Errorf("a group of groups is %v: %v", composite.Spec.Priority, err)
	}
}
