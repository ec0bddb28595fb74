package environment

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// PodField returns the value of a downward API field. HostIPs and PodIPs, when
// not empty, win over the pod's status, which lags behind what the node knows.
func PodField(pod *corev1.Pod, ref *corev1.ObjectFieldSelector, hostIPs, podIPs []string) (string, error) {
	if len(hostIPs) == 0 {
		for _, ip := range pod.Status.HostIPs {
			hostIPs = append(hostIPs, ip.IP)
		}
	}
	if len(podIPs) == 0 {
		for _, ip := range pod.Status.PodIPs {
			podIPs = append(podIPs, ip.IP)
		}
	}
	if len(podIPs) == 0 && pod.Spec.HostNetwork {
		podIPs = hostIPs
	}
	switch ref.FieldPath {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName", "spec.host":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(hostIPs), nil
	case "status.hostIPs":
		return strings.Join(hostIPs, ","), nil
	case "status.podIP":
		return first(podIPs), nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	if key, ok := subscript(ref.FieldPath, "metadata.labels"); ok {
		return pod.Labels[key], nil
	}
	if key, ok := subscript(ref.FieldPath, "metadata.annotations"); ok {
		return pod.Annotations[key], nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", ref.FieldPath)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// subscript splits path['key'].
func subscript(s, path string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(s, path+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}

func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, fmt.Sprintf("%v=%q", k, m[k]))
	}
	return strings.Join(lines, "\n")
}

// ResourceField returns a container's request or limit, divided by the
// reference's divisor and rounded up. A limit that is not set is the pod's, else
// the node's allocatable.
func ResourceField(pod *corev1.Pod, container *corev1.Container, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList) (string, error) {
	side, name, ok := strings.Cut(ref.Resource, ".")
	kind := corev1.ResourceName(name)
	if !ok || (side != "limits" && side != "requests") || !exposed(kind) {
		return "", fmt.Errorf("Unsupported container resource : %v", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	amount := container.Resources.Requests[kind]
	if side == "limits" {
		amount = effectiveLimit(pod, container, kind, allocatable)
	}
	if kind == corev1.ResourceCPU {
		return divide(amount.MilliValue(), divisor.MilliValue()), nil
	}
	return divide(amount.Value(), divisor.Value()), nil
}

// ContainerByName finds a container or init container for a volume's resourceFieldRef.
func ContainerByName(pod *corev1.Pod, name string) (*corev1.Container, error) {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i], nil
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i], nil
		}
	}
	return nil, fmt.Errorf("container %s not found", name)
}

func exposed(kind corev1.ResourceName) bool {
	switch kind {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(string(kind), corev1.ResourceHugePagesPrefix)
}

func effectiveLimit(pod *corev1.Pod, container *corev1.Container, kind corev1.ResourceName, allocatable corev1.ResourceList) resource.Quantity {
	if q, ok := container.Resources.Limits[kind]; ok && !q.IsZero() {
		return q
	}
	if pod.Spec.Resources != nil {
		if q, ok := pod.Spec.Resources.Limits[kind]; ok && !q.IsZero() {
			return q
		}
	}
	return allocatable[kind]
}

func divide(amount, divisor int64) string {
	return fmt.Sprint(int64(math.Ceil(float64(amount) / float64(divisor))))
}
