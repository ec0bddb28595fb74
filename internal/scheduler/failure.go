package scheduler

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/scheduler/framework"
)

// failure is why a cycle ended without a node. Either err or diagnosis is set.
type failure struct {
	began          time.Time // of the attempt
	err            error
	diagnosis      *framework.Diagnosis
	nominate       string
	keepNomination bool
}

func (f *failure) reason() string {
	if f.err != nil && f.err != errNoNodes {
		return corev1.PodReasonSchedulerError
	}
	return corev1.PodReasonUnschedulable
}

func (f *failure) message() string {
	if f.err != nil {
		return f.err.Error()
	}
	return f.diagnosis.Message()
}

// fail puts the pod back into the queue and tells the user why.
func (s *Scheduler) fail(ctx context.Context, pod *framework.QueuedPodInfo, f failure) {
	if f.err == errNoNodes {
		pod.RejectedBy = []string{nodeWaiter}
	}
	result := resultUnschedulable
	if f.reason() == corev1.PodReasonSchedulerError {
		result = resultError
	}
	s.attempted(pod.Pod.Spec.SchedulerName, result, f.began)
	object := pod.PodInfo
	nomination := s.queue.NominationOf(object.Pod.UID)
	if !f.keepNomination && f.err == nil {
		nomination = f.nominate
		s.queue.Nominate(object, nomination)
	}
	message := f.message()
	s.account(object, pod.Attempts, &f, message, nomination)
	if !s.queue.Return(ctx, pod) {
		s.attempts.forget(object.Pod.UID)
		return // deleted meanwhile, or bound by someone else
	}
	if f.reason() == corev1.PodReasonSchedulerError {
		slog.WarnContext(ctx, "cannot schedule pod", "pod", object.Pod.Namespace+"/"+object.Pod.Name, "err", f.err)
	}
	s.event(object.Pod, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", message)
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: f.reason(), Message: message,
		ObservedGeneration: object.Pod.Generation,
	}
	if current(object.Pod, condition) && object.Pod.Status.NominatedNodeName == nomination {
		return
	}
	select {
	case s.failures <- verdict{object.Pod, condition, nomination}:
	case <-ctx.Done():
	}
}

// verdict is what is to be written into the status of a pod without a node.
type verdict struct {
	pod        *corev1.Pod
	condition  corev1.PodCondition
	nomination string
}

// writeNext writes verdicts until ctx ends.
func (s *Scheduler) writeNext(ctx context.Context) {
	for {
		select {
		case v := <-s.failures:
			s.writeFailure(ctx, v.pod, v.condition, v.nomination)
		case <-ctx.Done():
			return
		}
	}
}

// nodeWaiter stands for the missing plugin when a cluster has no nodes: every
// pod is worth another try once it has one.
const nodeWaiter = "NodeName"

// current tells whether a pod's condition says this already.
func current(pod *corev1.Pod, want corev1.PodCondition) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == want.Type {
			return c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message &&
				c.ObservedGeneration == want.ObservedGeneration
		}
	}
	return false
}

// writeFailure writes a condition, unless the pod has got a node meanwhile. It is an
// update of the version that was tried: a strategic patch takes the server twice as long.
func (s *Scheduler) writeFailure(ctx context.Context, pod *corev1.Pod, condition corev1.PodCondition, nomination string) {
	condition.LastTransitionTime = metav1.NewTime(s.clock.Now())
	for _, c := range pod.Status.Conditions {
		if c.Type == condition.Type && c.Status == condition.Status {
			condition.LastTransitionTime = c.LastTransitionTime
		}
	}
	for range 3 {
		changed := pod.DeepCopy()
		changed.Status.Conditions = with(changed.Status.Conditions, condition)
		changed.Status.NominatedNodeName = nomination
		_, err := s.pods.Resource.UpdateStatus(ctx, changed)
		switch {
		case err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil:
			return
		case !apierrors.IsConflict(err):
			slog.WarnContext(ctx, "cannot write pod condition", "pod", pod.Namespace+"/"+pod.Name, "err", err)
			return
		}
		latest, err := s.pods.Get(ctx, pod.Namespace, pod.Name)
		if err != nil || latest.UID != pod.UID || latest.Spec.NodeName != "" {
			return
		}
		pod = latest
	}
}

// with sets a condition in its place among the others.
func with(conditions []corev1.PodCondition, c corev1.PodCondition) []corev1.PodCondition {
	for i := range conditions {
		if conditions[i].Type == c.Type {
			conditions[i] = c
			return conditions
		}
	}
	return append(conditions, c)
}

func (s *Scheduler) event(pod *corev1.Pod, kind, reason, action, message string) {
	s.recorders[pod.Spec.SchedulerName].Eventf(pod, nil, kind, reason, action, "%s", truncated(message))
}
