package defaultpreemption

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

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
		began := p.handle.Clock.Now()
		var failed error
		for _, v := range c.victims {
			if err := p.evictOnce(ctx, pod.Pod, v.Pod, c.node.Name()); err != nil {
				failed = err
				break
			}
		}
		if p.handle.Evicted != nil {
			p.handle.Evicted(p.handle.Clock.Since(began), failed)
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

// eviction is one victim's. Several pods may count on the same one: whoever comes
// second waits for what the first does.
type eviction struct {
	victim *corev1.Pod
	done   chan struct{}
	err    error // once done is closed
}

// evictOnce evicts a victim unless someone does or did so already.
func (p *Plugin) evictOnce(ctx context.Context, preemptor, victim *corev1.Pod, node string) error {
	p.mu.Lock()
	e, known := p.evictions[victim.UID]
	if !known {
		p.forgetShownLocked()
		e = &eviction{victim: victim, done: make(chan struct{})}
		p.evictions[victim.UID] = e
	}
	p.mu.Unlock()
	if known {
		select {
		case <-e.done:
			return e.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	e.err = p.evict(ctx, preemptor, victim, node)
	close(e.done)
	if e.err != nil {
		p.mu.Lock()
		delete(p.evictions, victim.UID)
		p.mu.Unlock()
	}
	return e.err
}

// forgetShownLocked drops the evictions that the scheduler's own picture shows by now.
func (p *Plugin) forgetShownLocked() {
	for uid, e := range p.evictions {
		select {
		case <-e.done:
		default:
			continue
		}
		now, ok := p.pods.Cached(e.victim.Namespace, e.victim.Name)
		if !ok || now.UID != uid || now.DeletionTimestamp != nil {
			delete(p.evictions, uid)
		}
	}
}

// evicted tells whether a pod has been deleted as a victim, shown or not.
func (p *Plugin) evicted(pod *corev1.Pod) bool {
	p.mu.Lock()
	e := p.evictions[pod.UID]
	p.mu.Unlock()
	if e == nil {
		return false
	}
	select {
	case <-e.done:
		return e.err == nil
	default:
		return false
	}
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
	err := p.mark(ctx, victim, condition)
	if err == nil {
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

// mark sets a condition of the pod. It is an update of the version at hand, which
// takes the server half as long as a strategic patch; the patch is for a pod that has
// changed since.
func (p *Plugin) mark(ctx context.Context, pod *corev1.Pod, condition corev1.PodCondition) error {
	if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == condition.Type }) {
		marked := pod.DeepCopy()
		marked.Status.Conditions = append(marked.Status.Conditions, condition)
		if _, err := p.pods.Resource.UpdateStatus(ctx, marked); !apierrors.IsConflict(err) {
			return err
		}
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{condition}}})
	if err != nil {
		return err
	}
	_, err = p.pods.Resource.Patch(ctx, pod.Namespace, pod.Name, types.StrategicMergePatchType, patch, "status")
	return err
}

func (p *Plugin) clearNomination(ctx context.Context, pod *corev1.Pod) {
	_, err := p.pods.Resource.MergePatch(ctx, pod.Namespace, pod.Name, map[string]any{"status": map[string]any{"nominatedNodeName": nil}}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		slog.WarnContext(ctx, "cannot clear nomination", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
}
