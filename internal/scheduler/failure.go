package scheduler

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	s.unwritten.give(ctx, verdict{object.Pod, condition, nomination})
}

// nodeWaiter stands for the missing plugin when a cluster has no nodes: every
// pod is worth another try once it has one.
const nodeWaiter = "NodeName"

func (s *Scheduler) event(pod *corev1.Pod, kind, reason, action, message string) {
	s.recorders[pod.Spec.SchedulerName].Eventf(pod, nil, kind, reason, action, "%s", truncated(message))
}
