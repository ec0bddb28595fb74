package framework

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelpers "k8s.io/component-helpers/resource"
)

// What a container without requests counts for when nodes are compared, so that
// such pods do not all land on one node.
const (
	DefaultMilliCPU int64 = 100
	DefaultMemory   int64 = 200 << 20 // bytes
)

// Resources is an amount of everything that a node offers.
type Resources struct {
	MilliCPU, Memory, EphemeralStorage int64 // thousandths of a core, bytes, bytes
	Pods                               int64
	Scalar                             []Scalar // extended resources and huge pages, by name
}

// Scalar is an amount of one resource that only counts.
type Scalar struct {
	Name  corev1.ResourceName
	Value int64
}

// Of returns the amount of one resource.
func (r *Resources) Of(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.MilliCPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case corev1.ResourcePods:
		return r.Pods
	}
	for i := range r.Scalar {
		if r.Scalar[i].Name == name {
			return r.Scalar[i].Value
		}
	}
	return 0
}

// Add adds factor times o. Scalars never alias between amounts after it.
func (r *Resources) Add(o *Resources, factor int64) {
	r.MilliCPU += factor * o.MilliCPU
	r.Memory += factor * o.Memory
	r.EphemeralStorage += factor * o.EphemeralStorage
	for _, s := range o.Scalar {
		r.addScalar(s.Name, factor*s.Value)
	}
}

func (r *Resources) addScalar(name corev1.ResourceName, v int64) {
	for i := range r.Scalar {
		if r.Scalar[i].Name == name {
			r.Scalar[i].Value += v
			return
		}
	}
	r.Scalar = append(r.Scalar, Scalar{name, v})
}

// Equal tells whether two amounts are the same.
func (r *Resources) Equal(o *Resources) bool {
	return r.MilliCPU == o.MilliCPU && r.Memory == o.Memory && r.EphemeralStorage == o.EphemeralStorage &&
		r.Pods == o.Pods && slices.Equal(r.Scalar, o.Scalar)
}

// Clone copies r.
func (r *Resources) Clone() Resources {
	c := *r
	c.Scalar = slices.Clone(r.Scalar)
	return c
}

// ResourcesOf converts a list, as of a node's allocatable.
func ResourcesOf(list corev1.ResourceList) Resources {
	var r Resources
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case corev1.ResourceMemory:
			r.Memory = q.Value()
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage = q.Value()
		case corev1.ResourcePods:
			r.Pods = q.Value()
		default:
			if IsScalar(name) {
				r.Scalar = append(r.Scalar, Scalar{name, q.Value()})
			}
		}
	}
	slices.SortFunc(r.Scalar, func(a, b Scalar) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return r
}

// IsScalar tells whether the scheduler counts a resource by its name alone:
// extended resources, huge pages, attachable volumes.
func IsScalar(name corev1.ResourceName) bool {
	s := string(name)
	if strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) || strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix) {
		return true
	}
	domain, _, qualified := strings.Cut(s, "/")
	return qualified && !strings.HasPrefix(s, corev1.DefaultResourceRequestsPrefix) &&
		(domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") || domain != "")
}

var nonZero = corev1.ResourceList{
	corev1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI),
	corev1.ResourceMemory: *resource.NewQuantity(DefaultMemory, resource.BinarySI),
}

// podRequests returns what a pod asks of its node, and the same with the
// defaults above for containers that ask for nothing.
func podRequests(pod *corev1.Pod) (requests Resources, cpu, memory int64) {
	if isPlain(pod) {
		return plainRequests(pod)
	}
	opts := resourcehelpers.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	requests = ResourcesOf(resourcehelpers.PodRequests(pod, opts))
	opts.NonMissingContainerRequests = nonZero
	counted := resourcehelpers.PodRequests(pod, opts)
	return requests, counted.Cpu().MilliValue(), counted.Memory().Value()
}

// isPlain tells whether a pod's requests are the sum over its containers.
func isPlain(pod *corev1.Pod) bool {
	return len(pod.Spec.InitContainers) == 0 && pod.Spec.Overhead == nil && pod.Spec.Resources == nil &&
		len(pod.Status.ContainerStatuses) == 0 && pod.Status.AllocatedResources == nil
}

func plainRequests(pod *corev1.Pod) (requests Resources, cpu, memory int64) {
	for i := range pod.Spec.Containers {
		list := pod.Spec.Containers[i].Resources.Requests
		r := ResourcesOf(list)
		requests.Add(&r, 1)
		if _, ok := list[corev1.ResourceCPU]; !ok {
			cpu += DefaultMilliCPU
		}
		if _, ok := list[corev1.ResourceMemory]; !ok {
			memory += DefaultMemory
		}
	}
	return requests, cpu + requests.MilliCPU, memory + requests.Memory
}
