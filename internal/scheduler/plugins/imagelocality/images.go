// Package imagelocality prefers nodes that have the pod's images already.
package imagelocality

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/framework"
)

const Name = "ImageLocality"

// Sizes between which the score grows, in bytes; the upper one is per container.
const (
	smallest     int64 = 23 << 20
	perContainer int64 = 1000 << 20
)

type Plugin struct{ handle *framework.Handle }

func New(h *framework.Handle) (framework.Plugin, error) { return &Plugin{h}, nil }

func (*Plugin) Name() string { return Name }

func (*Plugin) Local(*framework.PodInfo) bool { return true }

// PreScore skips when no node has any of the images.
func (p *Plugin) PreScore(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	for image := range images(pod.Pod) {
		if p.handle.Snapshot.ImageNodes[image] > 0 {
			return nil
		}
	}
	return framework.NewStatus(framework.Skip)
}

func images(pod *corev1.Pod) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(framework.ImageName(list[i].Image)) {
					return
				}
			}
		}
	}
}

// Score sums the sizes of the images that are there. An image counts by the share
// of nodes that have it, so that one which is on a single node does not draw all
// its pods there.
func (p *Plugin) Score(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	snapshot := p.handle.Snapshot
	var sum int64
	for image := range images(pod.Pod) {
		if size, ok := node.Images[image]; ok {
			sum += int64(float64(size) * float64(snapshot.ImageNodes[image]) / float64(len(snapshot.Nodes)))
		}
	}
	containers := int64(len(pod.Pod.Spec.Containers) + len(pod.Pod.Spec.InitContainers))
	largest := perContainer * containers
	sum = min(max(sum, smallest), largest)
	return framework.MaxNodeScore * (sum - smallest) / (largest - smallest), nil
}

func (*Plugin) EventsToRegister() []framework.HintedEvent { return nil }
