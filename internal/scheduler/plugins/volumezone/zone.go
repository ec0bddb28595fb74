// Package volumezone keeps pods in the zones that their bound volumes' labels name.
package volumezone

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "VolumeZone"

type Plugin struct {
	claims  *client.Informer[*corev1.PersistentVolumeClaim]
	volumes *client.Informer[*corev1.PersistentVolume]
}

func New(h *framework.Handle) (framework.Plugin, error) {
	return &Plugin{client.Shared[*corev1.PersistentVolumeClaim](h.Cache), client.Shared[*corev1.PersistentVolume](h.Cache)}, nil
}

func (*Plugin) Name() string { return Name }

func (*Plugin) Local(*framework.PodInfo) bool { return true }

// Sign says where the pod's volumes are.
func (p *Plugin) Sign(to []byte, pod *framework.PodInfo) []byte {
	for _, z := range p.zonesOf(pod) {
		to = binary.AppendUvarint(append(to, 'z'), uint64(len(z.values)))
		for _, text := range append([]string{z.key}, z.values...) {
			to = append(binary.AppendUvarint(to, uint64(len(text))), text...)
		}
	}
	return to
}

var elsewhere = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) had no available volume zone")

// stable gives the current name of each topology label.
var stable = map[string]string{
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	corev1.LabelTopologyZone:            corev1.LabelTopologyZone,
	corev1.LabelTopologyRegion:          corev1.LabelTopologyRegion,
}

var topologyLabels = slices.Sorted(maps.Keys(stable))

// zones are the topology labels of the pod's volumes.
type zones []zone

type zone struct {
	key    string // stable name
	values []string
}

func (z zones) Clone() framework.StateData { return z }

// zoneSeparator joins the values of a volume that is in several zones.
const zoneSeparator = "__"

func (p *Plugin) PreFilter(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	found := p.zonesOf(pod)
	if len(found) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	cs.Write(Name, found)
	return nil, nil
}

// zonesOf are the topology labels of a pod's volumes, in a fixed order.
func (p *Plugin) zonesOf(pod *framework.PodInfo) zones {
	var found zones
	for _, name := range pod.Claims {
		claim, ok := p.claims.Cached(pod.Pod.Namespace, name)
		if !ok || claim.Spec.VolumeName == "" {
			continue // VolumeBinding's to judge
		}
		volume, ok := p.volumes.Cached("", claim.Spec.VolumeName)
		if !ok {
			continue
		}
		for _, label := range topologyLabels {
			if value, ok := volume.Labels[label]; ok {
				found = append(found, zone{stable[label], strings.Split(value, zoneSeparator)})
			}
		}
	}
	return found
}

// Filter accepts a node without any topology label: the cluster has no zones.
func (p *Plugin) Filter(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	wanted, _ := framework.Read[zones](cs, Name)
	has := map[string]string{}
	for label, key := range stable {
		if value, ok := node.Node.Labels[label]; ok {
			has[key] = value
		}
	}
	if len(has) == 0 {
		return nil
	}
	for _, z := range wanted {
		if value, ok := has[z.key]; !ok || !slices.Contains(z.values, value) {
			return elsewhere
		}
	}
	return nil
}

func (p *Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.StorageClass, framework.Add, nil),
		hint.On(framework.Node, framework.Add|framework.UpdateNodeLabel, nil),
		hint.On(framework.Claim, framework.Add|framework.Update, nil),
		hint.On(framework.Volume, framework.Add|framework.Update, nil),
	}
}
