package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// asks are the requests and limits of one container; "" is none.
type asks struct{ cpu, cpuLimit, memory, memoryLimit string }

func (a asks) resources() corev1.ResourceRequirements {
	list := func(cpu, memory string) corev1.ResourceList {
		var l corev1.ResourceList
		for name, quantity := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if quantity != "" {
				if l == nil {
					l = corev1.ResourceList{}
				}
				l[name] = resource.MustParse(quantity)
			}
		}
		return l
	}
	return corev1.ResourceRequirements{Requests: list(a.cpu, a.memory), Limits: list(a.cpuLimit, a.memoryLimit)}
}

// burstable creates a pod p of one container for each of the asks.
func (l *lab) burstable(containers []asks) *corev1.Pod {
	l.Helper()
	grace := int64(1)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace}}
	for i, a := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: fmt.Sprintf("c%d", i+1), Image: "busybox:1.35", Command: []string{"sleep", "3600"}, Resources: a.resources(),
		})
	}
	if _, err := clients().CoreV1().Pods(l.ns).Create(l.Context(), pod, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
	return l.ready("p")
}

// resized waits until the containers have what was asked for, in the status and
// in their cgroups, and wants none of them restarted.
func (l *lab) resized(want []asks) {
	l.Helper()
	l.await("p", "resized", func(p *corev1.Pod) bool {
		if podCondition(p, corev1.PodResizeInProgress) != nil || podCondition(p, corev1.PodResizePending) != nil || p.Status.ObservedGeneration != p.Generation {
			return false
		}
		for i, a := range want {
			s := status(p, fmt.Sprintf("c%d", i+1))
			if s.Resources == nil || !equality.Semantic.DeepEqual(*s.Resources, a.resources()) || !equality.Semantic.DeepEqual(s.AllocatedResources, a.resources().Requests) {
				return false
			}
		}
		return true
	})
	for i, a := range want {
		name := fmt.Sprintf("c%d", i+1)
		r := a.resources()
		if limit, ok := r.Limits[corev1.ResourceMemory]; ok {
			l.is("memory limit of "+name, l.cgroup(name, "memory/memory.limit_in_bytes", "memory.max"), fmt.Sprint(limit.Value()))
		}
		if limit, ok := r.Limits[corev1.ResourceCPU]; ok {
			const period, least = 100_000, 1000 // microseconds
			l.is("cpu quota of "+name, l.cgroup(name, "cpu/cpu.cfs_quota_us", "cpu.max"), fmt.Sprint(max(limit.MilliValue()*period/1000, least)))
		}
		if n := status(l.pod("p"), name).RestartCount; n != 0 {
			l.Errorf("%s was restarted %d times", name, n)
		}
	}
}

// A pod of six containers takes new requests and limits in place, such as were
// there and such as were not.
func TestResizeOfSixContainers(t *testing.T) {
	l := newLab(t)
	before := l.burstable([]asks{{cpu: "20m"}, {memory: "35Mi"}, {cpu: "20m", memory: "35Mi"}, {cpu: "20m"}, {memory: "35Mi"}, {cpu: "20m", cpuLimit: "30m"}})
	want := []asks{
		{cpu: "25m", cpuLimit: "35m"}, {memory: "30Mi", memoryLimit: "50Mi"}, {cpu: "20m", memory: "30Mi"},
		{cpu: "15m", memory: "35Mi"}, {cpu: "20m", memory: "40Mi"}, {cpu: "15m", cpuLimit: "40m"},
	}
	var change corev1.Pod
	for i, a := range want {
		change.Spec.Containers = append(change.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i+1), Resources: a.resources()})
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"containers": change.Spec.Containers}})
	if err != nil {
		t.Fatal(err)
	}
	l.kubectl("patch", "pod", "p", "--subresource=resize", "-p", string(patch))
	l.resized(want)
	after := l.pod("p")
	if before.Status.QOSClass != corev1.PodQOSBurstable || after.Status.QOSClass != corev1.PodQOSBurstable || after.Generation != before.Generation+1 {
		t.Errorf("the pod was %s at generation %d, and is %s at %d", before.Status.QOSClass, before.Generation, after.Status.QOSClass, after.Generation)
	}
}

// Values that are one to the kernel are still told apart.
func TestResizeToTheSame(t *testing.T) {
	l := newLab(t)
	few, fewer := []asks{{cpu: "2m", cpuLimit: "10m"}}, []asks{{cpu: "1m", cpuLimit: "5m"}}
	l.burstable(few)
	l.resized(few)
	for _, want := range [][]asks{fewer, few} {
		patch, err := json.Marshal(want[0].resources())
		if err != nil {
			t.Fatal(err)
		}
		l.kubectl("patch", "pod", "p", "--subresource=resize", "-p", `{"spec":{"containers":[{"name":"c1","resources":`+string(patch)+`}]}}`)
		l.resized(want)
	}
}

// The resize of a pod can be replaced and read, and reads as the pod.
func TestResizeIsReplacedAndRead(t *testing.T) {
	l := newLab(t)
	pod := l.burstable([]asks{{cpu: "20m", memory: "35Mi"}})
	want := []asks{{cpu: "25m", memory: "40Mi"}}
	if pod.Generation != 1 {
		t.Errorf("before, the generation is %d", pod.Generation)
	}
	var updated *corev1.Pod
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		pod := l.pod("p")
		pod.Spec.Containers[0].Resources = want[0].resources()
		updated, err = clients().CoreV1().Pods(l.ns).UpdateResize(t.Context(), "p", pod, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if updated.Generation != 2 || !equality.Semantic.DeepEqual(updated.Spec.Containers[0].Resources, want[0].resources()) {
		t.Errorf("replaced by generation %d, %v", updated.Generation, updated.Spec.Containers[0].Resources)
	}
	l.resized(want)
	eventually(t, settle, func() error { // between two reads the status may change
		read := corev1.Pod{}
		if err := clients().CoreV1().RESTClient().Get().Namespace(l.ns).Resource("pods").Name("p").SubResource("resize").Do(t.Context()).Into(&read); err != nil {
			return err
		}
		if whole := l.pod("p"); !equality.Semantic.DeepEqual(&read, whole) {
			return fmt.Errorf("the resize reads\n%v\nand the pod\n%v", read, whole)
		}
		return nil
	})
	list, err := clients().Discovery().ServerResourcesForGroupVersion("v1")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods/resize" })
	if i < 0 || !slices.Equal(list.APIResources[i].Verbs, metav1.Verbs{"get", "patch", "update"}) {
		t.Errorf("pods/resize is discovered as %v", list.APIResources)
	}
}
