package dynamicresources

import (
	"context"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"

	"proa/internal/scheduler/framework"
)

// Explain says which requests a node cannot serve, each looked at alone, and how
// many devices they lack there.
func (p *Plugin) Explain(ctx context.Context, cs *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (reasons []string) {
	s := stateOf(cs)
	if s == nil || s.allocator == nil {
		return nil
	}
	serves := func(claim *resourcev1.ResourceClaim) bool {
		results, err := s.allocator.Allocate(ctx, node.Node, []*resourcev1.ResourceClaim{claim})
		return err == nil && len(results) == 1
	}
	for _, i := range s.missing {
		claim := s.claims[i]
		if i == s.extended || serves(claim) {
			continue
		}
		name, short := claim.Namespace+"/"+claim.Name, false
		for j := range claim.Spec.Devices.Requests {
			if lack := lacking(claim, j, serves); lack != "" {
				reasons = append(reasons, fmt.Sprintf("claim %s, request %s: %s", name, claim.Spec.Devices.Requests[j].Name, lack))
				short = true
			}
		}
		if !short {
			reasons = append(reasons, fmt.Sprintf("claim %s: each of its requests can be served, but not all together", name))
		}
	}
	return reasons
}

// lacking says what is missing for one request of a claim, if it were the only one.
func lacking(claim *resourcev1.ResourceClaim, request int, serves func(*resourcev1.ResourceClaim) bool) string {
	alone := claim.DeepCopy()
	alone.Spec.Devices.Requests = []resourcev1.DeviceRequest{alone.Spec.Devices.Requests[request]}
	alone.Spec.Devices.Config = nil
	name := alone.Spec.Devices.Requests[0].Name
	alone.Spec.Devices.Constraints = slices.DeleteFunc(alone.Spec.Devices.Constraints, func(c resourcev1.DeviceConstraint) bool {
		return len(c.Requests) > 0 && !slices.Equal(c.Requests, []string{name})
	})
	if serves(alone) {
		return ""
	}
	exactly := alone.Spec.Devices.Requests[0].Exactly
	switch {
	case exactly == nil:
		return "none of its alternatives can be served"
	case exactly.AllocationMode == resourcev1.DeviceAllocationModeAll:
		return "not all devices that match are free, or there are none"
	}
	wanted := exactly.Count
	for exactly.Count = wanted - 1; exactly.Count > 0 && !serves(alone); {
		exactly.Count--
	}
	return fmt.Sprintf("%d of %d devices", exactly.Count, wanted)
}
