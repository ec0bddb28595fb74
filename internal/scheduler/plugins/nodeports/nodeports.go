// Package nodeports keeps pods that want the same port of the node apart.
package nodeports

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "NodePorts"

type Plugin struct{}

func New(*framework.Handle) (framework.Plugin, error) { return Plugin{}, nil }

func (Plugin) Name() string { return Name }

func (Plugin) Local(*framework.PodInfo) bool { return true }

var taken = framework.NewStatus(framework.Unschedulable, "node(s) didn't have free ports for the requested pod ports")

func (Plugin) PreFilter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	if len(pod.HostPorts) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, nil
}

func (Plugin) Filter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	for _, want := range pod.HostPorts {
		if node.PortTaken(want) {
			return taken
		}
	}
	return nil
}

func (Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.AssignedPod, framework.Delete, freesPort),
		hint.On(framework.Node, framework.Add, nil),
	}
}

// freesPort: a pod that is gone held a port that pod wants.
func freesPort(pod *corev1.Pod, old, _ any) framework.Hint {
	gone, _ := hint.Pods(old, nil)
	if gone == nil {
		return framework.QueueSkip
	}
	held := framework.NodeInfo{Ports: framework.HostPortsOf(gone)}
	for _, want := range framework.HostPortsOf(pod) {
		if held.PortTaken(want) {
			return framework.Queue
		}
	}
	return framework.QueueSkip
}
