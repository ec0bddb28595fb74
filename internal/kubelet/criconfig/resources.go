package criconfig

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubectl/pkg/util/qos"
	"k8s.io/utils/ptr"
)

// CPUPeriod is the length of a CFS period, in microseconds.
const CPUPeriod = 100_000

// OOM score adjustments: the kernel kills the highest first.
const (
	oomCritical   = -997
	oomBestEffort = 1000
)

// systemCritical is the priority from which a pod counts as critical to its node.
const systemNodeCritical = 2_000_001_000

// Shares converts milli-CPU to cgroup v1 CPU shares, within the kernel's bounds.
func Shares(milli int64) int64 {
	return min(max(milli*1024/1000, 2), 262144)
}

// Quota converts milli-CPU to microseconds per CPUPeriod; 0 means no limit.
func Quota(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*CPUPeriod/1000, 1000)
}

// Resources are a container's limits as the runtime sets them. A container without a
// limit has that of the pod as a whole, so that what reads its cgroup sees it (KEP-2837).
func Resources(n *Node, pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	req, lim := c.Resources.Requests, limitsOf(pod, c)
	cpu := req.Cpu().MilliValue()
	if _, set := req[corev1.ResourceCPU]; !set {
		cpu = lim.Cpu().MilliValue()
	}
	r := &runtimeapi.LinuxContainerResources{
		CpuShares:          Shares(cpu),
		MemoryLimitInBytes: lim.Memory().Value(),
		OomScoreAdj:        oomScore(n, pod, c),
		HugepageLimits:     hugepages(n, lim),
	}
	if n.EnforceCPUQuota {
		r.CpuPeriod, r.CpuQuota = CPUPeriod, Quota(lim.Cpu().MilliValue())
	}
	// Containers get no swap: memory and swap together are limited to memory.
	r.MemorySwapLimitInBytes = r.MemoryLimitInBytes
	if n.KillTogether {
		r.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return r
}

func limitsOf(pod *corev1.Pod, c *corev1.Container) corev1.ResourceList {
	if !resourcehelper.IsPodLevelResourcesSet(pod) {
		return c.Resources.Limits
	}
	lim := corev1.ResourceList{}
	maps.Copy(lim, pod.Spec.Resources.Limits)
	for name, q := range c.Resources.Limits {
		if _, whole := lim[name]; !whole || !q.IsZero() {
			lim[name] = q
		}
	}
	return lim
}

func hugepages(n *Node, lim corev1.ResourceList) []*runtimeapi.HugepageLimit {
	var out []*runtimeapi.HugepageLimit
	for _, size := range n.HugePageSizes {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: hugepageLimit(lim, size)})
	}
	return out
}

// hugepageLimit finds the limit of hugepages-2Mi for the page size 2MB.
func hugepageLimit(lim corev1.ResourceList, size string) uint64 {
	name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + strings.TrimSuffix(size, "B") + "i")
	if q, ok := lim[name]; ok {
		return uint64(q.Value())
	}
	return 0
}

// PageSize is the size of the huge pages that a resource is about, as runtimes spell
// it: 2MB for hugepages-2Mi.
func PageSize(name corev1.ResourceName) (size string, ok bool) {
	text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	return strings.TrimSuffix(text, "i") + "B", ok
}

// oomScore protects Guaranteed and node-critical pods and orders Burstable ones
// by the share of the node's memory they asked for.
func oomScore(n *Node, pod *corev1.Pod, c *corev1.Container) int64 {
	if pod.Spec.Priority != nil && *pod.Spec.Priority >= systemNodeCritical {
		return oomCritical
	}
	switch qos.GetPodQOS(pod) {
	case corev1.PodQOSGuaranteed:
		return oomCritical
	case corev1.PodQOSBestEffort:
		return oomBestEffort
	}
	share := unclaimed(pod)
	score := burstableScore(n, c, share)
	if isSidecar(c) {
		// A sidecar must not die before the containers it serves.
		for i := range pod.Spec.Containers {
			score = min(score, burstableScore(n, &pod.Spec.Containers[i], share))
		}
	}
	return score
}

// unclaimed is a container's share of the memory that the pod as a whole requests
// beyond what its containers do.
func unclaimed(pod *corev1.Pod) int64 {
	if !resourcehelper.IsPodLevelRequestsSet(pod) || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	claimed := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	rest := pod.Spec.Resources.Requests.Memory().Value() - claimed.Memory().Value()
	return max(rest, 0) / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}

func burstableScore(n *Node, c *corev1.Container, share int64) int64 {
	if n.MemoryCapacity == 0 {
		return oomBestEffort - 1
	}
	score := 1000 - 1000*(c.Resources.Requests.Memory().Value()+share)/n.MemoryCapacity
	return min(max(score, 1000+oomCritical), oomBestEffort-1)
}

func isSidecar(c *corev1.Container) bool {
	return ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
}

// PodTotals are the requests and limits of the whole pod. A limit that some
// container lacks is absent: the pod has none then.
func PodTotals(pod *corev1.Pod) (requests, limits corev1.ResourceList) {
	requests = resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits = resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if pod.Spec.Resources != nil {
			if q, set := pod.Spec.Resources.Limits[name]; set && !q.IsZero() {
				continue
			}
		}
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				if q, set := list[i].Resources.Limits[name]; !set || q.IsZero() {
					delete(limits, name)
				}
			}
		}
	}
	return requests, limits
}

// podResources are what a sandbox is sized by: the pod's resources without its overhead,
// which the runtime is told of besides.
func podResources(pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	opts := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	req, lim := resourcehelper.PodRequests(pod, opts), resourcehelper.PodLimits(pod, opts)
	if _, set := req[corev1.ResourceCPU]; !set {
		req[corev1.ResourceCPU] = *lim.Cpu()
	}
	return linuxResources(req, lim)
}

func overhead(pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	if len(pod.Spec.Overhead) == 0 {
		return &runtimeapi.LinuxContainerResources{}
	}
	return linuxResources(pod.Spec.Overhead, pod.Spec.Overhead)
}

func linuxResources(req, lim corev1.ResourceList) *runtimeapi.LinuxContainerResources {
	value := func(q resource.Quantity) int64 { return q.Value() }
	return &runtimeapi.LinuxContainerResources{
		CpuPeriod: CPUPeriod, CpuShares: Shares(req.Cpu().MilliValue()), CpuQuota: Quota(lim.Cpu().MilliValue()),
		MemoryLimitInBytes: value(*lim.Memory()),
	}
}
