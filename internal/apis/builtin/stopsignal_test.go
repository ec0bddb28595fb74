package builtin

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apis/feature"
)

// Pods and templates of pods lose lifecycle.stopSignal while its gate is off, which
// it is by default.
func TestStopSignalsWaitForTheirGate(t *testing.T) {
	on, err := feature.ParseGates("ContainerStopSignals=true")
	if err != nil {
		t.Fatal(err)
	}
	spec := func() corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Lifecycle: &corev1.Lifecycle{StopSignal: new(corev1.SIGTERM)}}}}
	}
	pod := func() (apis.Object, *corev1.PodSpec) {
		p := &corev1.Pod{Spec: spec()}
		return p, &p.Spec
	}
	deployment := func() (apis.Object, *corev1.PodSpec) {
		d := &appsv1.Deployment{}
		d.Spec.Template.Spec = spec()
		return d, &d.Spec.Template.Spec
	}
	tests := []struct {
		name   string
		gates  feature.Gates
		of     schema.GroupResource
		object func() (apis.Object, *corev1.PodSpec)
		kept   bool
	}{
		{"a pod", feature.Gates{}, schema.GroupResource{Resource: "pods"}, pod, false},
		{"a pod, on", on, schema.GroupResource{Resource: "pods"}, pod, true},
		{"a template", feature.Gates{}, schema.GroupResource{Group: "apps", Resource: "deployments"}, deployment, false},
		{"a template, on", on, schema.GroupResource{Group: "apps", Resource: "deployments"}, deployment, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kind, _ := Serving(tt.gates, feature.Runtime{}).Stored(tt.of)
			obj, s := tt.object()
			kind.PrepareCreate(obj)
			if got := s.Containers[0].Lifecycle; (got != nil) != tt.kept {
				t.Errorf("made with the lifecycle %v", got)
			}
			obj, s = tt.object()
			old, _ := tt.object()
			kind.PrepareUpdate(obj, old)
			if s.Containers[0].Lifecycle == nil {
				t.Error("an update takes away what was there before")
			}
		})
	}
}
