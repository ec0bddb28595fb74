package status

import (
	corev1 "k8s.io/api/core/v1"
)

// phase of the pod. An ended phase is reached only when nothing runs any more,
// and never left again.
func phase(in Input, s *corev1.PodStatus) corev1.PodPhase {
	if p := in.Pod.Status.Phase; p == corev1.PodFailed || p == corev1.PodSucceeded {
		return p
	}
	if in.Stopped {
		if in.End != nil || !allSucceeded(s) {
			return corev1.PodFailed
		}
		return corev1.PodSucceeded
	}
	if initializing(in.Pod, s) {
		return corev1.PodPending
	}
	for i := range s.ContainerStatuses {
		st := &s.ContainerStatuses[i]
		if st.State.Waiting != nil && st.LastTerminationState.Terminated == nil {
			return corev1.PodPending
		}
	}
	return corev1.PodRunning
}

func allSucceeded(s *corev1.PodStatus) bool {
	for i := range s.ContainerStatuses {
		if t := s.ContainerStatuses[i].State.Terminated; t == nil || t.ExitCode != 0 {
			return false
		}
	}
	return true
}

// initializing reports whether init containers still keep the others from
// starting for the first time.
func initializing(pod *corev1.Pod, s *corev1.PodStatus) bool {
	if anyEverStarted(s.ContainerStatuses) {
		return false
	}
	for i := range pod.Spec.InitContainers {
		st := &s.InitContainerStatuses[i]
		if isSidecar(&pod.Spec.InitContainers[i]) {
			if st.Started == nil || !*st.Started {
				return true
			}
		} else if !st.Ready {
			return true
		}
	}
	return false
}

func anyEverStarted(list []corev1.ContainerStatus) bool {
	for i := range list {
		st := &list[i]
		if st.State.Running != nil || st.State.Terminated != nil || st.LastTerminationState.Terminated != nil {
			return true
		}
	}
	return false
}
