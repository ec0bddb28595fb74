package horizontalpodautoscaler

import (
	"fmt"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// pod has run ready for an hour and requests one CPU for its container.
func pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: now.Add(-time.Hour)},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}},
		},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func pending(p *corev1.Pod)  { p.Status.Phase = corev1.PodPending }
func failed(p *corev1.Pod)   { p.Status.Phase = corev1.PodFailed }
func deleting(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }

// started makes a pod start ago, and be ready or not since readyAgo.
func started(ago, readyAgo time.Duration, ready corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.StartTime = &metav1.Time{Time: now.Add(-ago)}
		p.Status.Conditions[0].Status = ready
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-readyAgo))
	}
}

func TestReplicasFollowUtilization(t *testing.T) {
	tests := []struct {
		name    string
		current int32
		target  int64
		pods    []*corev1.Pod
		used    []int64 // thousandths of a CPU, -1: not measured
		want    int32
		percent int32
	}{
		{"twice the target doubles", 2, 50, []*corev1.Pod{pod("a"), pod("b")}, []int64{1000, 1000}, 4, 100},
		{"half the target halves", 4, 50, []*corev1.Pod{pod("a"), pod("b"), pod("c"), pod("d")}, []int64{250, 250, 250, 250}, 2, 25},
		{"within a tenth nothing changes", 2, 100, []*corev1.Pod{pod("a"), pod("b")}, []int64{1090, 1090}, 2, 109},
		{"a part of a pod is rounded up", 3, 50, []*corev1.Pod{pod("a"), pod("b"), pod("c")}, []int64{600, 600, 600}, 4, 60},
		{"a missing pod counts as idle on the way up", 2, 50, []*corev1.Pod{pod("a"), pod("b")}, []int64{1800, -1}, 4, 180},
		{"a missing pod that would turn the way up around keeps it", 2, 50, []*corev1.Pod{pod("a"), pod("b")}, []int64{800, -1}, 2, 80},
		{"a missing pod counts as full on the way down", 4, 50, []*corev1.Pod{pod("a"), pod("b"), pod("c"), pod("d")}, []int64{100, 100, 100, -1}, 3, 10},
		{"a missing pod counts as the target where that is more than all", 3, 300, []*corev1.Pod{pod("a"), pod("b"), pod("c")}, []int64{300, 300, -1}, 2, 30},
		{"a pending pod counts as idle on the way up", 3, 50, []*corev1.Pod{pod("a"), pod("b"), pod("c", pending)}, []int64{1000, 1000, -1}, 4, 100},
		{"a pending pod does not count on the way down", 3, 50, []*corev1.Pod{pod("a"), pod("b"), pod("c", pending)}, []int64{200, 200, -1}, 1, 20},
		{"failed and deleted pods do not count", 2, 50, []*corev1.Pod{pod("a"), pod("b", failed), pod("c", deleting)}, []int64{1000, 9000, 9000}, 2, 100},
		{"CPU of a pod that starts and is not ready counts as idle", 2, 50, []*corev1.Pod{pod("a"), pod("b", started(time.Minute, time.Minute, corev1.ConditionFalse))}, []int64{1000, 9000}, 2, 100},
		{"CPU of a pod measured before a window of readiness counts as idle", 2, 50, []*corev1.Pod{pod("a"), pod("b", started(time.Minute, 20*time.Second, corev1.ConditionTrue))}, []int64{1000, 9000}, 2, 100},
		{"CPU of a pod that starts and has been ready a window counts", 2, 50, []*corev1.Pod{pod("a"), pod("b", started(2*time.Minute, 90*time.Second, corev1.ConditionTrue))}, []int64{1000, 1000}, 4, 100},
		{"CPU of an old pod that was never ready does not count", 2, 50, []*corev1.Pod{pod("a"), pod("b", started(time.Hour, time.Hour-10*time.Second, corev1.ConditionFalse))}, []int64{250, 9000}, 1, 25},
		{"CPU of an old pod that has become unready counts", 2, 50, []*corev1.Pod{pod("a"), pod("b", started(time.Hour, time.Minute, corev1.ConditionFalse))}, []int64{1000, 1000}, 4, 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sample{current: tt.current, pods: tt.pods, metrics: podMetrics{}, resource: corev1.ResourceCPU, target: tt.target, tolerance: tolerances(nil), now: now}
			for i, n := range tt.used {
				if n >= 0 {
					s.metrics[tt.pods[i].Name] = podMetric{value: n, at: now, window: 30 * time.Second}
				}
			}
			u, err := s.byUtilization()
			if err != nil || u.replicas != tt.want || u.utilization != tt.percent {
				t.Errorf("got %d at %d%%, %v; want %d at %d%%", u.replicas, u.utilization, err, tt.want, tt.percent)
			}
		})
	}
}

func TestUtilizationThatCannotBeComputed(t *testing.T) {
	tests := []struct {
		name      string
		container string
		pods      []*corev1.Pod
		metrics   podMetrics
		want      string
	}{
		{"without pods", "", nil, nil, "no pods returned by selector while calculating replica count"},
		{"without metrics of pods that count", "", []*corev1.Pod{pod("a", pending)}, podMetrics{"a": {value: 1}}, "did not receive metrics for targeted pods (pods might be unready)"},
		{"with metrics of other pods only", "", []*corev1.Pod{pod("a")}, podMetrics{"z": {value: 1}}, "no metrics returned matched known pods"},
		{"without a request", "", []*corev1.Pod{pod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil })}, podMetrics{"a": {value: 1}}, "missing request for cpu in container app of Pod a"},
		{"without the container", "db", []*corev1.Pod{pod("a")}, podMetrics{"a": {value: 1}}, "container db not found in Pod a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sample{current: 1, pods: tt.pods, metrics: tt.metrics, container: tt.container, resource: corev1.ResourceCPU, target: 50, tolerance: tolerances(nil), now: now}
			if _, err := s.byUtilization(); fmt.Sprint(err) != tt.want {
				t.Errorf("\n got %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestRequestsOfAPod(t *testing.T) {
	requests := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
	}
	whole := requests("5")
	always := corev1.ContainerRestartPolicyAlways
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "setup", Resources: requests("9")}, {Name: "proxy", RestartPolicy: &always, Resources: requests("250m")}}
	}
	tests := []struct {
		name      string
		container string
		pod       *corev1.Pod
		want      int64
	}{
		{"sums containers and sidecars, not what runs before", "", pod("a", sidecar), 1250},
		{"is that of one container", "proxy", pod("a", sidecar), 250},
		{"is that of containers when the pod as a whole asks for something else", "", pod("a", func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "asks for nothing"})
		}), 1000},
		{"is that of the pod as a whole", "", pod("a", func(p *corev1.Pod) { p.Spec.Resources = &whole }), 5000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := requestOf(tt.pod, tt.container, corev1.ResourceCPU); err != nil || got != tt.want {
				t.Errorf("got %d, %v; want %d", got, err, tt.want)
			}
		})
	}
}

func TestReplicasFollowAValue(t *testing.T) {
	three := []*corev1.Pod{pod("a"), pod("b"), pod("c")}
	s := func(current int32, target int64) sample {
		return sample{current: current, pods: three, target: target, tolerance: tolerances(nil), now: now}
	}
	total := func(current int32, value, target int64) int32 {
		n, err := s(current, target).byTotal(value)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	share := func(current int32, value, target int64) int32 {
		n, _ := s(current, target).byShare(value)
		return n
	}
	each := s(3, 1000)
	each.metrics = podMetrics{"a": {value: 1000}, "b": {value: 2000}, "c": {value: 3000}}
	average, err := each.byValue()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name      string
		got, want int32
	}{
		{"twice the total doubles the ready pods", total(3, 2000, 1000), 6},
		{"a total near its target changes nothing", total(3, 1050, 1000), 3},
		{"from zero a total gives a pod per target", total(0, 2500, 1000), 3},
		{"nothing to do scales to zero", total(3, 0, 1000), 0},
		{"a share each", share(3, 5000, 1000), 5},
		{"a share near its target changes nothing", share(3, 3100, 1000), 3},
		{"a share from zero", share(0, 1500, 1000), 2},
		{"the average of what pods tell", average.replicas, 6},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

func TestToleranceIsPerDirection(t *testing.T) {
	half, none := resource.MustParse("0.5"), resource.MustParse("0")
	b := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{Tolerance: &none},
		ScaleDown: &autoscalingv2.HPAScalingRules{Tolerance: &half},
	}
	for ratio, want := range map[float64]bool{0.49: false, 0.5: true, 1: true, 1.01: false} {
		if got := tolerances(b).allows(ratio); got != want {
			t.Errorf("%v: %v", ratio, got)
		}
	}
	for ratio, want := range map[float64]bool{0.89: false, 0.91: true, 1.09: true, 1.11: false} {
		if got := tolerances(nil).allows(ratio); got != want {
			t.Errorf("default, %v: %v", ratio, got)
		}
	}
}
