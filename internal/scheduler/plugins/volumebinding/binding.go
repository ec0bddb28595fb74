// Package volumebinding makes pod and volumes meet on one node: it respects where
// bound volumes can be used, and has claims of WaitForFirstConsumer classes bound
// or provisioned for the chosen node before the pod is bound.
package volumebinding

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "VolumeBinding"

// Args of the plugin.
type Args struct {
	BindTimeout *time.Duration // nil means 10 min; 0 means not to wait
}

type Plugin struct {
	handle     *framework.Handle
	timeout    time.Duration
	claims     *client.Informer[*corev1.PersistentVolumeClaim]
	volumes    *client.Informer[*corev1.PersistentVolume]
	classes    *client.Informer[*storagev1.StorageClass]
	drivers    *client.Informer[*storagev1.CSIDriver]
	capacities *client.Informer[*storagev1.CSIStorageCapacity]

	mu      sync.Mutex        // guards what follows
	taken   map[string]string // volumes chosen, by name: claim "namespace/name"
	changed chan struct{}     // closed and replaced when a claim or volume changes
}

func New(h *framework.Handle) (framework.Plugin, error) {
	p := &Plugin{
		handle: h, timeout: 10 * time.Minute,
		claims:     client.Shared[*corev1.PersistentVolumeClaim](h.Cache),
		volumes:    client.Shared[*corev1.PersistentVolume](h.Cache),
		classes:    client.Shared[*storagev1.StorageClass](h.Cache),
		drivers:    client.Shared[*storagev1.CSIDriver](h.Cache),
		capacities: client.Shared[*storagev1.CSIStorageCapacity](h.Cache),
		taken:      map[string]string{}, changed: make(chan struct{}),
	}
	if args, ok := h.Args.(*Args); ok && args != nil && args.BindTimeout != nil {
		p.timeout = *args.BindTimeout
	}
	p.volumes.AddIndex(byClass, func(v *corev1.PersistentVolume) []string { return []string{storagehelpers.GetPersistentVolumeClass(v)} })
	p.capacities.AddIndex(byClass, func(c *storagev1.CSIStorageCapacity) []string { return []string{c.StorageClassName} })
	p.claims.OnChange(func(_, _ *corev1.PersistentVolumeClaim) { p.wake() })
	p.volumes.OnChange(func(_, _ *corev1.PersistentVolume) { p.wake() })
	return p, nil
}

const byClass = "scheduler-class"

func (*Plugin) Name() string { return Name }

// Local for claims that are bound to volumes which every node can use.
func (p *Plugin) Local(pod *framework.PodInfo) bool {
	return !slices.ContainsFunc(pod.Claims, func(name string) bool { return !p.usableAnywhere(pod.Pod.Namespace, name) })
}

// Sign has every pod with claims looked at by itself.
func (p *Plugin) Sign(to []byte, pod *framework.PodInfo) []byte {
	if len(pod.Claims) > 0 {
		to = append(to, 'v')
	}
	return to
}

func (p *Plugin) usableAnywhere(namespace, name string) bool {
	claim, ok := p.claims.Cached(namespace, name)
	if !ok || !isBound(claim) {
		return false
	}
	volume, ok := p.volumes.Cached("", claim.Spec.VolumeName)
	return ok && (volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil)
}

func (p *Plugin) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// state are the pod's claims.
type state struct {
	bound   []*corev1.PersistentVolumeClaim
	delayed []*corev1.PersistentVolumeClaim // to be bound for the chosen node
	plan    *plan                           // of the chosen node, from Reserve on
}

func (s *state) Clone() framework.StateData { return s }

// plan says how each delayed claim gets its volume.
type plan struct {
	static    []match
	provision []*corev1.PersistentVolumeClaim
}

type match struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

func unresolvable(format string, args ...any) *framework.Status {
	return framework.NewStatus(framework.UnschedulableAndUnresolvable, fmt.Sprintf(format, args...))
}

// PreFilter sorts the pod's claims. Those of immediate binding must be bound.
func (p *Plugin) PreFilter(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	if len(pod.Claims) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s := &state{}
	immediate := false
	for i := range pod.Pod.Spec.Volumes {
		v := &pod.Pod.Spec.Volumes[i]
		claim, status := p.claimOf(pod.Pod, v)
		switch {
		case status != nil:
			return nil, status
		case claim == nil:
		case isBound(claim):
			s.bound = append(s.bound, claim)
		case claim.Spec.VolumeName == "" && p.isDelayed(claim):
			s.delayed = append(s.delayed, claim)
		default:
			immediate = true
		}
	}
	if immediate {
		return nil, unresolvable("pod has unbound immediate PersistentVolumeClaims")
	}
	cs.Write(Name, s)
	return nil, nil
}

// claimOf returns the claim of a volume, nil for a volume without one.
func (p *Plugin) claimOf(pod *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolumeClaim, *framework.Status) {
	var name string
	switch {
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name = ephemeral.VolumeClaimName(pod, v)
	default:
		return nil, nil
	}
	claim, ok := p.claims.Cached(pod.Namespace, name)
	switch {
	case !ok && v.Ephemeral != nil:
		return nil, unresolvable("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case !ok:
		return nil, unresolvable("persistentvolumeclaim %q not found", name)
	case claim.Status.Phase == corev1.ClaimLost:
		return nil, unresolvable("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
	case claim.DeletionTimestamp != nil:
		return nil, unresolvable("persistentvolumeclaim %q is being deleted", name)
	}
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return nil, unresolvable("%v", err)
		}
	}
	return claim, nil
}

func isBound(claim *corev1.PersistentVolumeClaim) bool {
	_, completed := claim.Annotations[storagehelpers.AnnBindCompleted]
	return claim.Spec.VolumeName != "" && completed
}

func (p *Plugin) isDelayed(claim *corev1.PersistentVolumeClaim) bool {
	class, ok := p.classes.Cached("", storagehelpers.GetPersistentVolumeClaimClass(claim))
	return ok && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

const (
	bindConflict  = "node(s) didn't find available persistent volumes to bind"
	nodeConflict  = "node(s) didn't match PersistentVolume's node affinity"
	notEnough     = "node(s) did not have enough free storage"
	volumeMissing = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
)

// Filter rejects a node where a bound volume cannot be used, or where a delayed
// claim finds no volume and none can be provisioned.
func (p *Plugin) Filter(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	s, ok := framework.Read[*state](cs, Name)
	if !ok {
		return nil
	}
	for _, claim := range s.bound {
		volume, ok := p.volumes.Cached("", claim.Spec.VolumeName)
		if !ok {
			return unresolvable(volumeMissing)
		}
		if storagehelpers.CheckNodeAffinity(volume, node.Node.Labels) != nil {
			return unresolvable(nodeConflict)
		}
	}
	_, status := p.planFor(s.delayed, node.Node)
	return status
}

// planFor chooses volumes of a node for the claims.
func (p *Plugin) planFor(claims []*corev1.PersistentVolumeClaim, node *corev1.Node) (*plan, *framework.Status) {
	chosen := &plan{}
	if len(claims) == 0 {
		return chosen, nil
	}
	excluded := map[string]*corev1.PersistentVolume{}
	for _, claim := range claims {
		if selected, ok := claim.Annotations[storagehelpers.AnnSelectedNode]; ok {
			// It is being provisioned already, and can be used on that node only.
			if selected != node.Name {
				return nil, unresolvable(bindConflict)
			}
			chosen.provision = append(chosen.provision, claim)
			continue
		}
		volume, err := storagehelpers.FindMatchingVolume(claim, p.available(claim), node, excluded, true, true)
		if err != nil {
			return nil, framework.AsStatus(err)
		}
		if volume != nil {
			excluded[volume.Name] = volume
			chosen.static = append(chosen.static, match{claim, volume})
			continue
		}
		if s := p.canProvision(claim, node); s != nil {
			return nil, s
		}
		chosen.provision = append(chosen.provision, claim)
	}
	return chosen, nil
}

// available returns the volumes of the claim's class that no other pod has taken.
func (p *Plugin) available(claim *corev1.PersistentVolumeClaim) []*corev1.PersistentVolume {
	all := p.volumes.ByIndex(byClass, storagehelpers.GetPersistentVolumeClaimClass(claim))
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.taken) == 0 {
		return all
	}
	key := claim.Namespace + "/" + claim.Name
	free := all[:0]
	for _, v := range all {
		if by, ok := p.taken[v.Name]; !ok || by == key {
			free = append(free, v)
		}
	}
	return free
}

func (p *Plugin) canProvision(claim *corev1.PersistentVolumeClaim, node *corev1.Node) *framework.Status {
	class, ok := p.classes.Cached("", storagehelpers.GetPersistentVolumeClaimClass(claim))
	if !ok || class.Provisioner == "" || class.Provisioner == storagehelpers.NotSupportedProvisioner {
		return unresolvable(bindConflict)
	}
	if !topologyAllowed(class.AllowedTopologies, node.Labels) {
		return unresolvable(bindConflict)
	}
	if !p.hasCapacity(class, claim, node) {
		return unresolvable(notEnough)
	}
	return nil
}

func topologyAllowed(terms []corev1.TopologySelectorTerm, labels map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	for _, term := range terms {
		met := len(term.MatchLabelExpressions) > 0
		for _, e := range term.MatchLabelExpressions {
			value, ok := labels[e.Key]
			met = met && ok && slices.Contains(e.Values, value)
		}
		if met {
			return true
		}
	}
	return false
}

// Reserve settles how the claims get their volumes on the chosen node.
func (p *Plugin) Reserve(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node string) *framework.Status {
	s, ok := framework.Read[*state](cs, Name)
	if !ok || len(s.delayed) == 0 {
		return nil
	}
	n := p.handle.Snapshot.ByName[node]
	chosen, status := p.planFor(s.delayed, n.Node)
	if status != nil {
		return status
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range chosen.static {
		p.taken[m.volume.Name] = m.claim.Namespace + "/" + m.claim.Name
	}
	s.plan = chosen
	return nil
}

// Unreserve frees the chosen volumes.
func (p *Plugin) Unreserve(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, _ string) {
	s, ok := framework.Read[*state](cs, Name)
	if !ok || s.plan == nil {
		return
	}
	p.release(s.plan)
}

func (p *Plugin) release(chosen *plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range chosen.static {
		delete(p.taken, m.volume.Name)
	}
}

func (p *Plugin) EventsToRegister() []framework.HintedEvent {
	any := framework.Add | framework.Update
	return []framework.HintedEvent{
		hint.On(framework.Claim, any, claimOfPod),
		hint.On(framework.Volume, any, nil),
		hint.On(framework.StorageClass, any, nil),
		hint.On(framework.Node, framework.Add|framework.UpdateNodeLabel, nil),
		hint.On(framework.CSINode, any, nil),
		hint.On(framework.CSIDriver, any, nil),
		hint.On(framework.CSICapacity, any, nil),
	}
}

// claimOfPod: the claim is one that the pod uses.
func claimOfPod(pod *corev1.Pod, _, new any) framework.Hint {
	claim, ok := new.(*corev1.PersistentVolumeClaim)
	if !ok || claim == nil || claim.Namespace != pod.Namespace {
		return framework.QueueSkip
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name ||
			v.Ephemeral != nil && ephemeral.VolumeClaimName(pod, v) == claim.Name {
			return framework.Queue
		}
	}
	return framework.QueueSkip
}
