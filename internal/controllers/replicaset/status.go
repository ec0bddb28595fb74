package replicaset

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/controllers/podcontrol"
)

// statusOf counts the pods of a set. wait is the time until a ready pod becomes
// available, 0 when no pod is about to.
func statusOf(rs *appsv1.ReplicaSet, pods []*corev1.Pod, now time.Time) (status appsv1.ReplicaSetStatus, wait time.Duration) {
	status = appsv1.ReplicaSetStatus{
		ObservedGeneration:  rs.Generation,
		Conditions:          slices.Clone(rs.Status.Conditions),
		TerminatingReplicas: new(int32(0)),
	}
	template := labels.SelectorFromSet(rs.Spec.Template.Labels)
	for _, pod := range pods {
		if !podcontrol.Active(pod) {
			if pod.DeletionTimestamp != nil && !podcontrol.Ended(pod) {
				*status.TerminatingReplicas++
			}
			continue
		}
		status.Replicas++
		if template.Matches(labels.Set(pod.Labels)) {
			status.FullyLabeledReplicas++
		}
		left, ready := podcontrol.AvailableIn(pod, rs.Spec.MinReadySeconds, now)
		switch {
		case !ready:
		case left > 0:
			status.ReadyReplicas++
			wait = podcontrol.Sooner(wait, left)
		default:
			status.ReadyReplicas++
			status.AvailableReplicas++
		}
	}
	return status, wait
}

// setFailure makes the ReplicaFailure condition say whether the last attempt to
// create or delete pods failed. A failure keeps the time and message it began with.
func setFailure(status *appsv1.ReplicaSetStatus, p plan, failed error, now time.Time) {
	at := slices.IndexFunc(status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure
	})
	if failed == nil {
		if at >= 0 {
			status.Conditions = slices.Delete(status.Conditions, at, at+1)
		}
		return
	}
	if at >= 0 {
		return
	}
	reason := "FailedCreate"
	if p.over {
		reason = "FailedDelete"
	}
	status.Conditions = append(status.Conditions, appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
		Reason: reason, Message: failed.Error(), LastTransitionTime: metav1.NewTime(now),
	})
}
