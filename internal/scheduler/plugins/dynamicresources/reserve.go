package dynamicresources

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	draclaim "k8s.io/dynamic-resource-allocation/resourceclaim"

	"proa/internal/scheduler/framework"
)

// Reserve keeps the devices that Filter found on the node from other pods.
func (p *Plugin) Reserve(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node string) *framework.Status {
	s := stateOf(cs)
	if s == nil || len(s.missing) == 0 {
		return nil
	}
	on := s.found[node]
	if on == nil {
		return framework.AsStatus(errNoResult)
	}
	s.chosen = &found{results: slices.Clone(on.results), special: on.special} // the memo may give the same to another pod
	for i, a := range s.allocations() {
		p.devices.Take(s.claims[i].UID, a)
		s.kept = append(s.kept, s.claims[i].UID)
	}
	return nil
}

// allocations are those of the chosen node, by claim.
func (s *state) allocations() map[int]*resourcev1.AllocationResult {
	of := map[int]*resourcev1.AllocationResult{}
	if s.chosen == nil {
		return of
	}
	next := 0
	for _, i := range s.missing {
		if i == s.extended && s.chosen.claim == nil {
			continue
		}
		of[i] = &s.chosen.results[next]
		next++
	}
	return of
}

// Unreserve gives back what Reserve has kept and PreBind has written.
func (p *Plugin) Unreserve(ctx context.Context, cs *framework.CycleState, pod *framework.PodInfo, _ string) {
	s := stateOf(cs)
	if s == nil {
		return
	}
	for _, claim := range s.kept {
		p.devices.Release(claim)
	}
	s.kept = nil
	for i, claim := range s.claims {
		var err error
		switch {
		case i == s.extended && claim.Name != inMemory:
			err = p.deleteExtended(ctx, claim)
		case claim.Status.Allocation != nil && draclaim.IsReservedForPod(pod.Pod, claim, false):
			err = p.unreserve(ctx, claim, pod.Pod)
		}
		if err != nil && ctx.Err() == nil { // the next attempt comes here again
			slog.WarnContext(ctx, "cannot unreserve claim", "claim", claim.Namespace+"/"+claim.Name, "err", err)
		}
	}
}

// unreserve is a patch, as it need not know who else has come or gone.
func (p *Plugin) unreserve(ctx context.Context, claim *resourcev1.ResourceClaim, pod *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID},
		"status":   map[string]any{"reservedFor": []map[string]any{{"$patch": "delete", "uid": pod.UID}}},
	})
	if err != nil {
		return err
	}
	_, err = p.claims.Patch(ctx, claim.Namespace, claim.Name, types.StrategicMergePatchType, patch, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// PreBindNeeded: the pod has claims.
func (p *Plugin) PreBindNeeded(cs *framework.CycleState) bool {
	s := stateOf(cs)
	return s != nil && (s.extended < 0 || len(s.claims) > 1 || s.chosen != nil && s.chosen.claim != nil)
}

// PreBind writes allocations and reservations, and waits for devices that have to
// be made ready for the node.
func (p *Plugin) PreBind(ctx context.Context, cs *framework.CycleState, pod *framework.PodInfo, node string) *framework.Status {
	s := stateOf(cs)
	allocations := s.allocations()
	for i, claim := range s.claims {
		if i == s.extended && allocations[i] == nil || draclaim.IsReservedForPod(pod.Pod, claim, false) {
			continue
		}
		kept := claim.UID
		if i == s.extended {
			created, err := p.createExtended(ctx, s.chosen.claim)
			if err != nil {
				return framework.AsStatus(err)
			}
			claim, s.claims[i] = created, created
		}
		written, err := p.write(ctx, claim, allocations[i], pod.Pod)
		if err != nil {
			return framework.AsStatus(err)
		}
		s.claims[i] = written
		p.devices.Release(kept)
		if i == s.extended {
			if err := p.tellExtended(ctx, pod.Pod, claim.Name, s.chosen.mappings); err != nil {
				return framework.AsStatus(err)
			}
		}
	}
	return framework.AsStatus(p.await(ctx, s, pod.Pod, node))
}

// conflicts is how often a claim may change under a write before it fails.
const conflicts = 5

// retry calls change with a copy of the claim, again with the latest one when
// somebody else was faster. Done, unless nil, gets the result.
func (p *Plugin) retry(ctx context.Context, claim *resourcev1.ResourceClaim, change func(*resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error), done func(*resourcev1.ResourceClaim)) error {
	for try := 0; ; try++ {
		changed, err := change(claim.DeepCopy())
		switch {
		case err == nil:
			if done != nil {
				done(changed)
			}
			return nil
		case !apierrors.IsConflict(err) || try == conflicts:
			return err
		}
		latest, err := p.claims.Get(ctx, claim.Namespace, claim.Name)
		if err != nil {
			return fmt.Errorf("get updated claim %s/%s after conflict: %w", claim.Namespace, claim.Name, err)
		}
		if latest.UID != claim.UID {
			return fmt.Errorf("claim %s/%s got replaced in the meantime", claim.Namespace, claim.Name)
		}
		claim = latest
	}
}

// write reserves the claim for the pod, with devices if it has got none yet. Pods
// that share a claim take turns, so that they do not stand in each other's way.
func (p *Plugin) write(ctx context.Context, claim *resourcev1.ResourceClaim, a *resourcev1.AllocationResult, pod *corev1.Pod) (written *resourcev1.ResourceClaim, err error) {
	defer p.devices.Turn(claim.UID)()
	if latest, ok := p.claims.Cached(claim.Namespace, claim.Name); ok && latest.UID == claim.UID {
		if a == nil && !sameDevices(latest.Status.Allocation, claim.Status.Allocation) {
			return nil, fmt.Errorf("claim %s/%s got allocated elsewhere in the meantime", claim.Namespace, claim.Name)
		}
		claim = latest
	}
	err = p.retry(ctx, claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		return p.writeOnce(ctx, claim, a, pod)
	}, func(claim *resourcev1.ResourceClaim) { written = claim })
	return written, err
}

// sameDevices: a pod's node was chosen for these devices and no others.
func sameDevices(a, b *resourcev1.AllocationResult) bool {
	return a != nil && b != nil && equality.Semantic.DeepEqual(a.Devices, b.Devices) && equality.Semantic.DeepEqual(a.NodeSelector, b.NodeSelector)
}

func (p *Plugin) writeOnce(ctx context.Context, claim *resourcev1.ResourceClaim, a *resourcev1.AllocationResult, pod *corev1.Pod) (*resourcev1.ResourceClaim, error) {
	name := claim.Namespace + "/" + claim.Name
	what := "add reservation"
	switch {
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s got deleted in the meantime", name)
	case a == nil && claim.Status.Allocation == nil:
		return nil, fmt.Errorf("claim %s got deallocated elsewhere in the meantime", name)
	case a != nil && claim.Status.Allocation != nil:
		return nil, fmt.Errorf("claim %s got allocated elsewhere in the meantime", name)
	case a != nil:
		what = "add allocation and reservation"
		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
			guarded, err := p.claims.Resource.Update(ctx, claim)
			if err != nil {
				return nil, fmt.Errorf("add finalizer to claim %s: %w", name, err)
			}
			claim = guarded.DeepCopy()
		}
		claim.Status.Allocation = a.DeepCopy()
	}
	if claim.Status.Allocation.AllocationTimestamp == nil {
		claim.Status.Allocation.AllocationTimestamp = new(metav1.NewTime(p.handle.Clock.Now().Truncate(time.Second))) // as the API keeps it
	}
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
		Resource: "pods", Name: pod.Name, UID: pod.UID,
	})
	updated, err := p.claims.UpdateStatus(ctx, claim)
	if err != nil {
		return nil, fmt.Errorf("%s to claim %s: %w", what, name, err)
	}
	return updated, nil
}
