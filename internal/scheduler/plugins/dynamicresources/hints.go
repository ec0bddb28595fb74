package dynamicresources

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

func (p *Plugin) EventsToRegister() []framework.HintedEvent {
	claims := hint.On(framework.DeviceClaim, framework.Add|framework.Update|framework.Delete, p.claimHelps)
	claims.Concerns = p.concerned
	return []framework.HintedEvent{
		claims,
		hint.On(framework.UnscheduledPod, framework.UpdatePodGeneratedClaim, func(_ *corev1.Pod, _, new any) framework.Hint {
			pod, ok := new.(*corev1.Pod)
			if !ok {
				return framework.QueueSkip
			}
			_, err := p.claimsOf(pod)
			return framework.Hint(err == nil)
		}),
		hint.On(framework.Node, framework.Add|framework.UpdateNodeLabel|framework.UpdateNodeAllocatable, nil),
		hint.On(framework.DeviceClass, framework.Add|framework.Update, nil),
		hint.On(framework.DeviceSlice, framework.Add|framework.Update, nil),
	}
}

func claimsIn(old, new any) (before, after *resourcev1.ResourceClaim) {
	before, _ = old.(*resourcev1.ResourceClaim)
	after, _ = new.(*resourcev1.ResourceClaim)
	return before, after
}

// freed tells whether the claim lost its devices, which others may want.
func freed(before, after *resourcev1.ResourceClaim) bool {
	return before != nil && before.Status.Allocation != nil && (after == nil || after.Status.Allocation == nil)
}

// concerned are the pods that use a claim, or all when it frees devices.
func (p *Plugin) concerned(old, new any) (pods []types.UID, any bool) {
	before, after := claimsIn(old, new)
	claim := after
	switch {
	case freed(before, after):
		return nil, true
	case claim == nil && before == nil:
		return nil, true
	case claim == nil:
		claim = before
	}
	for _, pod := range p.pods.ByIndex(byClaim, claim.Namespace+"/"+claim.Name) {
		pods = append(pods, pod.UID)
	}
	for _, pod := range extendedFor(claim) { // whose status may not name it yet
		pods = append(pods, types.UID(pod))
	}
	return pods, false
}

// claimHelps: the claim gave devices back, or is one that the pod uses and there
// is something new about it.
func (p *Plugin) claimHelps(pod *corev1.Pod, old, new any) framework.Hint {
	before, after := claimsIn(old, new)
	if after == nil {
		return framework.Hint(freed(before, after) || leftBehind(before, pod))
	}
	if after.Namespace != pod.Namespace && !freed(before, after) {
		return framework.QueueSkip
	}
	claims, err := p.claimsOf(pod)
	if err != nil {
		return framework.QueueSkip // it waits for another one
	}
	if freed(before, after) {
		return framework.Queue
	}
	for _, claim := range claims {
		if claim.UID == after.UID {
			return framework.Hint(before == nil || !equality.Semantic.DeepEqual(before.Status, after.Status))
		}
	}
	return framework.QueueSkip
}

// leftBehind tells whether claim was for the pod's extended resources: one of an
// earlier attempt, which the pod could not be placed with.
func leftBehind(claim *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	return claim != nil && slices.Contains(extendedFor(claim), string(pod.UID))
}
