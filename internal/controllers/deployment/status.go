package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of the Progressing condition that decide what comes next.
const (
	reasonAvailable    = "NewReplicaSetAvailable"
	reasonUpdated      = "ReplicaSetUpdated"
	reasonTimedOut     = "ProgressDeadlineExceeded"
	reasonCreateFailed = "ReplicaSetCreateError"
	reasonPaused       = "DeploymentPaused"
	reasonResumed      = "DeploymentResumed"
)

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

func condition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

func removeCondition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == t })
}

// setCondition sets a condition of r.d unless it has this status and reason
// already. The transition time moves with the status, the update time always.
func (r *rollout) setCondition(t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) {
	now := metav1.NewTime(r.now)
	next := appsv1.DeploymentCondition{
		Type: t, Status: status, Reason: reason, Message: message, LastUpdateTime: now, LastTransitionTime: now,
	}
	if old := condition(&r.d.Status, t); old != nil {
		if old.Status == status && old.Reason == reason {
			return
		}
		if old.Status == status {
			next.LastTransitionTime = old.LastTransitionTime
		}
	}
	removeCondition(&r.d.Status, t)
	r.d.Status.Conditions = append(r.d.Status.Conditions, next)
}

// notePause makes the Progressing condition say that the Deployment is paused,
// or was resumed: time spent paused does not count towards the deadline.
func (r *rollout) notePause() {
	progress := condition(&r.d.Status, appsv1.DeploymentProgressing)
	if !hasDeadline(r.d) || progress != nil && progress.Reason == reasonTimedOut {
		return
	}
	noted := progress != nil && progress.Reason == reasonPaused
	switch {
	case r.d.Spec.Paused && !noted:
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused")
	case !r.d.Spec.Paused && noted:
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed, "Deployment is resumed")
	}
}

// complete tells that nothing but the newest revision exists and all of it is available.
func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	want := *d.Spec.Replicas
	return s.UpdatedReplicas == want && s.Replicas == want && s.AvailableReplicas == want && s.ObservedGeneration >= d.Generation
}

// counts sums the status of all sets.
func (r *rollout) counts() appsv1.DeploymentStatus {
	s := appsv1.DeploymentStatus{
		ObservedGeneration:  r.d.Generation,
		TerminatingReplicas: new(int32(0)),
		CollisionCount:      r.d.Status.CollisionCount,
	}
	for _, rs := range r.all() {
		s.Replicas += rs.Status.Replicas
		s.ReadyReplicas += rs.Status.ReadyReplicas
		s.AvailableReplicas += rs.Status.AvailableReplicas
		if rs.Status.TerminatingReplicas == nil {
			s.TerminatingReplicas = nil
		} else if s.TerminatingReplicas != nil {
			*s.TerminatingReplicas += *rs.Status.TerminatingReplicas
		}
	}
	if r.new != nil {
		s.UpdatedReplicas = r.new.Status.Replicas
	}
	s.UnavailableReplicas = max(0, specReplicas(r.all())-s.AvailableReplicas)
	return s
}

// setStatus counts anew and says whether enough is available. What was counted
// before stays in r.was for setProgress.
func (r *rollout) setStatus() {
	r.was = r.d.Status
	s := r.counts()
	s.Conditions = r.d.Status.Conditions
	r.d.Status = s
	if s.AvailableReplicas >= *r.d.Spec.Replicas-maxUnavailable(r.d) {
		r.setCondition(appsv1.DeploymentAvailable, corev1.ConditionTrue, "MinimumReplicasAvailable", "Deployment has minimum availability.")
	} else {
		r.setCondition(appsv1.DeploymentAvailable, corev1.ConditionFalse, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
	}
}

// setProgress says whether the rollout is done, moves or is stuck, and repeats
// the failure of a ReplicaSet to create pods.
func (r *rollout) setProgress() {
	progress := condition(&r.d.Status, appsv1.DeploymentProgressing)
	done := r.d.Status.Replicas == r.d.Status.UpdatedReplicas && progress != nil && progress.Reason == reasonAvailable
	switch {
	case !hasDeadline(r.d):
		removeCondition(&r.d.Status, appsv1.DeploymentProgressing)
	case done:
	case complete(r.d, &r.d.Status):
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonAvailable, r.subject()+" has successfully progressed.")
	case r.progressed():
		r.noteProgress(progress)
	case r.timedOut(progress):
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonTimedOut, r.subject()+" has timed out progressing.")
	}
	r.setFailure()
}

func (r *rollout) subject() string {
	if r.new != nil {
		return fmt.Sprintf("ReplicaSet %q", r.new.Name)
	}
	return fmt.Sprintf("Deployment %q", r.d.Name)
}

func (r *rollout) progressed() bool {
	s, was := &r.d.Status, &r.was
	return s.UpdatedReplicas > was.UpdatedReplicas ||
		s.Replicas-s.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
		s.ReadyReplicas > was.ReadyReplicas ||
		s.AvailableReplicas > was.AvailableReplicas
}

// noteProgress moves the update time, which the deadline counts from, even when
// the condition says the same as before.
func (r *rollout) noteProgress(progress *appsv1.DeploymentCondition) {
	since := metav1.NewTime(r.now)
	if progress != nil && progress.Status == corev1.ConditionTrue {
		since = progress.LastTransitionTime
	}
	removeCondition(&r.d.Status, appsv1.DeploymentProgressing)
	r.d.Status.Conditions = append(r.d.Status.Conditions, appsv1.DeploymentCondition{
		Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: reasonUpdated,
		Message: r.subject() + " is progressing.", LastUpdateTime: metav1.NewTime(r.now), LastTransitionTime: since,
	})
}

func (r *rollout) timedOut(progress *appsv1.DeploymentCondition) bool {
	switch {
	case progress == nil || progress.Reason == reasonAvailable:
		return false
	case progress.Reason == reasonTimedOut:
		return true
	}
	deadline := time.Duration(*r.d.Spec.ProgressDeadlineSeconds) * time.Second
	return progress.LastUpdateTime.Add(deadline).Before(r.now)
}

func (r *rollout) setFailure() {
	failure := func(sets ...*appsv1.ReplicaSet) *appsv1.ReplicaSetCondition {
		for _, rs := range sets {
			for i := range rs.Status.Conditions {
				if rs.Status.Conditions[i].Type == appsv1.ReplicaSetReplicaFailure {
					return &rs.Status.Conditions[i]
				}
			}
		}
		return nil
	}
	var failed *appsv1.ReplicaSetCondition
	if r.new != nil {
		failed = failure(r.new)
	}
	if failed == nil {
		failed = failure(r.all()...)
	}
	if failed == nil {
		removeCondition(&r.d.Status, appsv1.DeploymentReplicaFailure)
		return
	}
	r.setCondition(appsv1.DeploymentReplicaFailure, failed.Status, failed.Reason, failed.Message)
	c := condition(&r.d.Status, appsv1.DeploymentReplicaFailure)
	c.LastTransitionTime, c.LastUpdateTime = failed.LastTransitionTime, failed.LastTransitionTime
}
