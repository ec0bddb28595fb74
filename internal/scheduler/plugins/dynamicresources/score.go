package dynamicresources

import (
	"context"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	draclaim "k8s.io/dynamic-resource-allocation/resourceclaim"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/normalize"
)

// PreScore: nodes differ only in which alternative of a prioritized list they
// serve (KEP-4816).
func (p *Plugin) PreScore(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	s := stateOf(cs)
	if s == nil || !slices.ContainsFunc(s.claims, hasAlternatives) {
		return framework.NewStatus(framework.Skip)
	}
	return nil
}

func hasAlternatives(claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool { return len(r.FirstAvailable) > 0 })
}

// Score prefers nodes that serve alternatives which are earlier in their lists.
func (p *Plugin) Score(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	s := stateOf(cs)
	f := s.found[node.Name()]
	if f == nil {
		return 0, nil
	}
	var score int64
	next := 0
	for i, claim := range s.claims {
		a := claim.Status.Allocation
		if a == nil {
			if i == s.extended && f.claim == nil {
				continue
			}
			a = &f.results[next]
			next++
		}
		score += rank(claim, a)
	}
	return score, nil
}

// rank is higher the earlier the alternatives are that the allocation chose.
func rank(claim *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) (score int64) {
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		for j := range r.FirstAvailable {
			name := draclaim.CreateSubRequestRef(r.Name, r.FirstAvailable[j].Name)
			if slices.ContainsFunc(a.Devices.Results, func(d resourcev1.DeviceRequestAllocationResult) bool { return d.Request == name }) {
				score += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - j)
			}
		}
	}
	return score
}

// NormalizeScore brings the scores into the range of all.
func (p *Plugin) NormalizeScore(_ context.Context, _ *framework.CycleState, _ *framework.PodInfo, _ []*framework.NodeInfo, scores []int64) *framework.Status {
	normalize.Scale(scores, false)
	return nil
}
