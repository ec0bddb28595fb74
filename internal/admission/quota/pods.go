package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	podresource "k8s.io/component-helpers/resource"
)

// podUsage counts a pod until it has ended; the object itself counts to its deletion.
func (c Counter) podUsage(pod *corev1.Pod, use corev1.ResourceList) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || c.overdue(pod) {
		return
	}
	use[corev1.ResourcePods] = count(1)
	opts := podresource.PodResourcesOptions{UseStatusResources: true}
	computeUsage(podresource.PodRequests(pod, opts), podresource.PodLimits(pod, opts), use)
}

// overdue tells whether a pod should be gone for as long as it was given to go: who
// uses a node that was lost shall not pay for it.
func (c Counter) overdue(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return false
	}
	grace := time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	return c.now().After(pod.DeletionTimestamp.Add(grace))
}

func (c Counter) now() time.Time {
	if c.Clock == nil {
		return time.Now()
	}
	return c.Clock.Now()
}

func computeUsage(requests, limits, use corev1.ResourceList) {
	for name, q := range requests {
		switch {
		case name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage,
			strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			use[name] = q
			use[requestsName(name)] = q
		case extended(name):
			use[requestsName(name)] = q
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := limits[name]; ok {
			use["limits."+name] = q
		}
	}
}

func requestsName(name corev1.ResourceName) corev1.ResourceName {
	return corev1.DefaultResourceRequestsPrefix + name
}

// extended reports whether a resource is not one of Kubernetes' own, or stands for
// a class of devices.
func extended(name corev1.ResourceName) bool {
	s := string(name)
	return strings.HasPrefix(s, resourcev1.ResourceDeviceClassPrefix) || strings.Contains(s, "/") && !strings.Contains(s, corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(s, corev1.DefaultResourceRequestsPrefix)
}

var computed = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
}

// Constraints returns an error when a quota limits cpu or memory that a
// container of the pod does not state. A pod that has resources as a whole
// (KEP-2837) need not state them of its containers.
func Constraints(limited corev1.ResourceList, pod *corev1.Pod) error {
	if podresource.IsPodLevelResourcesSet(pod) {
		return nil
	}
	missing := map[corev1.ResourceName][]string{}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			stated := corev1.ResourceList{}
			computeUsage(list[i].Resources.Requests, list[i].Resources.Limits, stated)
			for _, name := range computed {
				_, required := limited[name]
				if _, here := stated[name]; required && !here {
					missing[name] = append(missing[name], list[i].Name)
				}
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var parts []string
	for name, containers := range missing {
		slices.Sort(containers)
		parts = append(parts, fmt.Sprintf("%s for: %s", name, strings.Join(slices.Compact(containers), ",")))
	}
	slices.Sort(parts)
	return fmt.Errorf("must specify %s", strings.Join(parts, "; "))
}
