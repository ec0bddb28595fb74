// Package nodename keeps a pod with spec.nodeName to that node.
package nodename

import (
	"context"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "NodeName"

type Plugin struct{}

func New(*framework.Handle) (framework.Plugin, error) { return Plugin{}, nil }

func (Plugin) Name() string { return Name }

func (Plugin) Local(*framework.PodInfo) bool { return true }

var mismatch = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match the requested node name")

func (Plugin) PreFilter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	if pod.Pod.Spec.NodeName == "" {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, nil
}

func (Plugin) Filter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if want := pod.Pod.Spec.NodeName; want != "" && want != node.Name() {
		return mismatch
	}
	return nil
}

func (Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{hint.On(framework.Node, framework.Add, nil)}
}
