// Package gangscheduling binds the pods of a gang together or not at all (KEP-4671).
//
// Pods name their PodGroup; a group with a gang policy wants at least minCount of
// its pods to have a node at the same time. They stay out of the queue until there
// are that many, take their nodes one by one and wait there until enough have one.
// As soon as too few can be placed, all give back what they hold.
package gangscheduling

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
)

const Name = "GangScheduling"

// patience is how long a pod keeps its node for the others.
const patience = 5 * time.Minute

// Plugin is safe for concurrent use.
type Plugin struct {
	handle *framework.Handle
	groups *client.Informer[*schedulingv1beta1.PodGroup]

	mu    sync.Mutex // guards what follows; not held while the handle is called
	gangs map[types.NamespacedName]*gang
}

// gang is what is known of the pods of one group, whatever its policy.
type gang struct {
	pods    map[types.UID]*corev1.Pod // all that have not ended
	holding map[types.UID]bool        // placed and waiting for the others
	cleared map[types.UID]bool        // let go to be bound
	failed  map[types.UID]bool        // fit nowhere while the others waited
}

// absent stands for the plugin while PodGroups are not served: no pod has one.
type absent struct{}

func (absent) Name() string { return Name }

func (absent) EventsToRegister() []framework.HintedEvent { return nil }

func New(h *framework.Handle) (framework.Plugin, error) {
	if !h.PodGroups {
		return absent{}, nil
	}
	p := &Plugin{handle: h, groups: client.Shared[*schedulingv1beta1.PodGroup](h.Cache), gangs: map[types.NamespacedName]*gang{}}
	client.Shared[*corev1.Pod](h.Cache).OnChange(p.podChanged)
	p.groups.OnChange(func(_, g *schedulingv1beta1.PodGroup) {
		if g != nil {
			p.wake(types.NamespacedName{Namespace: g.Namespace, Name: g.Name})
		}
	})
	return p, nil
}

func (*Plugin) Name() string { return Name }

// EventsToRegister: none; the plugin activates the pods that it holds back.
func (*Plugin) EventsToRegister() []framework.HintedEvent { return nil }

// groupOf is the key of a pod's group; false when it has none.
func groupOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return types.NamespacedName{Namespace: pod.Namespace, Name: *g.PodGroupName}, true
	}
	return types.NamespacedName{}, false
}

// wanted is how many pods of a group must be placed together; 0: it is no gang.
// False: there is no such group.
func (p *Plugin) wanted(key types.NamespacedName) (int, bool) {
	g, ok := p.groups.Cached(key.Namespace, key.Name)
	if !ok {
		return 0, false
	}
	if policy := g.Spec.SchedulingPolicy.Gang; policy != nil {
		return int(policy.MinCount), true
	}
	return 0, true
}

func (p *Plugin) podChanged(old, pod *corev1.Pod) {
	current := pod
	if current == nil {
		current = old
	}
	key, ok := groupOf(current)
	if !ok {
		return
	}
	min, _ := p.wanted(key)
	p.mu.Lock()
	g := p.gangLocked(key)
	_, known := g.pods[current.UID]
	gone := pod == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	var hopeless []types.UID
	if gone {
		g.forget(current.UID)
		hopeless = g.giveUp(min)
	} else {
		g.pods[pod.UID] = pod
	}
	if len(g.pods) == 0 {
		delete(p.gangs, key)
	}
	p.mu.Unlock()
	p.reject(key, hopeless, min)
	if !gone && !known {
		p.wake(key)
	}
}

func (p *Plugin) gangLocked(key types.NamespacedName) *gang {
	g := p.gangs[key]
	if g == nil {
		g = &gang{pods: map[types.UID]*corev1.Pod{}, holding: map[types.UID]bool{}, cleared: map[types.UID]bool{}, failed: map[types.UID]bool{}}
		p.gangs[key] = g
	}
	return g
}

func (g *gang) forget(uid types.UID) {
	delete(g.pods, uid)
	delete(g.holding, uid)
	delete(g.cleared, uid)
	delete(g.failed, uid)
}

// placed counts the pods that have a node, or hold one.
func (g *gang) placed() int {
	n := 0
	for uid, pod := range g.pods {
		if pod.Spec.NodeName != "" || g.holding[uid] || g.cleared[uid] {
			n++
		}
	}
	return n
}

// giveUp returns the pods that hold a node in vain: without those that failed
// there are fewer than min.
func (g *gang) giveUp(min int) []types.UID {
	if len(g.holding) == 0 || len(g.pods)-len(g.failed) >= min {
		return nil
	}
	var held []types.UID
	for uid := range g.holding {
		held = append(held, uid)
	}
	clear(g.holding)
	clear(g.failed)
	return held
}

// wake has the pods of a group that wait for others looked at again.
func (p *Plugin) wake(key types.NamespacedName) {
	for _, pod := range p.waiting(key) {
		p.handle.Activate(&framework.PodInfo{Pod: pod})
	}
}

// waiting are the pods of a group without a node that may find one.
func (p *Plugin) waiting(key types.NamespacedName) []*corev1.Pod {
	min, ok := p.wanted(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.gangs[key]
	if !ok || g == nil || len(g.pods) < min {
		return nil
	}
	var found []*corev1.Pod
	for uid, pod := range g.pods {
		if pod.Spec.NodeName == "" && !g.holding[uid] && !g.cleared[uid] && !g.failed[uid] {
			found = append(found, pod)
		}
	}
	return found
}

// PreEnqueue keeps a pod out until its group is there, and enough of its pods are.
func (p *Plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *framework.Status {
	key, ok := groupOf(pod)
	if !ok {
		return nil
	}
	min, ok := p.wanted(key)
	if !ok {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for pod group %q to appear in scheduling queue", key.Name))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.gangs[key]; min > 0 && (g == nil || len(g.pods) < min) {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "waiting for minCount pods from a gang to appear in scheduling queue")
	}
	return nil
}
