package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
)

// completePodResources fills what is not said of the pod as a whole (KEP-2837),
// where something is: the limits of huge pages from its containers, requests from
// what they ask for or from its limits, and other limits from theirs if each has one.
func completePodResources(p *corev1.Pod) {
	r := p.Spec.Resources
	if r == nil || len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	limits := podresource.AggregateContainerLimits(p, podresource.PodResourcesOptions{})
	asked := podresource.AggregateContainerRequests(p, podresource.PodResourcesOptions{})
	for name, q := range limits {
		if _, requested := r.Requests[name]; isHugePages(name) && !requested {
			setResource(&r.Limits, name, q)
		}
	}
	for name, q := range asked {
		if mayOvercommit(name) {
			setResource(&r.Requests, name, q)
		}
	}
	for name, q := range r.Limits {
		setResource(&r.Requests, name, q)
	}
	for name, request := range r.Requests {
		limit := limits[name]
		if !allLimit(&p.Spec, name) {
			continue
		}
		if request.Cmp(limit) > 0 {
			limit = request
		}
		setResource(&r.Limits, name, limit)
	}
}

// setResource adds a resource that pods may have to a list without it.
func setResource(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if _, set := (*list)[name]; set || !podresource.IsSupportedPodLevelResource(name) {
		return
	}
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q.DeepCopy()
}

// allLimit: every container limits its use of a resource. Ephemeral ones cannot.
func allLimit(s *corev1.PodSpec, name corev1.ResourceName) bool {
	for _, containers := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			if _, limited := containers[i].Resources.Limits[name]; !limited {
				return false
			}
		}
	}
	return len(s.EphemeralContainers) == 0
}

// QOSClass classes a pod by how its cpu and memory are asked for and limited.
func QOSClass(p *corev1.Pod) corev1.PodQOSClass {
	if podresource.IsPodLevelResourcesSet(p) {
		return qosOf([]corev1.ResourceRequirements{*p.Spec.Resources})
	}
	var all []corev1.ResourceRequirements
	for _, c := range p.Spec.InitContainers {
		all = append(all, c.Resources)
	}
	for _, c := range p.Spec.Containers {
		all = append(all, c.Resources)
	}
	return qosOf(all)
}

// qosOf is Guaranteed when every one limits cpu and memory and asks for just
// that, BestEffort when none says anything about them.
func qosOf(all []corev1.ResourceRequirements) corev1.PodQOSClass {
	guaranteed, any := true, false
	for _, r := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := r.Requests[name], r.Limits[name]
			any = any || positive(request) || positive(limit)
			if !positive(limit) || positive(request) && request.Cmp(limit) != 0 {
				guaranteed = false
			}
		}
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	default:
		return corev1.PodQOSBurstable
	}
}

func positive(q resource.Quantity) bool { return q.Sign() > 0 }
