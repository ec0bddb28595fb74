package eviction

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corehelper "k8s.io/component-helpers/scheduling/corev1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// candidate is a pod with its figures; nil figures are unknown.
type candidate struct {
	pod   *corev1.Pod
	stats *statsapi.PodStats
}

// measured are the parts of a pod's disk usage that count against a file system.
type measured struct{ layers, logs, volumes bool }

// on says which parts of a pod lie on the file system that a signal is about.
func (d Disks) on(s Signal) measured {
	switch {
	case !d.Images: // one file system has it all
		return measured{true, true, true}
	case s == NodeFsAvailable || s == NodeFsInodesFree:
		return measured{layers: d.Containers, logs: true, volumes: true}
	case s == ImageFsAvailable || s == ImageFsInodesFree:
		return measured{layers: !d.Containers}
	case d.Containers: // layers lie where the node's files do
		return measured{true, true, true}
	}
	return measured{layers: true}
}

// rank orders pods as they are to be evicted for a threshold: first those that use
// more than they requested, then the less important, then those that use most beyond
// their requests. Of processes nothing can be requested. Pods without figures come
// first.
func rank(pods []candidate, t Threshold, d Disks) {
	of := signals[t.Signal].resource
	usage := func(c candidate) resource.Quantity { return used(c, of, d.on(t.Signal)) }
	exceeds := func(c candidate) bool {
		u := usage(c)
		return u.Cmp(requested(c.pod, of)) > 0
	}
	beyond := func(c candidate) resource.Quantity {
		u, name := usage(c), of
		if of == inodes {
			name = corev1.ResourceEphemeralStorage
		}
		u.Sub(requested(c.pod, name))
		return u
	}
	slices.SortStableFunc(pods, func(a, b candidate) int {
		unknown := a.stats == nil || b.stats == nil
		if of != pids {
			if unknown && (a.stats == nil) != (b.stats == nil) {
				return trueFirst(a.stats == nil, b.stats == nil)
			}
			if !unknown {
				if c := trueFirst(exceeds(a), exceeds(b)); c != 0 {
					return c
				}
			}
		}
		if c := cmp.Compare(corehelper.PodPriority(a.pod), corehelper.PodPriority(b.pod)); c != 0 {
			return c
		}
		if unknown {
			return trueFirst(a.stats == nil, b.stats == nil)
		}
		x, y := beyond(a), beyond(b)
		return y.Cmp(x)
	})
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// used is what a pod with figures uses of a resource.
func used(c candidate, name corev1.ResourceName, parts measured) resource.Quantity {
	switch name {
	case corev1.ResourceMemory:
		if m := c.stats.Memory; m != nil {
			return bytes(m.WorkingSetBytes)
		}
		return bytes(nil)
	case pids:
		if p := c.stats.ProcessStats; p != nil {
			return count(p.ProcessCount)
		}
		return count(nil)
	}
	return diskUsed(c, name, parts)
}

func diskUsed(c candidate, name corev1.ResourceName, parts measured) resource.Quantity {
	sum, figure := bytes(nil), storage
	if name == inodes {
		sum, figure = count(nil), func(fs *statsapi.FsStats) resource.Quantity {
			if fs == nil {
				return count(nil)
			}
			return count(fs.InodesUsed)
		}
	}
	for i := range c.stats.Containers {
		ct := &c.stats.Containers[i]
		if parts.layers {
			sum.Add(figure(ct.Rootfs))
		}
		if parts.logs {
			sum.Add(figure(ct.Logs))
		}
	}
	if !parts.volumes {
		return sum
	}
	for i := range c.stats.VolumeStats {
		if v := &c.stats.VolumeStats[i]; onNode(c.pod, v.Name) {
			sum.Add(figure(&v.FsStats))
		}
	}
	return sum
}

// onNode reports whether a volume takes up the node's own file system.
func onNode(pod *corev1.Pod, volume string) bool {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == volume {
			return v.HostPath != nil || v.ConfigMap != nil || v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory
		}
	}
	return false
}

func storage(fs *statsapi.FsStats) resource.Quantity {
	if fs == nil {
		return bytes(nil)
	}
	return bytes(fs.UsedBytes)
}

func bytes(n *uint64) resource.Quantity { return quantity(n, resource.BinarySI) }
func count(n *uint64) resource.Quantity { return quantity(n, resource.DecimalSI) }

func quantity(n *uint64, format resource.Format) resource.Quantity {
	if n == nil {
		return resource.Quantity{Format: format}
	}
	return *resource.NewQuantity(int64(*n), format)
}

// requested is what a pod asked for of a resource: as a whole where it says so
// (KEP-2837), with its overhead where it asked for anything.
func requested(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	list := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		SkipContainerLevelResources: resourcehelper.IsPodLevelResourcesSet(pod), ExcludeOverhead: true,
	})
	q := list[name].DeepCopy()
	if o, have := pod.Spec.Overhead[name]; have && !q.IsZero() {
		q.Add(o)
	}
	return q
}
