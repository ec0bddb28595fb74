package eviction

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Annotations of the events of evicted pods.
const (
	annContainers      = "offending_containers"
	annContainersUsage = "offending_containers_usage"
	annPod             = "offending_pod"
	annPodUsage        = "offending_pod_usage"
	annStarved         = "starved_resource"
)

// explain says why a pod is evicted for a resource, for its status and its event: what
// the node is short of, and which containers use more than they requested.
func explain(c candidate, name corev1.ResourceName, due []Threshold, seen map[Signal]observation) (message string, annotations map[string]string) {
	message = fmt.Sprintf("The node was low on resource: %v. ", name)
	for _, t := range due {
		if o, ok := seen[t.Signal]; ok && signals[t.Signal].resource == name {
			want := t.Value.of(o.capacity)
			message += fmt.Sprintf("Threshold quantity: %v, available: %v. ", &want, &o.available)
			break
		}
	}
	annotations = map[string]string{}
	if c.stats == nil {
		return message, annotations
	}
	consumer := func(kind, who string, usage, request resource.Quantity) {
		message += fmt.Sprintf("%s %s was using %s, request is %s, has larger consumption of %v. ", kind, who, usage.String(), request.String(), name)
	}
	if name == corev1.ResourceMemory && resourcehelper.IsPodLevelResourcesSet(c.pod) {
		if request, set := c.pod.Spec.Resources.Requests[name]; set && c.stats.Memory != nil {
			usage := bytes(c.stats.Memory.WorkingSetBytes)
			consumer("Pod", c.pod.Name, usage, request)
			annotations[annPod], annotations[annPodUsage] = c.pod.Name, usage.String()
		}
	}
	var names, usages []string
	for i := range c.stats.Containers {
		ct := &c.stats.Containers[i]
		spec := containerOf(c.pod, ct.Name)
		if spec == nil {
			continue
		}
		usage, known := containerUsage(ct, name)
		if request := spec.Resources.Requests[name]; known && usage.Cmp(request) > 0 {
			consumer("Container", ct.Name, usage, request)
			names, usages = append(names, ct.Name), append(usages, usage.String())
		}
	}
	annotations[annContainers], annotations[annContainersUsage] = strings.Join(names, ","), strings.Join(usages, ",")
	annotations[annStarved] = string(name)
	return message, annotations
}

// containerOf finds a container that can request anything: ephemeral ones cannot.
func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func containerUsage(c *statsapi.ContainerStats, name corev1.ResourceName) (resource.Quantity, bool) {
	switch name {
	case corev1.ResourceEphemeralStorage:
		if c.Rootfs != nil && c.Rootfs.UsedBytes != nil && c.Logs != nil && c.Logs.UsedBytes != nil {
			sum := *c.Rootfs.UsedBytes + *c.Logs.UsedBytes
			return bytes(&sum), true
		}
	case corev1.ResourceMemory:
		if c.Memory != nil && c.Memory.WorkingSetBytes != nil {
			return bytes(c.Memory.WorkingSetBytes), true
		}
	}
	return resource.Quantity{}, false
}
