package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// podGroup reads a file of a pod's own cgroup on this host, in either version.
func (l *lab) podGroup(pod *corev1.Pod, v1, v2 string) string {
	l.Helper()
	for _, root := range []string{"/sys/fs/cgroup/*/proa-*", "/sys/fs/cgroup/proa-*"} {
		for _, class := range []string{"", "burstable", "besteffort"} {
			for _, name := range []string{v1, v2} {
				found, err := filepath.Glob(filepath.Join(root, "kubepods", class, "pod"+string(pod.UID), name))
				if err != nil {
					l.Fatal(err)
				}
				if len(found) > 0 {
					text, err := os.ReadFile(found[0])
					if err != nil {
						l.Fatal(err)
					}
					return strings.TrimSpace(string(text))
				}
			}
		}
	}
	l.Fatalf("pod %s has no %s or %s", pod.Name, v1, v2)
	return ""
}

// memoryLimit and cpuQuota of the pod's own cgroup, in bytes and in microseconds of 100000.
func (l *lab) memoryLimit(pod *corev1.Pod) string {
	l.Helper()
	return l.podGroup(pod, "memory.limit_in_bytes", "memory.max")
}

func (l *lab) cpuQuota(pod *corev1.Pod) string {
	l.Helper()
	quota, _, _ := strings.Cut(l.podGroup(pod, "cpu.cfs_quota_us", "cpu.max"), " ")
	return quota
}

// Containers share what their pod has as a whole (KEP-2837).
func TestContainersShareThePodsResources(t *testing.T) {
	l := newLab(t)
	busy := func(name string) string { return busybox(name, "while :; do :; done") }
	const shared = "  resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}\n"
	const whole = "  resources: {limits: {cpu: 100m, memory: 32Mi}}\n"
	l.apply(podManifest("p", shared+"  containers: ["+busy("a")+", "+busy("b")+"]") +
		podManifest("guaranteed", whole+"  containers: ["+busybox("c", "sleep 3600")+"]"))
	p := l.ready("p")
	l.is("class", string(p.Status.QOSClass), "Burstable")
	l.is("cpu of the pod", l.cpuQuota(p), "20000")
	l.is("memory of the pod", l.memoryLimit(p), fmt.Sprint(128<<20))
	for _, c := range []string{"a", "b"} {
		l.is("memory of "+c, l.cgroup(c, "memory/memory.limit_in_bytes", "memory.max"), fmt.Sprint(128<<20))
	}
	eventually(t, settle, func() error {
		if stat := l.podGroup(p, "cpu.stat", "cpu.stat"); !strings.Contains(stat, "nr_throttled") || strings.Contains(stat, "nr_throttled 0\n") {
			return fmt.Errorf("two busy containers are not held to the pod's limit: %s", stat)
		}
		return nil
	})
	resize := func(whole string) (string, error) {
		return l.tryKubectl("patch", "pod", "p", "--subresource=resize", "-p", `{"spec":{"resources":`+whole+`}}`)
	}
	if out, err := resize(`{"requests":{"cpu":"150m"},"limits":{"cpu":"300m","memory":"192Mi"}}`); err != nil {
		t.Fatalf("resize of the pod as a whole: %v %s", err, out)
	}
	want := `{"limits":{"cpu":"300m","memory":"192Mi"},"requests":{"cpu":"150m","memory":"64Mi"}} {"cpu":"150m","memory":"64Mi"}`
	eventually(t, settle, func() error {
		if got := l.kubectl("get", "pod", "p", "-o", "jsonpath={.status.resources} {.status.allocatedResources}"); got != want {
			return fmt.Errorf("status: %s, want %s", got, want)
		}
		return nil
	})
	l.is("cpu of the larger pod", l.cpuQuota(p), "30000")
	l.is("memory of the larger pod", l.memoryLimit(p), fmt.Sprint(192<<20))
	if out, err := resize(`{"requests":{"cpu":"1000"},"limits":{"cpu":"1000"}}`); err == nil || !strings.Contains(out, "node didn't have enough allocatable resources: cpu") {
		t.Errorf("more than the node has: %v %s", err, out)
	}
	if after := l.ready("p"); after.Status.ContainerStatuses[0].RestartCount+after.Status.ContainerStatuses[1].RestartCount != 0 {
		t.Errorf("a resize restarted containers: %+v", after.Status.ContainerStatuses)
	}
	g := l.ready("guaranteed")
	l.is("class", string(g.Status.QOSClass), "Guaranteed")
	l.is("cpu of the pod", l.cpuQuota(g), "10000")
	l.is("memory of the pod", l.memoryLimit(g), fmt.Sprint(32<<20))
}

// What a RuntimeClass costs besides the containers counts everywhere (KEP-688).
func TestOverheadCounts(t *testing.T) {
	l := newLab(t)
	class := l.ns + "-heavy"
	l.apply("{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: " + class + "}, handler: runc, overhead: {podFixed: {cpu: 250m, memory: 120Mi}}}\n---\n" +
		"{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {requests.cpu: '1', requests.memory: 1Gi, limits.memory: 1Gi, limits.cpu: '2'}}}\n")
	t.Cleanup(func() { shared.tryKubectl("", "delete", "runtimeclass", class, "--ignore-not-found") })
	l.apply(podManifest("p", "  runtimeClassName: "+class+"\n  containers: ["+
		strings.TrimSuffix(busybox("c", "sleep 3600"), "}")+", resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 100m, memory: 64Mi}}}]"))
	p := l.ready("p")
	l.is("cpu of the pod", l.cpuQuota(p), "35000")
	l.is("memory of the pod", l.memoryLimit(p), fmt.Sprint(184<<20))
	l.is("memory of the container", l.cgroup("c", "memory/memory.limit_in_bytes", "memory.max"), fmt.Sprint(64<<20))
	eventually(t, settle, func() error {
		used := l.kubectl("get", "resourcequota", "q", "-o", "jsonpath={.status.used}")
		for _, want := range []string{`"requests.cpu":"300m"`, `"requests.memory":"152Mi"`, `"limits.cpu":"350m"`, `"limits.memory":"184Mi"`} {
			if !strings.Contains(used, want) {
				return fmt.Errorf("used %s, want %s", used, want)
			}
		}
		return nil
	})
	for line := range strings.Lines(shared.kubectl(t, "describe", "node", p.Spec.NodeName)) {
		if f := strings.Fields(line); len(f) > 8 && f[0] == l.ns {
			l.is("the pod as the node's description has it", strings.Join([]string{f[2], f[4], f[6], f[8]}, " "), "300m 350m 152Mi 184Mi")
			return
		}
	}
	t.Error("the node's description does not have the pod")
}
