package dynamicresources

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"proa/internal/scheduler/framework"
)

var (
	notAll      = unresolvable("cannot allocate all claims")
	notHere     = unresolvable("resourceclaim not available on the node")
	notAnymore  = unresolvable("cannot schedule extended resource claim")
	errNoResult = errors.New("claim allocation not found for node")
)

// Filter rejects a node where a claim's devices cannot be used, or where there are
// none for a claim that is missing some.
func (p *Plugin) Filter(ctx context.Context, cs *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	s := stateOf(cs)
	if s == nil {
		return nil
	}
	f := &found{}
	if s.extended >= 0 {
		var status *framework.Status
		if f.special, status = p.extendedOn(s.claims[s.extended], pod, node); status != nil {
			return status
		}
		if f.claim == nil && len(s.claims) == 1 {
			s.put(node.Name(), f) // the node has it all without us
			return nil
		}
	}
	unavailable := p.unavailableOn(s, node.Node)
	if s.allocator != nil {
		var status *framework.Status
		if f.results, status = p.devicesOn(ctx, s, f.claim, node.Node); status != nil {
			return status
		}
	}
	if len(unavailable) > 0 {
		s.blame(unavailable)
		return notHere
	}
	s.put(node.Name(), f)
	return nil
}

func (s *state) put(node string, f *found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found[node] = f
}

func (s *state) blame(claims []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unavailable == nil {
		s.unavailable = map[int]struct{}{}
	}
	for _, i := range claims {
		s.unavailable[i] = struct{}{}
	}
}

// unavailableOn are the claims whose devices the node does not reach, or that will
// not get ready for it (KEP-5007).
func (p *Plugin) unavailableOn(s *state, node *corev1.Node) (unavailable []int) {
	for i, claim := range s.claims {
		if claim.Status.Allocation == nil {
			continue
		}
		if s.reachable[i] != nil && !s.reachable[i].Match(node) {
			unavailable = append(unavailable, i)
			continue
		}
		if ready, err := prepared(claim); err != nil || !ready && p.late(claim) {
			unavailable = append(unavailable, i)
		}
	}
	return unavailable
}

// absent are the claims that need devices. Special is the one for extended
// resources as a node needs it, nil when it needs none.
func (s *state) absent(special *resourcev1.ResourceClaim) []*resourcev1.ResourceClaim {
	absent := make([]*resourcev1.ResourceClaim, 0, len(s.missing))
	for _, i := range s.missing {
		switch {
		case i != s.extended:
			absent = append(absent, s.claims[i])
		case special != nil:
			absent = append(absent, special)
		}
	}
	return absent
}

// devicesOn finds devices for what is missing, or remembers them.
func (p *Plugin) devicesOn(ctx context.Context, s *state, special *resourcev1.ResourceClaim, node *corev1.Node) ([]resourcev1.AllocationResult, *framework.Status) {
	version, own := p.devices.Version(node.Name)
	if s.shape == "" || !own {
		results, status, _ := p.allocate(ctx, s.allocator, node, s.absent(special))
		return results, status
	}
	if a, ok := p.memo.get(s.shape, node.Name, version); ok {
		return a.results, a.status
	}
	results, status, final := p.allocate(ctx, s.allocator, node, s.absent(special))
	if final {
		p.memo.put(s.shape, node.Name, answer{version: version, results: results, status: status})
	}
	return results, status
}

// allocate asks the allocator. Final tells that it would say the same again.
func (p *Plugin) allocate(ctx context.Context, allocator structured.Allocator, node *corev1.Node, missing []*resourcev1.ResourceClaim) (results []resourcev1.AllocationResult, status *framework.Status, final bool) {
	within := ctx
	if p.filterTimeout > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, p.filterTimeout)
		defer cancel()
	}
	results, err := allocator.Allocate(within, node, missing)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, framework.AsStatus(fmt.Errorf("node %s: timed out trying to allocate devices", node.Name)), false
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, unresolvable("%v", err), false
	case ctx.Err() != nil:
		return nil, unresolvable("asked by caller to stop allocating devices: %v", context.Cause(ctx)), false
	case err != nil: // of the claim or a class: other nodes would say the same
		return nil, framework.AsStatus(err), false
	case len(results) != len(missing):
		return nil, notAll, true
	}
	return results, nil, true
}

// PostFilter gives the devices of a claim back that nobody else uses and that the
// pod could not be placed with, so that others can be found for it.
func (p *Plugin) PostFilter(ctx context.Context, cs *framework.CycleState, pod *framework.PodInfo, _ *framework.Diagnosis) (*framework.PostFilterResult, *framework.Status) {
	s := stateOf(cs)
	if s == nil {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	for i := range s.unavailable { // any of them will do
		claim := s.claims[i]
		if i == s.extended {
			continue
		}
		if r := claim.Status.ReservedFor; len(r) > 1 || len(r) == 1 && r[0].UID != pod.Pod.UID {
			continue
		}
		claim = claim.DeepCopy()
		claim.Status = resourcev1.ResourceClaimStatus{}
		if _, err := p.claims.UpdateStatus(ctx, claim); err != nil {
			return nil, framework.AsStatus(err)
		}
		return nil, framework.NewStatus(framework.Unschedulable, "deallocation of ResourceClaim completed")
	}
	if s.extended >= 0 && s.claims[s.extended].Name != inMemory {
		if err := p.deleteExtended(ctx, s.claims[s.extended]); err != nil {
			return nil, framework.AsStatus(err)
		}
		return nil, framework.NewStatus(framework.Unschedulable, "deletion of ResourceClaim completed")
	}
	return nil, framework.NewStatus(framework.Unschedulable)
}
