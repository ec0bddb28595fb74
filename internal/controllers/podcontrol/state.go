package podcontrol

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Active tells whether a pod counts as a replica: neither ended nor being deleted.
func Active(pod *corev1.Pod) bool { return !Ended(pod) && pod.DeletionTimestamp == nil }

// Ended tells whether the pod's containers have all stopped for good.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Condition returns the pod's condition of a type, or nil.
func Condition(pod *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// Ready tells whether the pod's Ready condition is true.
func Ready(pod *corev1.Pod) bool {
	c := Condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// AvailableIn returns how long until a ready pod has been ready for
// minReadySeconds, 0 when it has. ready is false for a pod that is not ready.
func AvailableIn(pod *corev1.Pod, minReadySeconds int32, now time.Time) (wait time.Duration, ready bool) {
	c := Condition(pod, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return 0, false
	}
	if minReadySeconds == 0 {
		return 0, true
	}
	minReady := time.Duration(minReadySeconds) * time.Second
	if c.LastTransitionTime.IsZero() {
		return minReady, true
	}
	return max(0, c.LastTransitionTime.Add(minReady).Sub(now)), true
}

// Available tells whether the pod has been ready for minReadySeconds.
func Available(pod *corev1.Pod, minReadySeconds int32, now time.Time) bool {
	wait, ready := AvailableIn(pod, minReadySeconds, now)
	return ready && wait == 0
}

// Sooner returns the earlier of two waits, where zero means none.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
