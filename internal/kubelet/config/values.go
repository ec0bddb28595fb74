package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

const maxSysctl = 253

var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

func validSysctl(name string) bool { return len(name) <= maxSysctl && sysctlName.MatchString(name) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// reservable are the resources that can be kept from pods.
var reservable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, "pid"}

// ResourceList reads what kubeReserved or systemReserved say.
func ResourceList(m map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for _, key := range sortedKeys(m) {
		name := corev1.ResourceName(key)
		if !slices.Contains(reservable, name) {
			return nil, fmt.Errorf("cannot reserve %q resource", key)
		}
		q, err := resource.ParseQuantity(m[key])
		if err != nil {
			return nil, fmt.Errorf("failed to parse quantity %q for %q resource: %w", m[key], key, err)
		}
		if q.Sign() == -1 {
			return nil, fmt.Errorf("resource quantity for %q cannot be negative: %v", key, m[key])
		}
		out[name] = q
	}
	return out, nil
}

// Reserved is what a valid configuration keeps from pods, together. CPUs that are
// reserved by number stand for the amounts of the other two.
func Reserved(c *Configuration) (corev1.ResourceList, error) {
	sum := corev1.ResourceList{}
	for _, reserved := range []map[string]string{c.KubeReserved, c.SystemReserved} {
		list, err := ResourceList(reserved)
		if err != nil {
			return nil, err
		}
		for name, q := range list {
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
	if c.ReservedSystemCPUs != "" {
		cpus, err := cpuset.Parse(c.ReservedSystemCPUs)
		if err != nil {
			return nil, err
		}
		sum[corev1.ResourceCPU] = *resource.NewQuantity(int64(cpus.Size()), resource.DecimalSI)
	}
	return sum, nil
}

// Pods is how many pods a node of so many cores takes.
func Pods(c *Configuration, cores int) int64 {
	if perCore := int64(c.PodsPerCore) * int64(cores); perCore > 0 {
		return min(perCore, int64(c.MaxPods))
	}
	return int64(c.MaxPods)
}

// ImageEndpoint is where images are managed.
func ImageEndpoint(c *Configuration) string {
	if c.ImageServiceEndpoint != "" {
		return c.ImageServiceEndpoint
	}
	return c.ContainerRuntimeEndpoint
}

// Pulls is how many images are pulled at a time; 0: no limit.
func Pulls(c *Configuration) int {
	switch {
	case *c.SerializeImagePulls:
		return 1
	case c.MaxParallelImagePulls != nil:
		return int(*c.MaxParallelImagePulls)
	}
	return 0
}
