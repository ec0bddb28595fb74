// Package dynamicresources finds devices for the resource claims of pods
// (KEP-4381), with upstream's allocator: Filter tries every node, Reserve keeps the
// devices of the chosen one, PreBind writes them into the claims. Extended resources
// that a DeviceClass stands for become a claim of the scheduler's own (KEP-5004).
package dynamicresources

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	draclaim "k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"

	"proa/internal/client"
	"proa/internal/scheduler/devices"
	"proa/internal/scheduler/framework"
)

const Name = "DynamicResources"

// Args of the plugin.
type Args struct {
	FilterTimeout  *time.Duration // of one node; nil means 10 s, 0 none
	BindingTimeout *time.Duration // of a device's binding conditions; nil means 10 min
}

type Plugin struct {
	handle         *framework.Handle
	filterTimeout  time.Duration
	bindingTimeout time.Duration
	devices        *devices.Inventory
	claims         *client.Informer[*resourcev1.ResourceClaim]
	pods           *client.Informer[*corev1.Pod]
	expressions    *cel.Cache
	memo           memo
}

// compiled CEL expressions are kept for this many selectors.
const compiled = 64

// features are those of the allocator whose gates are on by default.
var features = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
	PartitionableDevices: true, PrioritizedList: true,
}

// Indexes of the shared informers.
const (
	byClaim = "scheduler-resource-claim" // pods, by "namespace/name"
	byOwner = "scheduler-claim-owner"    // claims for extended resources, by the pod's UID
)

func New(h *framework.Handle) (framework.Plugin, error) {
	p := &Plugin{
		handle: h, filterTimeout: 10 * time.Second, bindingTimeout: 10 * time.Minute,
		devices: h.Devices, claims: h.Devices.Claims, pods: client.Shared[*corev1.Pod](h.Cache),
		expressions: cel.NewCache(compiled, cel.Features{EnableConsumableCapacity: true}),
	}
	if args, ok := h.Args.(*Args); ok && args != nil {
		if args.FilterTimeout != nil {
			p.filterTimeout = *args.FilterTimeout
		}
		if args.BindingTimeout != nil {
			p.bindingTimeout = *args.BindingTimeout
		}
	}
	p.pods.AddIndex(byClaim, claimKeys)
	p.claims.AddIndex(byOwner, extendedFor)
	return p, nil
}

func (*Plugin) Name() string { return Name }

// Local: a pod's devices can be those of other nodes, too.
func (p *Plugin) Local(pod *framework.PodInfo) bool {
	return len(pod.Pod.Spec.ResourceClaims) == 0 && !p.asksForDevices(pod)
}

func claimKeys(pod *corev1.Pod) (keys []string) {
	for i := range pod.Spec.ResourceClaims {
		if name, _, err := draclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != nil {
			keys = append(keys, pod.Namespace+"/"+*name)
		}
	}
	return keys
}

// claimsOf returns the pod's claims, or why they cannot be used.
func (p *Plugin) claimsOf(pod *corev1.Pod) ([]*resourcev1.ResourceClaim, error) {
	var found []*resourcev1.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, generated, err := draclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // it was found not to be needed
		}
		claim, ok := p.claims.Cached(pod.Namespace, *name)
		if !ok {
			return nil, fmt.Errorf("could not find ResourceClaim %q", pod.Namespace+"/"+*name)
		}
		if claim.DeletionTimestamp != nil {
			return nil, fmt.Errorf("resourceclaim %q is being deleted", claim.Name)
		}
		if generated {
			if err := draclaim.IsForPod(pod, claim, false); err != nil {
				return nil, err
			}
		}
		found = append(found, claim)
	}
	return found, nil
}

func unresolvable(format string, args ...any) *framework.Status {
	return framework.NewStatus(framework.UnschedulableAndUnresolvable, fmt.Sprintf(format, args...))
}

// PreEnqueue keeps a pod out until its claims exist.
func (p *Plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *framework.Status {
	if _, err := p.claimsOf(pod); err != nil {
		return unresolvable("%v", err)
	}
	return nil
}
