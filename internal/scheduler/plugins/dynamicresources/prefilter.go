package dynamicresources

import (
	"context"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/structured"

	"proa/internal/scheduler/framework"
)

// state is what the plugin knows of one pod in one cycle.
type state struct {
	claims    []*resourcev1.ResourceClaim  // the pod's; PreBind puts in what it wrote
	reachable []*nodeaffinity.NodeSelector // by claim: where its devices can be used; nil: everywhere
	extended  int                          // which of the claims is that of extended resources; -1: none
	missing   []int                        // claims without devices
	allocator structured.Allocator         // nil when none is missing
	shape     string                       // of the claims that are missing, for the memo; "": not to be remembered

	mu          sync.Mutex // guards what follows
	unavailable map[int]struct{}
	found       map[string]*found // by node that fits

	// What follows is set by Reserve.
	chosen *found
	kept   []types.UID // claims with devices in flight
}

// found is how one node serves the claims that are missing.
type found struct {
	results []resourcev1.AllocationResult // of the claims that are missing, in their order
	special
}

func (s *state) Clone() framework.StateData { return s }

func stateOf(cs *framework.CycleState) *state {
	s, _ := framework.Read[*state](cs, Name)
	return s
}

// PreFilter looks at the pod's claims: those with devices must be free for one
// more user, the others need classes that exist.
func (p *Plugin) PreFilter(ctx context.Context, cs *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	claims, err := p.claimsOf(pod.Pod)
	if err != nil {
		return nil, unresolvable("%v", err)
	}
	s := &state{claims: claims, extended: -1, found: map[string]*found{}}
	if special := p.extendedClaim(pod); special != nil {
		s.extended = len(s.claims)
		s.claims = append(s.claims, special)
	}
	if len(s.claims) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	if status := p.sort(s); status != nil {
		return nil, status
	}
	if len(s.missing) > 0 {
		s.allocator, err = structured.NewAllocator(ctx, features, p.devices.Allocated(), p.devices.Classes(), p.devices.Published(), p.expressions)
		if err != nil {
			return nil, framework.AsStatus(err)
		}
		if s.extended < 0 {
			s.shape = shape(s.absent(nil))
		}
	}
	cs.Write(Name, s)
	return nil, nil
}

func (p *Plugin) sort(s *state) *framework.Status {
	s.reachable = make([]*nodeaffinity.NodeSelector, len(s.claims))
	for i, claim := range s.claims {
		if a := claim.Status.Allocation; a != nil {
			if a.NodeSelector == nil {
				continue
			}
			selector, err := nodeaffinity.NewNodeSelector(a.NodeSelector)
			if err != nil {
				return framework.AsStatus(err)
			}
			s.reachable[i] = selector
			continue
		}
		s.missing = append(s.missing, i)
		if p.devices.Taken(claim.UID) {
			return unresolvable("resource claim %s/%s is in the process of being allocated", claim.Namespace, claim.Name)
		}
		if i == s.extended {
			continue
		}
		if status := p.checkClasses(claim); status != nil {
			return status
		}
	}
	return nil
}

func (p *Plugin) checkClasses(claim *resourcev1.ResourceClaim) *framework.Status {
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		switch {
		case r.Exactly != nil:
			if status := p.checkClass(r.Name, r.Exactly.DeviceClassName); status != nil {
				return status
			}
		case len(r.FirstAvailable) > 0:
			for j := range r.FirstAvailable {
				if status := p.checkClass(r.Name+"/"+r.FirstAvailable[j].Name, r.FirstAvailable[j].DeviceClassName); status != nil {
					return status
				}
			}
		default:
			return unresolvable("resource claim %s/%s, request %s: unknown request type", claim.Namespace, claim.Name, r.Name)
		}
	}
	return nil
}

func (p *Plugin) checkClass(request, class string) *framework.Status {
	if _, err := p.devices.Classes().Get(class); err != nil {
		return unresolvable("request %s: device class %s does not exist", request, class)
	}
	return nil
}
