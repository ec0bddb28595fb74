package gangscheduling

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"proa/internal/scheduler/framework"
)

// Permit has a pod of a gang wait on its node until enough of them have one.
func (p *Plugin) Permit(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ string) (*framework.Status, time.Duration) {
	key, ok := groupOf(pod.Pod)
	min, exists := p.wanted(key)
	if !ok || !exists {
		return nil, 0
	}
	if min == 0 {
		p.scheduled(key)
		return nil, 0
	}
	p.mu.Lock()
	g := p.gangLocked(key)
	g.pods[pod.Pod.UID] = pod.Pod
	g.holding[pod.Pod.UID] = true
	delete(g.failed, pod.Pod.UID)
	enough := g.placed() >= min
	var others []types.UID
	if enough {
		for uid := range g.holding {
			g.cleared[uid] = true
			if uid != pod.Pod.UID {
				others = append(others, uid)
			}
		}
		clear(g.holding)
	}
	p.mu.Unlock()
	if !enough {
		p.wake(key)
		return framework.NewStatus(framework.Wait), patience
	}
	for _, uid := range others {
		p.handle.Allow(uid, Name)
	}
	p.scheduled(key)
	return nil, 0
}

// PostFilter gives up what the others of a gang hold when, without this pod, they
// are too few. It comes after the preemption that may have made room for it.
func (p *Plugin) PostFilter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (*framework.PostFilterResult, *framework.Status) {
	status := framework.NewStatus(framework.Unschedulable)
	key, ok := groupOf(pod.Pod)
	min, exists := p.wanted(key)
	if !ok || !exists || min == 0 {
		return nil, status
	}
	p.mu.Lock()
	g := p.gangLocked(key)
	g.failed[pod.Pod.UID] = true
	hopeless := g.giveUp(min)
	if len(g.pods)-len(g.failed) < min && len(hopeless) == 0 {
		clear(g.failed) // nobody holds anything: the next try begins anew
	}
	p.mu.Unlock()
	p.reject(key, hopeless, min)
	p.write(key, metav1.ConditionFalse, schedulingv1beta1.PodGroupReasonUnschedulable, d.Message())
	return nil, status
}

// reject sends pods that wait on their nodes back to the queue.
func (p *Plugin) reject(key types.NamespacedName, pods []types.UID, min int) {
	for _, uid := range pods {
		p.handle.Reject(uid, Name, fmt.Sprintf("fewer than %d pods of pod group %q can be placed", min, key.Name))
	}
}

// Reserve takes nothing: what a gang holds is noted in Permit.
func (*Plugin) Reserve(context.Context, *framework.CycleState, *framework.PodInfo, string) *framework.Status {
	return nil
}

// Unreserve forgets the node of a pod; the others that wait give up with it if they
// are too few now.
func (p *Plugin) Unreserve(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ string) {
	key, ok := groupOf(pod.Pod)
	if !ok {
		return
	}
	min, _ := p.wanted(key)
	p.mu.Lock()
	g := p.gangLocked(key)
	waited := g.holding[pod.Pod.UID]
	delete(g.holding, pod.Pod.UID)
	delete(g.cleared, pod.Pod.UID)
	var hopeless []types.UID
	if waited { // too long
		for uid := range g.holding {
			hopeless = append(hopeless, uid)
		}
		clear(g.holding)
	}
	if len(g.pods) == 0 {
		delete(p.gangs, key)
	}
	p.mu.Unlock()
	p.reject(key, hopeless, min)
}

// scheduled notes that a group has got what it wanted.
func (p *Plugin) scheduled(key types.NamespacedName) {
	p.write(key, metav1.ConditionTrue, "Scheduled", "All required pods have been successfully scheduled")
}

// write sets the group's condition in the background. Once true it stays.
func (p *Plugin) write(key types.NamespacedName, status metav1.ConditionStatus, reason, message string) {
	group, ok := p.groups.Cached(key.Namespace, key.Name)
	if !ok || says(group, status, message) {
		return
	}
	condition := metav1.Condition{
		Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: status, Reason: reason, Message: message,
		ObservedGeneration: group.Generation, LastTransitionTime: metav1.NewTime(p.handle.Clock.Now()),
	}
	p.handle.Background(func(ctx context.Context) {
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return p.set(ctx, group, condition) })
		if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
			slog.WarnContext(ctx, "cannot write pod group condition", "podGroup", key.String(), "err", err)
		}
	})
}

// set writes a condition into the group as it is now: what is written in the background
// has no order, and what came too late must not stand.
func (p *Plugin) set(ctx context.Context, group *schedulingv1beta1.PodGroup, c metav1.Condition) error {
	now, err := p.groups.Get(ctx, group.Namespace, group.Name)
	if err != nil || now.UID != group.UID || says(now, c.Status, c.Message) {
		return err
	}
	now = now.DeepCopy()
	meta.SetStatusCondition(&now.Status.Conditions, c)
	_, err = p.groups.Resource.UpdateStatus(ctx, now)
	return err
}

// says tells whether a group's condition needs no change.
func says(g *schedulingv1beta1.PodGroup, status metav1.ConditionStatus, message string) bool {
	c := meta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
	return c != nil && (c.Status == metav1.ConditionTrue || c.Status == status && c.Message == message)
}
