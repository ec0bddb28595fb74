package scheduler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

// placement is a pod on its way from the decision to the written binding.
type placement struct {
	profile *profile.Profile
	state   *framework.CycleState
	pod     *framework.QueuedPodInfo
	node    string
	held    *held // by Permit plugins, nil when by none
	began   time.Time
}

// bindNext writes bindings until ctx ends.
func (s *Scheduler) bindNext(ctx context.Context) {
	for {
		select {
		case pl := <-s.bindings:
			done := s.binding()
			s.bind(ctx, pl)
			done()
		case <-ctx.Done():
			return
		}
	}
}

// prepareAndBind is the binding of a pod that has to wait for something before.
func (s *Scheduler) prepareAndBind(ctx context.Context, pl *placement, wait map[string]time.Duration) {
	defer s.binding()()
	if plugin, status := s.waitPermitted(ctx, pl, wait); status != nil {
		s.bindFailed(ctx, pl, plugin, status)
		return
	}
	s.queue.Done(pl.pod.Pod.UID)
	if plugin, status := pl.profile.PreBind(ctx, pl.state, pl.pod.PodInfo, pl.node); status != nil {
		s.bindFailed(ctx, pl, plugin, status)
		return
	}
	s.bind(ctx, pl)
}

// binding counts the bindings under way; its result ends one.
func (s *Scheduler) binding() func() {
	running := s.metrics.goroutines.WithLabelValues(binding)
	running.Inc()
	return running.Dec
}

func (s *Scheduler) bind(ctx context.Context, pl *placement) {
	done, status := s.bindOutside(ctx, pl.pod.Pod, pl.node)
	if !done {
		status = pl.profile.Bind(ctx, pl.state, pl.pod.PodInfo, pl.node)
	}
	if status != nil {
		s.bindFailed(ctx, pl, "", status)
		return
	}
	pl.profile.PostBind(ctx, pl.state, pl.pod.PodInfo, pl.node)
	s.attempts.forget(pl.pod.Pod.UID)
	s.placed(pl.pod, pl.profile.SchedulerName, pl.began)
	pod := pl.pod.Pod
	s.event(pod, corev1.EventTypeNormal, "Scheduled", "Binding", fmt.Sprintf("Successfully assigned %v/%v to %v", pod.Namespace, pod.Name, pl.node))
}

// bindFailed gives back what the pod has taken and queues it again.
func (s *Scheduler) bindFailed(ctx context.Context, pl *placement, plugin string, status *framework.Status) {
	if ctx.Err() != nil {
		return
	}
	pod := pl.pod
	pl.profile.Unreserve(ctx, pl.state, pod.PodInfo, pl.node)
	s.cache.Forget(pod.Pod.UID)
	s.happened(framework.AssignedPod, framework.Delete, pod.Pod, nil)
	f := failure{began: pl.began, err: status.Err(), keepNomination: true}
	if status.IsRejected() && plugin != "" {
		f.diagnosis = &framework.Diagnosis{AllNodes: 1, Rejections: []framework.Rejection{{Name: pl.node, Plugin: plugin, Status: status}}}
		f.err = nil
		f.diagnosis.Blame(plugin, status)
		pod.RejectedBy, pod.PendingOn = f.diagnosis.RejectedBy, f.diagnosis.PendingOn
	}
	s.fail(ctx, pod, f)
}
