// Package nodevolumelimits respects how many volumes a CSI driver can attach to a node.
package nodevolumelimits

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "NodeVolumeLimits"

type Plugin struct {
	snapshot *framework.Snapshot
	nodes    *client.Informer[*storagev1.CSINode]
	claims   *client.Informer[*corev1.PersistentVolumeClaim]
	volumes  *client.Informer[*corev1.PersistentVolume]
	classes  *client.Informer[*storagev1.StorageClass]
	changes  atomic.Int64 // of any of these
}

func New(h *framework.Handle) (framework.Plugin, error) {
	p := &Plugin{
		snapshot: h.Snapshot,
		nodes:    client.Shared[*storagev1.CSINode](h.Cache),
		claims:   client.Shared[*corev1.PersistentVolumeClaim](h.Cache),
		volumes:  client.Shared[*corev1.PersistentVolume](h.Cache),
		classes:  client.Shared[*storagev1.StorageClass](h.Cache),
	}
	p.nodes.OnChange(func(_, _ *storagev1.CSINode) { p.changes.Add(1) })
	p.claims.OnChange(func(_, _ *corev1.PersistentVolumeClaim) { p.changes.Add(1) })
	p.volumes.OnChange(func(_, _ *corev1.PersistentVolume) { p.changes.Add(1) })
	p.classes.OnChange(func(_, _ *storagev1.StorageClass) { p.changes.Add(1) })
	return p, nil
}

func (*Plugin) Name() string { return Name }

// Local for pods whose volumes no pod with a node has: only their number counts.
func (p *Plugin) Local(pod *framework.PodInfo) bool {
	if !attaches(pod) {
		return true
	}
	return pod.Disks == 0 && !slices.ContainsFunc(pod.Claims, func(name string) bool {
		return p.snapshot.ClaimUsers[pod.Pod.Namespace+"/"+name] > 0
	})
}

// Sign says how many volumes of which drivers the pod brings, and that nothing is to
// be remembered when anything changes that volumes are counted by.
func (p *Plugin) Sign(to []byte, pod *framework.PodInfo) []byte {
	if !attaches(pod) {
		return to
	}
	to = binary.AppendVarint(append(to, 'l'), p.changes.Load())
	all := map[attached]struct{}{}
	p.collect(pod, all)
	counts := map[string]int{}
	for v := range all {
		counts[v.driver]++
	}
	for _, driver := range slices.Sorted(maps.Keys(counts)) {
		to = append(binary.AppendUvarint(to, uint64(len(driver))), driver...)
		to = binary.AppendVarint(to, int64(counts[driver]))
	}
	return to
}

// attaches tells whether a pod has volumes that a driver may attach.
func attaches(pod *framework.PodInfo) bool {
	return len(pod.Claims) > 0 || slices.ContainsFunc(pod.Pod.Spec.Volumes, func(v corev1.Volume) bool { return migratedInline(&v) })
}

var exceeded = framework.NewStatus(framework.Unschedulable, "node(s) exceed max volume count")

// attached identifies a volume of a driver.
type attached struct{ driver, handle string }

// wanted are the volumes that the pod brings, by driver.
type wanted map[string]map[attached]struct{}

func (w wanted) Clone() framework.StateData { return w }

func (p *Plugin) PreFilter(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	all := map[attached]struct{}{}
	if attaches(pod) {
		p.collect(pod, all)
	}
	if len(all) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	w := wanted{}
	for v := range all {
		if w[v.driver] == nil {
			w[v.driver] = map[attached]struct{}{}
		}
		w[v.driver][v] = struct{}{}
	}
	cs.Write(Name, w)
	return nil, nil
}

// Filter rejects a node where the pod's new volumes would be too many. The node's
// pods are only looked at when their claims and disks are so many that it may be.
func (p *Plugin) Filter(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	w, _ := framework.Read[wanted](cs, Name)
	n, ok := p.nodes.Cached("", node.Name())
	if !ok || len(w) == 0 {
		return nil
	}
	var used map[attached]struct{}
	for i := range n.Spec.Drivers {
		d := &n.Spec.Drivers[i]
		news := w[d.Name]
		if len(news) == 0 || d.Allocatable == nil || d.Allocatable.Count == nil {
			continue
		}
		limit := int(*d.Allocatable.Count)
		if len(node.Claims)+node.Disks+len(news) <= limit {
			continue
		}
		if used == nil {
			used = p.used(node)
		}
		if tooMany(used, d.Name, news, limit) {
			return exceeded
		}
	}
	return nil
}

func (p *Plugin) used(node *framework.NodeInfo) map[attached]struct{} {
	used := map[attached]struct{}{}
	for _, pod := range node.Pods {
		p.collect(pod, used)
	}
	return used
}

func tooMany(used map[attached]struct{}, driver string, news map[attached]struct{}, limit int) bool {
	count, grown := 0, false
	for v := range used {
		if v.driver == driver {
			count++
		}
	}
	for v := range news {
		if _, ok := used[v]; !ok {
			count++
			grown = true
		}
	}
	return grown && count > limit
}

// collect adds the CSI volumes of a pod, with those of the old plugins that drivers
// have taken over. One still to be provisioned is known by its claim.
func (p *Plugin) collect(pod *framework.PodInfo, into map[attached]struct{}) {
	for i := range pod.Pod.Spec.Volumes {
		if v, ok := ofInline(&pod.Pod.Spec.Volumes[i], pod.Pod.Namespace); ok {
			into[v] = struct{}{}
		}
	}
	for _, name := range pod.Claims {
		claim, ok := p.claims.Cached(pod.Pod.Namespace, name)
		if !ok {
			continue
		}
		if volume, ok := p.volumes.Cached("", claim.Spec.VolumeName); ok && claim.Spec.VolumeName != "" {
			if v, ok := ofVolume(volume); ok {
				into[v] = struct{}{}
			}
			continue
		}
		if class, ok := p.classes.Cached("", storagehelpers.GetPersistentVolumeClaimClass(claim)); ok {
			into[attached{driverOf(class.Provisioner), claim.Namespace + "/" + claim.Name}] = struct{}{}
		}
	}
}

func (p *Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.CSINode, framework.Add|framework.Update, nil),
		hint.On(framework.AssignedPod, framework.Delete, func(_ *corev1.Pod, old, _ any) framework.Hint {
			gone, _ := hint.Pods(old, nil)
			if gone == nil {
				return framework.QueueSkip
			}
			info, _ := framework.NewPodInfo(gone)
			return framework.Hint(attaches(info))
		}),
		hint.On(framework.Claim, framework.Add|framework.Update, nil),
		hint.On(framework.Node, framework.Add, nil),
	}
}
