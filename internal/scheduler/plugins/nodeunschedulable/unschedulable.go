// Package nodeunschedulable keeps pods off cordoned nodes.
package nodeunschedulable

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "NodeUnschedulable"

type Plugin struct{}

func New(*framework.Handle) (framework.Plugin, error) { return Plugin{}, nil }

func (Plugin) Name() string { return Name }

func (Plugin) Local(*framework.PodInfo) bool { return true }

var cordoned = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) were unschedulable")

// Filter rejects a node with spec.unschedulable, unless the pod tolerates the
// taint that stands for it.
func (Plugin) Filter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if node.Unschedulable && !tolerates(pod.Pod) {
		return cordoned
	}
	return nil
}

func tolerates(pod *corev1.Pod) bool {
	taint := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return schedulinghelpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, &taint, false)
}

func (Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.Node, framework.Add|framework.UpdateNodeTaint,
			hint.Node(func(pod *corev1.Pod, node *corev1.Node) bool { return !node.Spec.Unschedulable || tolerates(pod) })),
		hint.On(framework.UnscheduledPod, framework.UpdatePodToleration, nil),
	}
}
