// Package apps declares the kinds of the apps group, v1.
package apps

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"proa/internal/apis"
	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{&ControllerRevisions, &DaemonSets, &Deployments, &ReplicaSets, &StatefulSets}
}

// warnings are those of a workload kind with one pod template.
func warnings[T apis.Object](template func(T) *corev1.PodTemplateSpec, labelledName bool) func(obj, old apis.Object) []string {
	return func(obj, old apis.Object) []string {
		var before *corev1.PodTemplateSpec
		if old != nil {
			before = template(old.(T))
		}
		return core.WorkloadWarnings(obj, labelledName && old == nil, "spec.template", template(obj.(T)), before)
	}
}

func percent(s string) *intstr.IntOrString { return new(intstr.FromString(s)) }

func number(n int) *intstr.IntOrString { return new(intstr.FromInt(n)) }

// isZero reports a value that lets nothing move: 0, "0%" and what is no percentage.
func isZero(v *intstr.IntOrString) bool {
	if v == nil {
		return false
	}
	if v.Type == intstr.Int {
		return v.IntVal == 0
	}
	n, _ := validate.Percent(*v)
	return n == 0
}
