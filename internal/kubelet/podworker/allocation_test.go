package podworker

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func cpu(quantity string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
}

// asking is a pod of one container that asks for this much of the processor.
func asking(quantity string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: cpu(quantity), Limits: cpu(quantity)}}}}}
}

func TestAPodKeepsWhatItWasGiven(t *testing.T) {
	written := asking("4")
	written.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: cpu("1"), Resources: &corev1.ResourceRequirements{Limits: cpu("2")}}}
	tests := []struct {
		name             string
		given            allocation
		pod              *corev1.Pod
		requests, limits string
	}{
		{"before admission, what it asks for", allocation{}, asking("4"), "4", "4"},
		{"given what it asked for", asked(asking("4")), asking("4"), "4", "4"},
		{"given less than it asks for now", asked(asking("1")), asking("4"), "1", "1"},
		{"given more than it asks for now", asked(asking("4")), asking("1"), "4", "4"},
		{"after a restart, what the status says", recorded(written), written, "1", "2"},
		{"after a restart, with no status yet", recorded(asking("4")), asking("4"), "4", "4"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := test.pod.DeepCopy()
			r := test.given.of(test.pod).Spec.Containers[0].Resources
			if r.Requests.Cpu().String() != test.requests || r.Limits.Cpu().String() != test.limits {
				t.Errorf("requests %v, limits %v; want %s and %s", r.Requests.Cpu(), r.Limits.Cpu(), test.requests, test.limits)
			}
			if !asked(before).equal(asked(test.pod)) {
				t.Error("the object that others share was changed")
			}
		})
	}
}
