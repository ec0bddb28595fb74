package dynamicresources

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const gpu = corev1.ResourceName("example.com/gpu")

func asks(name string, gpus int64) corev1.Container {
	c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}
	if gpus > 0 {
		c.Resources.Requests[gpu] = *resource.NewQuantity(gpus, resource.DecimalSI)
	}
	return c
}

func sidecar(name string, gpus int64) corev1.Container {
	c := asks(name, gpus)
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	return c
}

func TestContainersShareRequestsAsTheyRun(t *testing.T) {
	for _, test := range []struct {
		name             string
		init, containers []corev1.Container
		want             string // requests with counts, then who uses which
	}{
		{"a container asks for itself", nil, []corev1.Container{asks("a", 2), asks("b", 0)},
			"container-0-request-1:2 | a container-0-request-1"},
		{"containers run at the same time", nil, []corev1.Container{asks("a", 2), asks("b", 1)},
			"container-0-request-1:2 container-1-request-1:1 | a container-0-request-1, b container-1-request-1"},
		{"an init container uses what later ones hold", []corev1.Container{asks("i", 2)}, []corev1.Container{asks("a", 2)},
			"container-1-request-1:2 | a container-1-request-1, i container-1-request-1"},
		{"it asks for what is missing then", []corev1.Container{asks("i", 5)}, []corev1.Container{asks("a", 2)},
			"container-0-request-1:3 container-1-request-1:2 | a container-1-request-1, i container-1-request-1, i container-0-request-1"},
		{"init containers share the largest request", []corev1.Container{asks("i", 1), asks("j", 3), asks("k", 2)}, []corev1.Container{asks("a", 0)},
			"container-1-request-1:3 | i container-1-request-1, j container-1-request-1, k container-1-request-1"},
		{"a sidecar stays, and only later ones are reused", []corev1.Container{sidecar("s", 1), asks("i", 1)}, []corev1.Container{asks("a", 0)},
			"container-0-request-1:1 container-1-request-1:1 | s container-0-request-1, i container-1-request-1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: test.init, Containers: test.containers}}
			requests, mappings := requestsFor(pod, map[corev1.ResourceName]string{gpu: "gpu"})
			var counts, uses []string
			for _, r := range requests {
				if r.Exactly.DeviceClassName != "gpu" {
					t.Errorf("class %s", r.Exactly.DeviceClassName)
				}
				counts = append(counts, fmt.Sprintf("%s:%d", r.Name, r.Exactly.Count))
			}
			for _, m := range mappings {
				if m.ResourceName != string(gpu) {
					t.Errorf("resource %s", m.ResourceName)
				}
				uses = append(uses, m.ContainerName+" "+m.RequestName)
			}
			if got := strings.Join(counts, " ") + " | " + strings.Join(uses, ", "); got != test.want {
				t.Errorf("\n got %s\nwant %s", got, test.want)
			}
			if !slices.IsSorted(counts) {
				t.Errorf("requests %v", counts)
			}
		})
	}
}
