package podworker

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// allocation is what the node has given a pod: the resources in force, whatever
// a resize that waits, or can never be, asks for (KEP-1287).
type allocation struct {
	pod        *corev1.ResourceRequirements
	containers map[string]corev1.ResourceRequirements // nil before the pod is admitted
}

// asked is the allocation that a pod's spec asks for.
func asked(pod *corev1.Pod) allocation {
	a := allocation{pod: pod.Spec.Resources, containers: map[string]corev1.ResourceRequirements{}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			a.containers[list[i].Name] = list[i].Resources
		}
	}
	return a
}

// recorded is the allocation that an earlier life of this process wrote into the
// pod's status; containers that it says nothing of have what the spec asks for.
func recorded(pod *corev1.Pod) allocation {
	a := asked(pod)
	if given := pod.Status.AllocatedResources; given != nil && a.pod != nil {
		a.pod = &corev1.ResourceRequirements{Requests: given, Limits: a.pod.Limits}
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			r, known := a.containers[s.Name]
			if !known || s.AllocatedResources == nil {
				continue
			}
			r.Requests = s.AllocatedResources
			if s.Resources != nil {
				r.Limits = s.Resources.Limits
			}
			a.containers[s.Name] = r
		}
	}
	return a
}

func (a allocation) equal(b allocation) bool {
	return equality.Semantic.DeepEqual(a.pod, b.pod) && equality.Semantic.DeepEqual(a.containers, b.containers)
}

// of is the pod with these resources in its spec: the pod itself where they are.
func (a allocation) of(pod *corev1.Pod) *corev1.Pod {
	if a.containers == nil || a.equal(asked(pod)) {
		return pod
	}
	given := *pod
	given.Spec.Resources = a.pod
	given.Spec.InitContainers = slices.Clone(pod.Spec.InitContainers)
	given.Spec.Containers = slices.Clone(pod.Spec.Containers)
	for _, list := range [][]corev1.Container{given.Spec.InitContainers, given.Spec.Containers} {
		for i := range list {
			if r, known := a.containers[list[i].Name]; known {
				list[i].Resources = r
			}
		}
	}
	return &given
}

// allocate gives the pod what its spec asks for if the node has the room; else the
// pod says that the resize waits, or why it never can be.
func (p *worker) allocate(pod *corev1.Pod) {
	p.w.admit.Lock()
	defer p.w.admit.Unlock()
	want := asked(pod)
	p.mu.Lock()
	settled := p.given.equal(want)
	p.mu.Unlock()
	var pending *corev1.PodCondition
	if !settled {
		pending = p.unfit(pod)
	}
	p.mu.Lock()
	if p.pending = pending; pending == nil {
		p.given = want
	}
	p.mu.Unlock()
	if !settled && pending == nil {
		p.w.retryResizes() // a pod that shrinks makes room
	}
}

// unfit is the condition of a pod whose resize the node has no room for.
func (p *worker) unfit(pod *corev1.Pod) *corev1.PodCondition {
	if p.w.c.Fits == nil {
		return nil
	}
	others := slices.DeleteFunc(p.w.Active(), func(o *corev1.Pod) bool { return o.UID == pod.UID })
	reason, message := p.w.c.Fits(pod, others)
	if reason == "" {
		return nil
	}
	return &corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason, Message: message}
}

// retryResizes lets the pods try again whose resize waits for room.
func (w *Workers) retryResizes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pods {
		p.mu.Lock()
		waits := p.pending != nil && p.pending.Reason == corev1.PodReasonDeferred
		p.mu.Unlock()
		if waits {
			p.poke()
		}
	}
}
