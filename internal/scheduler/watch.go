package scheduler

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/queue"
)

// watch turns changes of objects into changes of the picture and events of the queue.
func (s *Scheduler) watch(c *client.Cache) {
	s.pods.OnChange(s.podChanged)
	client.Shared[*corev1.Node](c).OnChange(s.nodeChanged)
	notify[*corev1.PersistentVolumeClaim](s, c, framework.Claim)
	notify[*corev1.PersistentVolume](s, c, framework.Volume)
	notify[*storagev1.StorageClass](s, c, framework.StorageClass)
	notify[*storagev1.CSINode](s, c, framework.CSINode)
	notify[*storagev1.CSIDriver](s, c, framework.CSIDriver)
	notify[*storagev1.CSIStorageCapacity](s, c, framework.CSICapacity)
	notify[*resourcev1.ResourceClaim](s, c, framework.DeviceClaim)
	notify[*resourcev1.ResourceSlice](s, c, framework.DeviceSlice)
	notify[*resourcev1.DeviceClass](s, c, framework.DeviceClass)
	client.Shared[*resourcev1.DeviceTaintRule](c).OnChange(func(_, _ *resourcev1.DeviceTaintRule) {
		s.happened(framework.DeviceSlice, framework.UpdateOther, nil, nil)
	})
}

func notify[T interface {
	client.Object
	comparable
}](s *Scheduler, c *client.Cache, resource framework.EventResource) {
	var none T
	client.Shared[T](c).OnChange(func(old, new T) {
		switch {
		case old == none:
			s.happened(resource, framework.Add, nil, new)
		case new == none:
			s.happened(resource, framework.Delete, old, nil)
		default:
			s.happened(resource, framework.UpdateOther, old, new)
		}
	})
}

func (s *Scheduler) happened(resource framework.EventResource, action framework.Action, old, new any) {
	event := framework.Event{Resource: resource, Action: action}
	defer s.handled(event, s.clock.Now())
	s.queue.Happened(context.Background(), event, old, new)
}

func (s *Scheduler) nodeChanged(old, node *corev1.Node) {
	switch {
	case node == nil:
		s.cache.RemoveNode(old.Name)
		s.happened(framework.Node, framework.Delete, old, nil)
	case old == nil:
		s.cache.SetNode(node)
		s.happened(framework.Node, framework.Add, nil, node)
	default:
		s.cache.SetNode(node)
		if actions := queue.NodeActions(old, node); actions != 0 {
			s.happened(framework.Node, actions, old, node)
		}
	}
}

// occupies tells whether a pod takes place on a node.
func occupies(pod *corev1.Pod) bool {
	return pod != nil && pod.Spec.NodeName != "" && !ended(pod)
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// waits tells whether a pod is this scheduler's to place.
func (s *Scheduler) waits(pod *corev1.Pod) bool {
	return pod != nil && pod.Spec.NodeName == "" && !ended(pod) && s.profiles[pod.Spec.SchedulerName] != nil
}

func (s *Scheduler) podChanged(old, pod *corev1.Pod) {
	s.waitingPodChanged(old, pod)
	had, has := occupies(old), occupies(pod)
	switch {
	case had && !has:
		s.cache.RemovePod(old.UID)
		s.happened(framework.AssignedPod, framework.Delete, old, nil)
	case has:
		info, err := framework.NewPodInfo(pod)
		if err != nil { // its own rules do not bind others then
			slog.Warn("pod has an invalid affinity term", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
		s.cache.SetPod(info)
		s.placedPodChanged(old, pod, had)
	}
}

func (s *Scheduler) placedPodChanged(old, pod *corev1.Pod, had bool) {
	if !had {
		s.happened(framework.AssignedPod, framework.Add, nil, pod)
		return
	}
	actions := queue.PodActions(old, pod)
	if old.DeletionTimestamp == nil && pod.DeletionTimestamp != nil {
		actions |= framework.UpdatePodLabel // it does not count for topology spread any more
	}
	if actions != 0 {
		s.happened(framework.AssignedPod, actions, old, pod)
	}
}

func (s *Scheduler) waitingPodChanged(old, pod *corev1.Pod) {
	had, has := s.waits(old), s.waits(pod)
	event := framework.Event{Resource: framework.UnscheduledPod}
	began := s.clock.Now()
	switch {
	case has && had:
		event.Action = framework.UpdateOther
		s.queue.Update(context.Background(), old, pod)
	case has:
		event.Action = framework.Add
		s.queue.Add(context.Background(), pod)
	case had:
		event.Action = framework.Delete
		s.waitingPodGone(old, pod)
	default:
		return
	}
	s.handled(event, began)
}

// waitingPodGone: a pod got a node, ended, or was deleted (pod is nil then).
func (s *Scheduler) waitingPodGone(old, pod *corev1.Pod) {
	nominated := s.queue.NominationOf(old.UID) != ""
	s.queue.Delete(old.UID)
	s.attempts.forget(old.UID)
	if pod != nil {
		return
	}
	s.Reject(old.UID, "", "removed")
	s.cache.Forget(old.UID)
	if nominated { // what was kept free for it is free
		s.happened(framework.AssignedPod, framework.Delete, old, nil)
	}
}
