package defaultpreemption

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"proa/internal/scheduler/framework"
)

// preempt deletes the victims in the background (KEP-4832). Until that is done,
// PreEnqueue keeps the pod out of the queue.
func (p *Plugin) preempt(pod *framework.PodInfo, c candidate) {
	p.mu.Lock()
	p.preempting[pod.Pod.UID] = struct{}{}
	p.mu.Unlock()
	if p.handle.Preempted != nil {
		p.handle.Preempted(len(c.victims))
	}
	// Pods of lower priority that hoped for this node would not fit any more.
	for _, n := range p.handle.Nominated(c.node.Name()) {
		if n.Priority < pod.Priority {
			p.handle.Nominate(n, "")
			p.handle.Background(func(ctx context.Context) { p.clearNomination(ctx, n.Pod) })
		}
	}
	p.handle.Background(func(ctx context.Context) {
		var failed error
		for _, v := range c.victims {
			if err := p.evict(ctx, pod.Pod, v.Pod, c.node.Name()); err != nil {
				failed = err
				break
			}
		}
		p.mu.Lock()
		delete(p.preempting, pod.Pod.UID)
		p.mu.Unlock()
		if failed != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "preemption failed", "pod", pod.Pod.Namespace+"/"+pod.Pod.Name, "node", c.node.Name(), "err", failed)
			p.handle.Nominate(pod, "")
			p.clearNomination(ctx, pod.Pod)
		}
		p.handle.Activate(pod)
	})
}

// evict marks a victim with the reason of its disruption and deletes it.
func (p *Plugin) evict(ctx context.Context, preemptor, victim *corev1.Pod, node string) error {
	if victim.DeletionTimestamp != nil {
		return nil
	}
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message:            fmt.Sprintf("%s: preempting to accommodate a higher priority pod", preemptor.Spec.SchedulerName),
		LastTransitionTime: metav1.NewTime(p.handle.Clock.Now()),
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{condition}}})
	if err != nil {
		return err
	}
	_, err = p.pods.Resource.Patch(ctx, victim.Namespace, victim.Name, types.StrategicMergePatchType, patch, "status")
	if err == nil {
		// The informer shows it when this returns, so the next try does not begin anew.
		_, err = p.pods.Delete(ctx, victim.Namespace, victim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(victim.UID))})
	}
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil // gone, or replaced by another of its name
	case err != nil:
		return fmt.Errorf("preempt pod %s/%s: %w", victim.Namespace, victim.Name, err)
	}
	p.handle.Recorder.Eventf(victim, preemptor, corev1.EventTypeNormal, "Preempted", "Preempting", "Preempted by pod %v on node %v", preemptor.UID, node)
	return nil
}

func (p *Plugin) clearNomination(ctx context.Context, pod *corev1.Pod) {
	_, err := p.pods.Resource.MergePatch(ctx, pod.Namespace, pod.Name, map[string]any{"status": map[string]any{"nominatedNodeName": nil}}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		slog.WarnContext(ctx, "cannot clear nomination", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
}
