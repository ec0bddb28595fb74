package eviction

import (
	"k8s.io/apimachinery/pkg/api/resource"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// observation is how much of a signal is left, of how much.
type observation struct{ available, capacity resource.Quantity }

// observe reads the signals out of what the node was measured at. What was not
// measured has no observation.
func observe(n *statsapi.NodeStats) map[Signal]observation {
	out := map[Signal]observation{}
	put := func(s Signal, available, capacity *uint64, format resource.Format) {
		if available != nil && capacity != nil {
			out[s] = observation{*resource.NewQuantity(int64(*available), format), *resource.NewQuantity(int64(*capacity), format)}
		}
	}
	memory := func(s Signal, m *statsapi.MemoryStats) {
		if m != nil && m.AvailableBytes != nil && m.WorkingSetBytes != nil {
			total := *m.AvailableBytes + *m.WorkingSetBytes
			put(s, m.AvailableBytes, &total, resource.BinarySI)
		}
	}
	disk := func(bytes, files Signal, fs *statsapi.FsStats) {
		if fs != nil {
			put(bytes, fs.AvailableBytes, fs.CapacityBytes, resource.BinarySI)
			put(files, fs.InodesFree, fs.Inodes, resource.DecimalSI)
		}
	}
	memory(MemoryAvailable, n.Memory)
	for i := range n.SystemContainers {
		if n.SystemContainers[i].Name == statsapi.SystemContainerPods {
			memory(AllocatableMemory, n.SystemContainers[i].Memory)
		}
	}
	disk(NodeFsAvailable, NodeFsInodesFree, n.Fs)
	if rt := n.Runtime; rt != nil {
		disk(ImageFsAvailable, ImageFsInodesFree, rt.ImageFs)
		disk(ContainerFsAvailable, ContainerFsInodesFree, rt.ContainerFs)
	}
	if r := n.Rlimit; r != nil && r.MaxPID != nil && r.NumOfRunningProcesses != nil {
		left, limit := uint64(max(*r.MaxPID-*r.NumOfRunningProcesses, 0)), uint64(*r.MaxPID)
		put(PIDAvailable, &left, &limit, resource.DecimalSI)
	}
	return out
}

// crossed reports whether less is left than a threshold asks for; with reclaim, than
// it asks for once it has been crossed. What was not observed is not crossed.
func (t Threshold) crossed(seen map[Signal]observation, reclaim bool) bool {
	o, ok := seen[t.Signal]
	if !ok {
		return false
	}
	want := t.Value.of(o.capacity)
	if reclaim && t.MinReclaim != nil {
		want.Add(t.MinReclaim.of(o.capacity))
	}
	return want.Cmp(o.available) > 0
}
