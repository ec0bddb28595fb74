package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestNodesSayWhatTheyCanResize(t *testing.T) {
	const whole, init = "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"
	on := func(node, cpu, initCPU string) *corev1.Pod {
		p := pod()
		p.Spec.NodeName = node
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu", cpu)}
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: list("cpu", initCPU)}}}
		return p
	}
	able := nodeObject("able", func(n *corev1.Node) {
		n.Status.DeclaredFeatures = []string{whole, init}
		n.Status.Allocatable = list("cpu", "8", "memory", "8Gi")
	})
	unable := nodeObject("unable", func(n *corev1.Node) { n.Status.Allocatable = able.Status.Allocatable })
	w := newWorld(t, nil, able, unable)
	resize := func(node, cpu, initCPU string) write {
		return write{sub: "resize", obj: on(node, cpu, initCPU), old: on(node, "1", "1")}
	}
	const refused = `pods "p" is forbidden: pod update requires features `
	tests := []struct {
		name string
		write
		want string
	}{
		{"the pod as a whole where that can be", resize("able", "2", "1"), ""},
		{"the pod as a whole", resize("unable", "2", "1"), refused + whole + ` which are not available on node "unable"`},
		{"a container that runs before the others", resize("unable", "1", "2"), refused + init + ` which are not available on node "unable"`},
		{"both", resize("unable", "2", "2"), refused + whole + `, ` + init + ` which are not available on node "unable"`},
		{"neither", resize("unable", "1", "1"), ""},
		{"a pod without a node", resize("", "2", "2"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkError(t, w.run(t, tt.attributes(t), false), tt.want) })
	}
}
