package cgroups

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func burstable() *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("64Mi")},
	}}}}}
	p.UID = "a-b"
	return p
}

func TestPaths(t *testing.T) {
	best := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
	best.UID = "a-b"
	for _, tt := range []struct {
		config         Config
		pod            *corev1.Pod
		parent, fsPath string
	}{
		{Config{}, burstable(), "/kubepods/burstable/poda-b", "/kubepods/burstable/poda-b"},
		{Config{Root: "/x"}, best, "/x/kubepods/besteffort/poda-b", "/x/kubepods/besteffort/poda-b"},
		{Config{Systemd: true}, burstable(), "kubepods-burstable-poda_b.slice", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice"},
	} {
		tree := New(tt.config)
		if p, f := tree.Parent(tt.pod), tree.Path(tt.pod); p != tt.parent || f != tt.fsPath {
			t.Errorf("parent %s path %s, want %s and %s", p, f, tt.parent, tt.fsPath)
		}
	}
}

func TestPodOfADirectory(t *testing.T) {
	for dir, want := range map[string]string{"poda-b": "a-b", "burstable": "", "cpu.shares": ""} {
		if uid, ok := New(Config{}).uidOf(dir); ok != (want != "") || ok && string(uid) != want {
			t.Errorf("%s: %q %v", dir, uid, ok)
		}
	}
	if uid, ok := New(Config{Systemd: true}).uidOf("kubepods-burstable-poda_b.slice"); !ok || uid != "a-b" {
		t.Errorf("slice: %q %v", uid, ok)
	}
}

func TestLimits(t *testing.T) {
	r := New(Config{PodPids: 100}).limits(burstable())
	if r.CpuShares != 512 || r.CpuQuota != 100_000 || r.Memory != 64<<20 || *r.PidsLimit != 100 {
		t.Errorf("limits %+v", r)
	}
	open := burstable()
	open.Spec.Containers = append(open.Spec.Containers, corev1.Container{})
	if r := New(Config{}).limits(open); r.CpuQuota != -1 || r.Memory != -1 || r.PidsLimit != nil {
		t.Errorf("a pod with an unlimited container is limited: %+v", r)
	}
}

func TestLimitsOfAPodAsAWhole(t *testing.T) {
	pod := burstable()
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{})
	pod.Spec.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), "hugepages-2Mi": resource.MustParse("4Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("128Mi"), "hugepages-2Mi": resource.MustParse("4Mi")},
	}
	pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	r := New(Config{}).limits(pod)
	if r.CpuShares != 1536 || r.CpuQuota != 250_000 || r.Memory != 192<<20 {
		t.Errorf("limits %+v", r)
	}
	if len(r.HugetlbLimit) != 1 || r.HugetlbLimit[0].Pagesize != "2MB" || r.HugetlbLimit[0].Limit != 4<<20 {
		t.Errorf("huge pages %+v", r.HugetlbLimit)
	}
}

func TestStatValue(t *testing.T) {
	const stat = "inactive_file 3\ntotal_inactive_file 4096\nbroken x\n"
	for name, want := range map[string]uint64{"total_inactive_file": 4096, "inactive_file": 3, "broken": 0, "none": 0} {
		if got := statValue(stat, name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}
