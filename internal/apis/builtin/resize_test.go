package builtin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"proa/internal/apis/core"
	"proa/internal/apis/feature"
)

func TestPodsAsAWholeAreResizedWithTheirGate(t *testing.T) {
	off, err := feature.ParseGates("InPlacePodLevelResourcesVerticalScaling=false")
	if err != nil {
		t.Fatal(err)
	}
	pod := func(cpu string, whole bool) *corev1.Pod {
		asks := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if whole {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: asks}
		} else {
			p.Spec.Containers[0].Resources.Requests = asks
		}
		core.DefaultPod(p)
		return p
	}
	const refused = `[]: Forbidden: resize of pods with pod-level resources is forbidden when InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled`
	tests := []struct {
		name  string
		gates feature.Gates
		whole bool
		want  string
	}{
		{"on", feature.Gates{}, true, ""},
		{"off", off, true, refused},
		{"off, of a container", off, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pods, _ := Serving(tt.gates, feature.Runtime{}).Stored(core.Pods.GroupResource())
			errs := pods.Subresource("resize").ValidateUpdate(t.Context(), pod("2", tt.whole), pod("1", tt.whole))
			got := ""
			if len(errs) > 0 {
				got = errs[0].Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
