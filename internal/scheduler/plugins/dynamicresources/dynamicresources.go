// Package dynamicresources holds pods that ask for devices (KEP-4381). No
// device is allocated yet, so a pod with resource claims fits nowhere; bound
// without its devices it would fail at what it was made for.
package dynamicresources

import (
	"context"

	"proa/internal/scheduler/framework"
)

const Name = "DynamicResources"

type Plugin struct{}

func New(*framework.Handle) (framework.Plugin, error) { return Plugin{}, nil }

func (Plugin) Name() string { return Name }

// PreFilter rejects a pod with resource claims.
func (Plugin) PreFilter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	if len(pod.Pod.Spec.ResourceClaims) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, "resource claims are not allocated by this version")
}
