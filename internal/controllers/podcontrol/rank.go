package podcontrol

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deletionCost is the annotation by which users make pods of a set more or less
// likely to go first (KEP-2255).
const deletionCost = "controller.kubernetes.io/pod-deletion-cost"

// DeletionOrder sorts pods so that those whose loss costs least come first. Ages
// are compared in powers of two with ties broken by UID (KEP-2185), so that not
// always the youngest go. related are the pods that one wants spread over nodes.
func DeletionOrder(pods, related []*corev1.Pod, now time.Time) {
	onNode := map[string]int{}
	for _, pod := range related {
		if Active(pod) {
			onNode[pod.Spec.NodeName]++
		}
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(
			first(a.Spec.NodeName == "", b.Spec.NodeName == ""),
			cmp.Compare(phaseRank(a), phaseRank(b)),
			first(!Ready(a), !Ready(b)),
			cmp.Compare(cost(a), cost(b)),
			cmp.Compare(onNode[b.Spec.NodeName], onNode[a.Spec.NodeName]),
			compareReadyTime(a, b, now),
			compareRestarts(a, b),
			compareAge(a.CreationTimestamp, b.CreationTimestamp, a, b, now),
		)
	})
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

func phaseRank(pod *corev1.Pod) int {
	switch pod.Status.Phase {
	case corev1.PodUnknown:
		return 1
	case corev1.PodRunning:
		return 2
	}
	return 0
}

func cost(pod *corev1.Pod) int32 {
	value, ok := pod.Annotations[deletionCost]
	if !ok || len(value) > 1 && value[0] == '+' || len(value) > 1 && value[0] == '0' {
		return 0
	}
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

func compareReadyTime(a, b *corev1.Pod, now time.Time) int {
	ca, cb := Condition(a, corev1.PodReady), Condition(b, corev1.PodReady)
	if ca == nil || cb == nil || ca.Status != corev1.ConditionTrue || cb.Status != corev1.ConditionTrue {
		return 0
	}
	return compareAge(ca.LastTransitionTime, cb.LastTransitionTime, a, b, now)
}

func compareAge(ta, tb metav1.Time, a, b *corev1.Pod, now time.Time) int {
	if ta.Equal(&tb) {
		return 0
	}
	return cmp.Or(cmp.Compare(ageRank(ta, now), ageRank(tb, now)), cmp.Compare(a.UID, b.UID))
}

func ageRank(t metav1.Time, now time.Time) int64 {
	if age := now.Sub(t.Time); !t.IsZero() && age > 0 {
		return int64(math.Log2(float64(age)))
	}
	return -1
}

// compareRestarts puts more restarts of ordinary containers first, then more of sidecars.
func compareRestarts(a, b *corev1.Pod) int {
	ra, sa := maxRestarts(a)
	rb, sb := maxRestarts(b)
	return cmp.Or(cmp.Compare(rb, ra), cmp.Compare(sb, sa))
}

func maxRestarts(pod *corev1.Pod) (containers, sidecars int32) {
	for i := range pod.Status.ContainerStatuses {
		containers = max(containers, pod.Status.ContainerStatuses[i].RestartCount)
	}
	restartable := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		restartable[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	for i := range pod.Status.InitContainerStatuses {
		if s := &pod.Status.InitContainerStatuses[i]; restartable[s.Name] {
			sidecars = max(sidecars, s.RestartCount)
		}
	}
	return containers, sidecars
}
