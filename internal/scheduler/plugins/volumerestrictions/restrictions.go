// Package volumerestrictions keeps pods apart that cannot use a volume together.
package volumerestrictions

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "VolumeRestrictions"

type Plugin struct {
	handle *framework.Handle
	claims *client.Informer[*corev1.PersistentVolumeClaim]
}

func New(h *framework.Handle) (framework.Plugin, error) {
	return &Plugin{h, client.Shared[*corev1.PersistentVolumeClaim](h.Cache)}, nil
}

func (*Plugin) Name() string { return Name }

// Local but for claims that one pod of all may use.
func (p *Plugin) Local(pod *framework.PodInfo) bool {
	return !slices.ContainsFunc(pod.Claims, func(name string) bool { return p.oncePod(pod.Pod.Namespace, name) })
}

func (p *Plugin) oncePod(namespace, name string) bool {
	claim, ok := p.claims.Cached(namespace, name)
	return ok && slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod)
}

var (
	diskConflict = framework.NewStatus(framework.Unschedulable, "node(s) had no available disk")
	claimInUse   = framework.NewStatus(framework.Unschedulable, "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")
)

// exclusive are the pod's ReadWriteOncePod claims, and how many pods use them.
type exclusive struct {
	claims []string // "namespace/name"
	users  int
}

func (e *exclusive) Clone() framework.StateData { c := *e; return &c }

func (p *Plugin) PreFilter(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	e := &exclusive{}
	for _, name := range pod.Claims {
		if p.oncePod(pod.Pod.Namespace, name) {
			key := pod.Pod.Namespace + "/" + name
			e.claims = append(e.claims, key)
			e.users += p.handle.Snapshot.ClaimUsers[key]
		}
	}
	if len(e.claims) == 0 && !slices.ContainsFunc(pod.Pod.Spec.Volumes, isDisk) {
		return nil, framework.NewStatus(framework.Skip)
	}
	cs.Write(Name, e)
	return nil, nil
}

func (p *Plugin) AddPod(_ context.Context, cs *framework.CycleState, _, added *framework.PodInfo, _ *framework.NodeInfo) *framework.Status {
	count(cs, added, 1)
	return nil
}

func (p *Plugin) RemovePod(_ context.Context, cs *framework.CycleState, _, removed *framework.PodInfo, _ *framework.NodeInfo) *framework.Status {
	count(cs, removed, -1)
	return nil
}

func count(cs *framework.CycleState, other *framework.PodInfo, sign int) {
	e, ok := framework.Read[*exclusive](cs, Name)
	if !ok {
		return
	}
	for _, name := range other.Claims {
		if slices.Contains(e.claims, other.Pod.Namespace+"/"+name) {
			e.users += sign
		}
	}
}

func (p *Plugin) Filter(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	for i := range pod.Pod.Spec.Volumes {
		v := &pod.Pod.Spec.Volumes[i]
		if !isDisk(*v) {
			continue
		}
		for _, other := range node.Pods {
			if slices.ContainsFunc(other.Pod.Spec.Volumes, func(w corev1.Volume) bool { return conflict(v, &w) }) {
				return diskConflict
			}
		}
	}
	if e, ok := framework.Read[*exclusive](cs, Name); ok && e.users > 0 {
		return claimInUse
	}
	return nil
}

func isDisk(v corev1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// conflict tells whether two pods on one node cannot both have these volumes.
func conflict(v, w *corev1.Volume) bool {
	switch {
	case v.GCEPersistentDisk != nil && w.GCEPersistentDisk != nil:
		a, b := v.GCEPersistentDisk, w.GCEPersistentDisk
		return a.PDName == b.PDName && !(a.ReadOnly && b.ReadOnly)
	case v.AWSElasticBlockStore != nil && w.AWSElasticBlockStore != nil:
		return v.AWSElasticBlockStore.VolumeID == w.AWSElasticBlockStore.VolumeID
	case v.ISCSI != nil && w.ISCSI != nil:
		a, b := v.ISCSI, w.ISCSI
		return a.IQN == b.IQN && !(a.ReadOnly && b.ReadOnly)
	case v.RBD != nil && w.RBD != nil:
		a, b := v.RBD, w.RBD
		shared := slices.ContainsFunc(a.CephMonitors, func(m string) bool { return slices.Contains(b.CephMonitors, m) })
		return shared && a.RBDPool == b.RBDPool && a.RBDImage == b.RBDImage && !(a.ReadOnly && b.ReadOnly)
	}
	return false
}

func (p *Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.AssignedPod, framework.Delete, frees),
		hint.On(framework.Node, framework.Add, nil),
		hint.On(framework.Claim, framework.Add|framework.Update, nil),
	}
}

// frees: the pod that is gone had a claim or disk that pod wants.
func frees(pod *corev1.Pod, old, _ any) framework.Hint {
	gone, _ := hint.Pods(old, nil)
	if gone == nil {
		return framework.QueueSkip
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		for j := range gone.Spec.Volumes {
			w := &gone.Spec.Volumes[j]
			if conflict(v, w) || pod.Namespace == gone.Namespace && v.PersistentVolumeClaim != nil && w.PersistentVolumeClaim != nil &&
				v.PersistentVolumeClaim.ClaimName == w.PersistentVolumeClaim.ClaimName {
				return framework.Queue
			}
		}
	}
	return framework.QueueSkip
}
