// Package schedulinggates keeps pods with scheduling gates out of the queue (KEP-3521).
package schedulinggates

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "SchedulingGates"

type Plugin struct{}

func New(*framework.Handle) (framework.Plugin, error) { return Plugin{}, nil }

func (Plugin) Name() string { return Name }

// PreEnqueue rejects a pod with gates.
func (Plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *framework.Status {
	if len(pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	gates := make([]string, len(pod.Spec.SchedulingGates))
	for i, g := range pod.Spec.SchedulingGates {
		gates[i] = g.Name
	}
	return framework.NewStatus(framework.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for scheduling gates: [%s]", strings.Join(gates, " ")))
}

func (Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{hint.On(framework.UnscheduledPod, framework.UpdatePodGates, nil)}
}
