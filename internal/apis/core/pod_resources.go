package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
)

// requestPodLimits fills the requests of the pod as a whole (KEP-2837): what its
// containers ask for together, else its limit.
func requestPodLimits(s *corev1.PodSpec) {
	r := s.Resources
	if r == nil || len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	asked := podresource.AggregateContainerRequests(&corev1.Pod{Spec: *s}, podresource.PodResourcesOptions{})
	for name, q := range asked {
		if _, set := r.Requests[name]; !set && podresource.IsSupportedPodLevelResource(name) {
			r.Requests[name] = q
		}
	}
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; !set && podresource.IsSupportedPodLevelResource(name) {
			r.Requests[name] = limit.DeepCopy()
		}
	}
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
