// Package stats measures the node, its pods and their containers: pods and
// containers as the container runtime counts them, the node from /proc. It keeps
// no history beyond the last reading of the node's CPU.
package stats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubelettypes "k8s.io/kubelet/pkg/types"
	"k8s.io/utils/clock"
)

// Config of a Provider. Runtime, Images, NodeName and RootDir are required.
type Config struct {
	Runtime  runtimeapi.RuntimeServiceClient
	Images   runtimeapi.ImageServiceClient
	NodeName string
	RootDir  string // the kubelet's directory, on the node's file system
	// PodStart returns when the node first saw a pod. Nil: the sandbox's start.
	PodStart func(uid types.UID) (time.Time, bool)
	// Volumes returns the usage of a pod's volumes. Nil: not reported.
	Volumes func(uid types.UID) []statsapi.VolumeStats
	// Local reports whether a volume of a pod takes up the node's own file system.
	// Nil: all without a claim do.
	Local func(uid types.UID, volume string) bool
	// LogDir is where the pods' logs are. Empty: not measured.
	LogDir string
	// PodsMemory measures all pods together. Nil: not reported.
	PodsMemory func() (*statsapi.MemoryStats, error)
	Proc       string             // default /proc
	Clock      clock.PassiveClock // default: the wall clock
}

// Provider of statistics. It is safe for concurrent use.
type Provider struct {
	c Config

	mu    sync.Mutex // guards what follows
	last  cpuReading
	disks *disks // nil before the runtime has told
}

// New returns a Provider.
func New(c Config) *Provider {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return &Provider{c: c}
}

// Summary is what /stats/summary shows. With onlyCPUAndMemory file systems and
// networks are left out.
func (p *Provider) Summary(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error) {
	node, err := p.Node(ctx, onlyCPUAndMemory)
	if err != nil {
		return nil, err
	}
	pods, err := p.Pods(ctx, onlyCPUAndMemory)
	if err != nil {
		return nil, err
	}
	return &statsapi.Summary{Node: *node, Pods: pods}, nil
}

// Pods returns the statistics of all running pods, ordered by namespace and name.
func (p *Provider) Pods(ctx context.Context, onlyCPUAndMemory bool) ([]statsapi.PodStats, error) {
	resp, err := p.c.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod statistics: %w", err)
	}
	started, err := p.starts(ctx)
	if err != nil {
		return nil, err
	}
	return p.podsOf(resp, started, onlyCPUAndMemory), nil
}

// Usage measures pods, all that run if uids is nil, without when they started.
func (p *Provider) Usage(ctx context.Context, uids []types.UID) ([]statsapi.PodStats, error) {
	if uids == nil {
		resp, err := p.c.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
		if err != nil {
			return nil, fmt.Errorf("list pod statistics: %w", err)
		}
		return p.podsOf(resp, nil, false), nil
	}
	var out []statsapi.PodStats
	for _, uid := range uids {
		only := &runtimeapi.PodSandboxStatsFilter{LabelSelector: map[string]string{kubelettypes.KubernetesPodUIDLabel: string(uid)}}
		resp, err := p.c.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{Filter: only})
		if err != nil {
			return nil, fmt.Errorf("statistics of pod %s: %w", uid, err)
		}
		out = append(out, p.podsOf(resp, nil, false)...)
	}
	return out, nil
}

func (p *Provider) podsOf(resp *runtimeapi.ListPodSandboxStatsResponse, started map[string]time.Time, onlyCPUAndMemory bool) []statsapi.PodStats {
	pods := make([]statsapi.PodStats, 0, len(resp.GetStats()))
	for _, s := range resp.GetStats() {
		if s.GetLinux() == nil {
			continue
		}
		pods = append(pods, p.pod(s, started, onlyCPUAndMemory))
	}
	slices.SortFunc(pods, func(a, b statsapi.PodStats) int {
		if c := strings.Compare(a.PodRef.Namespace, b.PodRef.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.PodRef.Name, b.PodRef.Name)
	})
	return pods
}

// starts maps ids of sandboxes and containers to when they were created.
func (p *Provider) starts(ctx context.Context) (map[string]time.Time, error) {
	sandboxes, err := p.c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod sandboxes: %w", err)
	}
	containers, err := p.c.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	out := map[string]time.Time{}
	for _, s := range sandboxes.GetItems() {
		out[s.GetId()] = time.Unix(0, s.GetCreatedAt())
	}
	for _, c := range containers.GetContainers() {
		out[c.GetId()] = time.Unix(0, c.GetCreatedAt())
	}
	return out, nil
}

func (p *Provider) pod(s *runtimeapi.PodSandboxStats, started map[string]time.Time, only bool) statsapi.PodStats {
	meta, linux := s.GetAttributes().GetMetadata(), s.GetLinux()
	out := statsapi.PodStats{
		PodRef:     statsapi.PodReference{Name: meta.GetName(), Namespace: meta.GetNamespace(), UID: meta.GetUid()},
		StartTime:  metav1.NewTime(started[s.GetAttributes().GetId()]),
		Containers: []statsapi.ContainerStats{},
		CPU:        cpu(linux.GetCpu()),
		Memory:     memory(linux.GetMemory()),
	}
	if p.c.PodStart != nil {
		if at, ok := p.c.PodStart(types.UID(meta.GetUid())); ok {
			out.StartTime = metav1.NewTime(at)
		}
	}
	if count := linux.GetProcess().GetProcessCount(); count != nil {
		out.ProcessStats = &statsapi.ProcessStats{ProcessCount: &count.Value}
	}
	swap := &statsapi.SwapStats{}
	for _, c := range linux.GetContainers() {
		stats := container(c, started, only)
		if !only && p.c.LogDir != "" {
			stats.Logs = p.containerLogs(&out.PodRef, stats.Name)
		}
		out.Containers = append(out.Containers, stats)
		addSwap(swap, stats.Swap)
	}
	if swap.SwapUsageBytes != nil {
		out.Swap = swap
	}
	slices.SortFunc(out.Containers, func(a, b statsapi.ContainerStats) int { return strings.Compare(a.Name, b.Name) })
	if only {
		return out
	}
	out.Network = network(linux.GetNetwork())
	if p.c.Volumes != nil {
		out.VolumeStats = p.c.Volumes(types.UID(meta.GetUid()))
	}
	out.EphemeralStorage = p.ephemeral(&out)
	return out
}

func container(c *runtimeapi.ContainerStats, started map[string]time.Time, only bool) statsapi.ContainerStats {
	out := statsapi.ContainerStats{
		Name:      c.GetAttributes().GetMetadata().GetName(),
		StartTime: metav1.NewTime(started[c.GetAttributes().GetId()]),
		CPU:       cpu(c.GetCpu()), Memory: memory(c.GetMemory()), Swap: swapOf(c.GetSwap()),
	}
	if w := c.GetWritableLayer(); w != nil && !only {
		out.Rootfs = &statsapi.FsStats{
			Time: stamp(w.GetTimestamp()), UsedBytes: value(w.GetUsedBytes()), InodesUsed: value(w.GetInodesUsed()),
		}
	}
	return out
}

// ephemeral sums what counts against a pod's ephemeral-storage limit: writable layers,
// logs, volumes on the node's own file system and what the node itself writes.
func (p *Provider) ephemeral(pod *statsapi.PodStats) *statsapi.FsStats {
	uid := types.UID(pod.PodRef.UID)
	bytes, inodes := occupied(filepath.Join(p.c.RootDir, "pods", pod.PodRef.UID, "etc-hosts"))
	add := func(fs *statsapi.FsStats) {
		if fs == nil {
			return
		}
		if fs.UsedBytes != nil {
			bytes += *fs.UsedBytes
		}
		if fs.InodesUsed != nil {
			inodes += *fs.InodesUsed
		}
	}
	var at metav1.Time
	for i := range pod.Containers {
		add(pod.Containers[i].Rootfs)
		add(pod.Containers[i].Logs)
		if pod.Containers[i].Rootfs != nil {
			at = pod.Containers[i].Rootfs.Time
		}
	}
	for i := range pod.VolumeStats {
		v := &pod.VolumeStats[i]
		if v.PVCRef == nil && (p.c.Local == nil || p.c.Local(uid, v.Name)) {
			add(&pod.VolumeStats[i].FsStats)
		}
	}
	return &statsapi.FsStats{Time: at, UsedBytes: &bytes, InodesUsed: &inodes}
}

func cpu(c *runtimeapi.CpuUsage) *statsapi.CPUStats {
	if c == nil {
		return nil
	}
	return &statsapi.CPUStats{
		Time: stamp(c.GetTimestamp()), UsageNanoCores: value(c.GetUsageNanoCores()), UsageCoreNanoSeconds: value(c.GetUsageCoreNanoSeconds()),
	}
}

func memory(m *runtimeapi.MemoryUsage) *statsapi.MemoryStats {
	if m == nil {
		return nil
	}
	return &statsapi.MemoryStats{
		Time: stamp(m.GetTimestamp()), AvailableBytes: value(m.GetAvailableBytes()), UsageBytes: value(m.GetUsageBytes()),
		WorkingSetBytes: value(m.GetWorkingSetBytes()), RSSBytes: value(m.GetRssBytes()),
		PageFaults: value(m.GetPageFaults()), MajorPageFaults: value(m.GetMajorPageFaults()),
	}
}

func swapOf(s *runtimeapi.SwapUsage) *statsapi.SwapStats {
	if s == nil {
		return nil
	}
	return &statsapi.SwapStats{Time: stamp(s.GetTimestamp()), SwapAvailableBytes: value(s.GetSwapAvailableBytes()), SwapUsageBytes: value(s.GetSwapUsageBytes())}
}

func addSwap(sum, s *statsapi.SwapStats) {
	if s == nil || s.SwapUsageBytes == nil {
		return
	}
	total := *s.SwapUsageBytes
	if sum.SwapUsageBytes != nil {
		total += *sum.SwapUsageBytes
	}
	sum.Time, sum.SwapUsageBytes = s.Time, &total
}

func network(n *runtimeapi.NetworkUsage) *statsapi.NetworkStats {
	if n == nil {
		return nil
	}
	of := func(i *runtimeapi.NetworkInterfaceUsage) statsapi.InterfaceStats {
		return statsapi.InterfaceStats{
			Name: i.GetName(), RxBytes: value(i.GetRxBytes()), RxErrors: value(i.GetRxErrors()),
			TxBytes: value(i.GetTxBytes()), TxErrors: value(i.GetTxErrors()),
		}
	}
	out := &statsapi.NetworkStats{Time: stamp(n.GetTimestamp())}
	if i := n.GetDefaultInterface(); i != nil {
		out.InterfaceStats = of(i)
		out.Interfaces = append(out.Interfaces, out.InterfaceStats)
	}
	for _, i := range n.GetInterfaces() {
		out.Interfaces = append(out.Interfaces, of(i))
	}
	return out
}

func value(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.GetValue()
	return &n
}

func stamp(nanos int64) metav1.Time { return metav1.NewTime(time.Unix(0, nanos)) }

func readFile(dir, name string) (string, error) {
	data, err := os.ReadFile(dir + "/" + name)
	return string(data), err
}
