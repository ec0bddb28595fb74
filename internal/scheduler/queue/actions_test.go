package queue

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"proa/internal/scheduler/framework"
)

func TestWhatChangedInAPod(t *testing.T) {
	cpu := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
	}
	sized := func(spec, allocated string) *corev1.Pod {
		p := testPod("p", 0)
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: cpu(spec)}}}
		if allocated != "" {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: cpu(allocated), Resources: &corev1.ResourceRequirements{Requests: cpu(allocated)}}}
		}
		return p
	}
	labelled := sized("2", "")
	labelled.Labels = map[string]string{"a": "b"}
	infeasible := sized("4", "2")
	infeasible.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: corev1.PodReasonInfeasible}}
	for _, c := range []struct {
		name string
		old  *corev1.Pod
		pod  *corev1.Pod
		want framework.Action
	}{
		{"nothing", sized("2", "2"), sized("2", "2"), 0},
		{"labels", sized("2", ""), labelled, framework.UpdatePodLabel},
		{"a waiting pod asks for less", sized("2", ""), sized("1", ""), framework.UpdatePodScaleDown},
		{"a running pod is told to shrink but has not yet", sized("2", "2"), sized("1", "2"), framework.UpdateOther},
		{"it has", sized("1", "2"), sized("1", "1"), framework.UpdatePodScaleDown},
		{"it grows", sized("2", "2"), sized("3", "2"), framework.UpdateOther},
		{"its growth is found infeasible", sized("4", "2"), infeasible, framework.UpdatePodScaleDown},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := PodActions(c.old, c.pod); got != c.want {
				t.Errorf("%b, want %b", got, c.want)
			}
		})
	}
}
