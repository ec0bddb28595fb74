// Package tainttoleration keeps pods off nodes whose taints they do not tolerate.
package tainttoleration

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
	"proa/internal/scheduler/plugins/normalize"
)

const Name = "TaintToleration"

type Plugin struct{}

func New(*framework.Handle) (framework.Plugin, error) { return Plugin{}, nil }

func (Plugin) Name() string { return Name }

func (Plugin) Local(*framework.PodInfo) bool { return true }

var untolerated = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) had untolerated taint(s)")

// Filter rejects a node with a NoSchedule or NoExecute taint that the pod does
// not tolerate. Preemption cannot remove a taint.
func (Plugin) Filter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if len(node.NoSchedule) > 0 && !toleratesAll(pod.Pod, node.NoSchedule) {
		return untolerated
	}
	return nil
}

func toleratesAll(pod *corev1.Pod, taints []corev1.Taint) bool {
	for i := range taints {
		if !schedulinghelpers.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &taints[i], true) {
			return false
		}
	}
	return true
}

// PreScore skips when no node has a taint of effect PreferNoSchedule.
func (Plugin) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo, nodes []*framework.NodeInfo) *framework.Status {
	tainted := false
	for _, n := range nodes {
		tainted = tainted || len(n.PreferNoSchedule) > 0
	}
	if !tainted {
		return framework.NewStatus(framework.Skip)
	}
	var soft softTolerations
	for _, t := range pod.Pod.Spec.Tolerations {
		if t.Effect == "" || t.Effect == corev1.TaintEffectPreferNoSchedule {
			soft = append(soft, t)
		}
	}
	state.Write(Name, soft)
	return nil
}

// softTolerations are those that apply to PreferNoSchedule.
type softTolerations []corev1.Toleration

func (s softTolerations) Clone() framework.StateData { return s }

// Score counts the PreferNoSchedule taints that the pod does not tolerate.
func (Plugin) Score(_ context.Context, state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	soft, _ := framework.Read[softTolerations](state, Name)
	var count int64
	for i := range node.PreferNoSchedule {
		if !schedulinghelpers.TolerationsTolerateTaint(klog.Background(), soft, &node.PreferNoSchedule[i], true) {
			count++
		}
	}
	return count, nil
}

func (Plugin) NormalizeScore(_ context.Context, _ *framework.CycleState, _ *framework.PodInfo, _ []*framework.NodeInfo, scores []int64) *framework.Status {
	normalize.Scale(scores, true)
	return nil
}

func (Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.Node, framework.Add|framework.UpdateNodeTaint, hint.Node(func(pod *corev1.Pod, node *corev1.Node) bool {
			var n framework.NodeInfo
			n.SetNode(node)
			return toleratesAll(pod, n.NoSchedule)
		})),
		hint.On(framework.UnscheduledPod, framework.UpdatePodToleration, nil),
	}
}
