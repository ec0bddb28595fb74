package eviction

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

// number reads a quantity.
func number(text string) *uint64 {
	q := resource.MustParse(text)
	return ptr.To(uint64(q.Value()))
}

// list reads "memory=1Gi ephemeral-storage=1Gi".
func list(text string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return out
}

// pod with one container, c.
func pod(name, requests, limits string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}}}}
	p.Name, p.Namespace, p.UID = name, "ns", types.UID("uid-"+name)
	for _, f := range change {
		f(p)
	}
	return p
}

func priority(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }

// memory is a pod's figures, all of it of its container.
func memory(used string) *statsapi.PodStats {
	m := &statsapi.MemoryStats{WorkingSetBytes: number(used)}
	return &statsapi.PodStats{Memory: m, Containers: []statsapi.ContainerStats{{Name: "c", Memory: m}}}
}

// disk is a pod's figures: writable layer, logs, and its volume v.
func disk(layer, logs, volume string) *statsapi.PodStats {
	fs := func(text string) *statsapi.FsStats {
		return &statsapi.FsStats{UsedBytes: number(text), InodesUsed: number(text)}
	}
	sum := *number(layer) + *number(logs) + *number(volume)
	return &statsapi.PodStats{
		Containers:       []statsapi.ContainerStats{{Name: "c", Rootfs: fs(layer), Logs: fs(logs)}},
		VolumeStats:      []statsapi.VolumeStats{{Name: "v", FsStats: *fs(volume)}},
		EphemeralStorage: &statsapi.FsStats{UsedBytes: &sum},
	}
}

func scratch(limit string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		e := &corev1.EmptyDirVolumeSource{}
		if limit != "" {
			e.SizeLimit = ptr.To(resource.MustParse(limit))
		}
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: e}})
	}
}

func processes(n uint64) *statsapi.PodStats {
	return &statsapi.PodStats{ProcessStats: &statsapi.ProcessStats{ProcessCount: &n}}
}

func TestRank(t *testing.T) {
	for _, tt := range []struct {
		name   string
		signal Signal
		disks  Disks
		pods   []candidate
		want   string
	}{
		{"memory: beyond requests, then priority, then how much beyond", MemoryAvailable, Disks{}, []candidate{
			{pod("within", "memory=2Gi", ""), memory("1Gi")},
			{pod("important", "", "", priority(10)), memory("3Gi")},
			{pod("little", "memory=1Gi", ""), memory("1100Mi")},
			{pod("much", "memory=1Gi", ""), memory("2Gi")},
			{pod("unknown", "memory=9Gi", "", priority(99)), nil},
		}, "unknown much little important within"},
		{"memory: overhead is part of what was requested", MemoryAvailable, Disks{}, []candidate{
			{pod("overhead", "memory=1Gi", "", func(p *corev1.Pod) { p.Spec.Overhead = list("memory=500Mi") }), memory("1400Mi")},
			{pod("plain", "memory=1Gi", ""), memory("1100Mi")},
		}, "plain overhead"},
		{"memory: overhead counts for nothing where nothing was requested", MemoryAvailable, Disks{}, []candidate{
			{pod("plain", "", ""), memory("100Mi")},
			{pod("overhead", "", "", func(p *corev1.Pod) { p.Spec.Overhead = list("memory=500Mi") }), memory("200Mi")},
		}, "overhead plain"},
		{"memory: what a pod requests as a whole counts", MemoryAvailable, Disks{}, []candidate{
			{pod("whole", "memory=1Gi", "", func(p *corev1.Pod) {
				p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("memory=3Gi")}
			}), memory("2Gi")},
			{pod("parts", "memory=1Gi", ""), memory("1200Mi")},
		}, "parts whole"},
		{"disk: layers, logs and volumes of one file system", NodeFsAvailable, Disks{}, []candidate{
			{pod("within", "ephemeral-storage=9Gi", "", scratch("")), disk("1Gi", "1Gi", "1Gi")},
			{pod("layers", "", "", scratch("")), disk("3Gi", "0", "0")},
			{pod("volume", "", "", scratch("")), disk("0", "0", "4Gi")},
		}, "volume layers within"},
		{"disk: what lies with the images does not count for the node", NodeFsAvailable, Disks{Images: true}, []candidate{
			{pod("layers", "", "", scratch("")), disk("9Gi", "0", "0")},
			{pod("logs", "", "", scratch("")), disk("0", "1Gi", "0")},
		}, "logs layers"},
		{"disk: only layers lie with the images", ImageFsAvailable, Disks{Images: true}, []candidate{
			{pod("logs", "", "", scratch("")), disk("0", "9Gi", "9Gi")},
			{pod("layers", "", "", scratch("")), disk("1Gi", "0", "0")},
		}, "layers logs"},
		{"disk: a volume in memory does not count", NodeFsAvailable, Disks{}, []candidate{
			{pod("memory", "", "", scratch(""), func(p *corev1.Pod) { p.Spec.Volumes[0].EmptyDir.Medium = corev1.StorageMediumMemory }), disk("0", "0", "9Gi")},
			{pod("disk", "", "", scratch("")), disk("0", "0", "1Gi")},
		}, "disk memory"},
		{"inodes: by how many", NodeFsInodesFree, Disks{}, []candidate{
			{pod("few", "", ""), disk("1", "2", "0")},
			{pod("many", "", ""), disk("100", "2", "0")},
		}, "many few"},
		{"processes: priority, then how many", PIDAvailable, Disks{}, []candidate{
			{pod("important", "", "", priority(1)), processes(1000)},
			{pod("few", "", ""), processes(3)},
			{pod("many", "", ""), processes(300)},
			{pod("unknown", "", ""), nil},
		}, "unknown many few important"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rank(tt.pods, Threshold{Signal: tt.signal}, tt.disks)
			var got []string
			for _, c := range tt.pods {
				got = append(got, c.pod.Name)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	seen := map[Signal]observation{
		MemoryAvailable: {resource.MustParse("90680Ki"), resource.MustParse("4Gi")},
		NodeFsAvailable: {resource.MustParse("5Gi"), resource.MustParse("100Gi")},
	}
	due := []Threshold{{Signal: MemoryAvailable, Value: Value{Quantity: ptr.To(resource.MustParse("100Mi"))}}, {Signal: NodeFsAvailable, Value: Value{Percentage: 0.5}}}
	side := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "side", Resources: corev1.ResourceRequirements{Requests: list("memory=1Gi")}}}
	}
	both := memory("200Mi")
	both.Containers = append(both.Containers, statsapi.ContainerStats{Name: "debug", Memory: memory("1Gi").Memory}, statsapi.ContainerStats{Name: "side", Memory: memory("2Gi").Memory})
	for _, tt := range []struct {
		name     string
		resource corev1.ResourceName
		c        candidate
		want     string
		notes    string
	}{
		{"memory", corev1.ResourceMemory, candidate{pod("p", "memory=100Mi", "", side), both},
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 90680Ki. Container c was using 200Mi, request is 100Mi, has larger consumption of memory. Container side was using 2Gi, request is 1Gi, has larger consumption of memory. ",
			"map[offending_containers:c,side offending_containers_usage:200Mi,2Gi starved_resource:memory]"},
		{"a pod within its requests", corev1.ResourceMemory, candidate{pod("p", "memory=1Gi", ""), memory("200Mi")},
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 90680Ki. ",
			"map[offending_containers: offending_containers_usage: starved_resource:memory]"},
		{"a pod without requests", corev1.ResourceMemory, candidate{pod("p", "", ""), memory("200Mi")},
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 90680Ki. Container c was using 200Mi, request is 0, has larger consumption of memory. ",
			"map[offending_containers:c offending_containers_usage:200Mi starved_resource:memory]"},
		{"a pod that requests as a whole", corev1.ResourceMemory, candidate{pod("p", "", "", func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("memory=100Mi")}
		}), memory("200Mi")},
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 90680Ki. Pod p was using 200Mi, request is 100Mi, has larger consumption of memory. Container c was using 200Mi, request is 0, has larger consumption of memory. ",
			"map[offending_containers:c offending_containers_usage:200Mi offending_pod:p offending_pod_usage:200Mi starved_resource:memory]"},
		{"disk", corev1.ResourceEphemeralStorage, candidate{pod("p", "ephemeral-storage=1Gi", ""), disk("2Gi", "1Gi", "0")},
			"The node was low on resource: ephemeral-storage. Threshold quantity: 50Gi, available: 5Gi. Container c was using 3Gi, request is 1Gi, has larger consumption of ephemeral-storage. ",
			"map[offending_containers:c offending_containers_usage:3Gi starved_resource:ephemeral-storage]"},
		{"without figures", corev1.ResourceMemory, candidate{pod("p", "", ""), nil},
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 90680Ki. ", "map[]"},
		{"inodes, which nothing observed", inodes, candidate{pod("p", "", ""), disk("1", "1", "1")}, "The node was low on resource: inodes. ",
			"map[offending_containers: offending_containers_usage: starved_resource:inodes]"},
	} {
		got, notes := explain(tt.c, tt.resource, due, seen)
		if got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
		if fmt.Sprint(notes) != tt.notes {
			t.Errorf("%s: %v\nwant %s", tt.name, notes, tt.notes)
		}
	}
}

func TestLimitsOfStorage(t *testing.T) {
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: list("ephemeral-storage=1Gi")}}}
		p.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	}
	for _, tt := range []struct {
		name  string
		pod   *corev1.Pod
		stats *statsapi.PodStats
		disks Disks
		want  string
	}{
		{"no limits", pod("p", "", "", scratch("")), disk("9Gi", "9Gi", "9Gi"), Disks{}, ""},
		{"within all", pod("p", "", "ephemeral-storage=50Mi", scratch("10Mi")), disk("20Mi", "20Mi", "10Mi"), Disks{}, ""},
		{"a volume", pod("p", "", "ephemeral-storage=1Mi", scratch("10Mi")), disk("9Gi", "0", "11Mi"), Disks{}, `Usage of EmptyDir volume "v" exceeds the limit "10Mi". `},
		{"a volume without a limit", pod("p", "", "", scratch("0")), disk("0", "0", "11Mi"), Disks{}, ""},
		{"the pod, by its volume", pod("p", "", "ephemeral-storage=50Mi", scratch("")), disk("20Mi", "0", "31Mi"), Disks{}, "Pod ephemeral local storage usage exceeds the total limit of containers 50Mi. "},
		{"the pod as a whole", pod("p", "", "", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Resources: corev1.ResourceRequirements{Limits: list("ephemeral-storage=5Mi")}})
		}), disk("6Mi", "0", "0"), Disks{}, "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. "},
		{"a container that has less than the pod", pod("p", "", "ephemeral-storage=50Mi", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Resources: corev1.ResourceRequirements{Limits: list("ephemeral-storage=1Gi")}})
		}), disk("40Mi", "11Mi", "0"), Disks{}, `Container c exceeded its local ephemeral storage limit "50Mi". `},
		{"a layer that lies with the images", pod("p", "", "ephemeral-storage=50Mi", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Resources: corev1.ResourceRequirements{Limits: list("ephemeral-storage=1Gi")}})
		}), disk("60Mi", "11Mi", "0"), Disks{Images: true}, ""},
		{"a sidecar", pod("p", "", "ephemeral-storage=50Mi", sidecar), disk("60Mi", "0", "0"), Disks{}, `Container c exceeded its local ephemeral storage limit "50Mi". `},
	} {
		t.Run(tt.name, func(t *testing.T) {
			limit, got := overLimit(tt.pod, tt.stats, tt.disks)
			if got != tt.want || (limit == "") != (got == "") {
				t.Errorf("%s %q\nwant %q", limit, got, tt.want)
			}
			if got != "" && !limitsStorage(tt.pod) {
				t.Error("a pod with this limit would not be measured")
			}
		})
	}
	if limitsStorage(pod("p", "ephemeral-storage=1Gi memory=1Gi", "memory=1Gi", scratch(""))) {
		t.Error("a pod without limits of storage would be measured")
	}
}
