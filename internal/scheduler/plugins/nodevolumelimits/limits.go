// Package nodevolumelimits respects how many volumes a CSI driver can attach to a node.
package nodevolumelimits

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "NodeVolumeLimits"

type Plugin struct {
	nodes   *client.Informer[*storagev1.CSINode]
	claims  *client.Informer[*corev1.PersistentVolumeClaim]
	volumes *client.Informer[*corev1.PersistentVolume]
	classes *client.Informer[*storagev1.StorageClass]
}

func New(h *framework.Handle) (framework.Plugin, error) {
	return &Plugin{
		client.Shared[*storagev1.CSINode](h.Cache),
		client.Shared[*corev1.PersistentVolumeClaim](h.Cache),
		client.Shared[*corev1.PersistentVolume](h.Cache),
		client.Shared[*storagev1.StorageClass](h.Cache),
	}, nil
}

func (*Plugin) Name() string { return Name }

func (*Plugin) Local(pod *framework.PodInfo) bool { return !attaches(pod) }

// attaches tells whether a pod has volumes that a driver may attach.
func attaches(pod *framework.PodInfo) bool {
	return len(pod.Claims) > 0 || slices.ContainsFunc(pod.Pod.Spec.Volumes, func(v corev1.Volume) bool { return migratedInline(&v) })
}

var exceeded = framework.NewStatus(framework.Unschedulable, "node(s) exceed max volume count")

// attached identifies a volume of a driver.
type attached struct{ driver, handle string }

func (p *Plugin) PreFilter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	if !attaches(pod) {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, nil
}

// Filter rejects a node where the pod's new volumes would be too many.
func (p *Plugin) Filter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	limits := p.limits(node.Name())
	if len(limits) == 0 {
		return nil
	}
	wanted := map[attached]struct{}{}
	p.collect(pod, wanted)
	used := map[attached]struct{}{}
	for _, other := range node.Pods {
		p.collect(other, used)
	}
	counts := map[string]int32{}
	for v := range used {
		counts[v.driver]++
	}
	grown := map[string]bool{}
	for v := range wanted {
		if _, ok := used[v]; !ok {
			counts[v.driver]++
			grown[v.driver] = true
		}
	}
	for driver := range grown {
		if limit, ok := limits[driver]; ok && counts[driver] > limit {
			return exceeded
		}
	}
	return nil
}

func (p *Plugin) limits(node string) map[string]int32 {
	n, ok := p.nodes.Cached("", node)
	if !ok {
		return nil
	}
	var limits map[string]int32
	for _, d := range n.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			if limits == nil {
				limits = map[string]int32{}
			}
			limits[d.Name] = *d.Allocatable.Count
		}
	}
	return limits
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
