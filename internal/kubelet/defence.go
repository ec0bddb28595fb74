package kubelet

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/config"
	"proa/internal/kubelet/eviction"
	"proa/internal/kubelet/node"
	"proa/internal/kubelet/stats"
)

// podsEnforced is the entry of enforceNodeAllocatable that holds all pods together to what
// the node may give them.
const podsEnforced = "pods"

// defence is what keeps pods from taking all of the node.
type defence struct {
	thresholds []eviction.Threshold
	keptFree   corev1.ResourceList // by hard thresholds
	podLimit   corev1.ResourceList // for all pods together
}

// newDefence reads what the configuration says of it. Where local storage is not counted
// the machine has none.
func newDefence(c *config.Configuration, m *node.Machine, reserved corev1.ResourceList) (*defence, error) {
	if !*c.LocalStorageCapacityIsolation {
		m.Disk = 0
	}
	limited := *c.CgroupsPerQOS && slices.Contains(c.EnforceNodeAllocatable, podsEnforced)
	thresholds, err := eviction.Parse(eviction.Settings{
		Hard: c.EvictionHard, Soft: c.EvictionSoft, SoftGracePeriod: c.EvictionSoftGracePeriod,
		MinimumReclaim: c.EvictionMinimumReclaim, PodsLimited: limited,
	})
	if err != nil {
		return nil, err
	}
	capacity := m.Capacity(config.Pods(c, m.CPUs))
	d := &defence{thresholds: thresholds, keptFree: eviction.Reserved(thresholds, capacity), podLimit: capacity}
	if limited {
		d.podLimit = node.Without(capacity, reserved)
	}
	return d, nil
}

// assembleDefence makes what measures the node and what evicts pods from it.
func (k *Kubelet) assembleDefence(p *parts, d *defence, recorder record.EventRecorder) {
	c, conf := &k.c, k.c.Configuration
	p.stats = stats.New(stats.Config{
		Runtime: p.runtime, Images: p.runtime.Images, NodeName: c.NodeName, RootDir: c.RootDir, LogDir: conf.PodLogsDir, Clock: c.Clock,
		Volumes: p.volumes.Usage, Local: p.volumes.OnNode, PodStart: p.podStart, PodsMemory: p.podsMemory(c.Clock.Now),
	})
	p.eviction = eviction.New(eviction.Config{
		Thresholds: d.thresholds, Transition: conf.EvictionPressureTransitionPeriod.Duration,
		MaxPodGrace: int64(conf.EvictionMaxPodGracePeriod), LimitStorage: *conf.LocalStorageCapacityIsolation,
		Node: p.stats.Scarce, Usage: p.stats.Usage,
		Disks: func(ctx context.Context) (out eviction.Disks, err error) {
			out.Images, out.Containers, err = p.stats.Dedicated(ctx)
			return out, err
		},
		Pods: p.workers.Active,
		Static: func(pod *corev1.Pod) bool {
			_, static := p.static.Mirror(pod)
			return static
		},
		Evict: p.workers.Evict, ClearContainers: p.workers.ClearEnded, ClearImages: p.collector.RemoveUnused,
		Changed: p.node.Changed, Recorder: recorder, NodeRef: p.node.Reference(), Clock: c.Clock, Log: c.Log,
	})
}

// pressures are the node's, none before anything watches over it.
func (p *parts) pressures() []corev1.NodeConditionType {
	if p.eviction == nil {
		return nil
	}
	return p.eviction.Conditions()
}

// podsMemory measures all pods together, nil where they have no group of their own.
func (p *parts) podsMemory(now func() time.Time) func() (*statsapi.MemoryStats, error) {
	if p.cgroups == nil {
		return nil
	}
	return func() (*statsapi.MemoryStats, error) {
		m, err := p.cgroups.Memory()
		if err != nil {
			return nil, err
		}
		out := &statsapi.MemoryStats{Time: metav1.NewTime(now()), UsageBytes: &m.Usage, WorkingSetBytes: &m.WorkingSet}
		if m.Limit > 0 {
			out.AvailableBytes = ptr.To(m.Limit - min(m.Limit, m.WorkingSet))
		}
		return out, nil
	}
}
