package scheduler

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
	"proa/internal/store/pebble"
)

// Shapes as in upstream's scheduler_perf: all pods wait when the scheduler starts.
func BenchmarkScheduling(b *testing.B) {
	for _, shape := range []struct {
		name        string
		nodes, pods int
		change      func(i int, p *corev1.Pod)
	}{
		{"basic", 5000, 10000, func(int, *corev1.Pod) {}},
		{"templates-64", 5000, 10000, func(i int, p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(10+i%64), resource.DecimalSI)
		}},
		{"spread", 5000, 5000, spread(corev1.DoNotSchedule)},
		{"prefer-spread", 5000, 5000, spread(corev1.ScheduleAnyway)},
		{"affinity", 5000, 5000, affinity(false)},
		{"anti-affinity", 5000, 2000, affinity(true)},
		{"node-affinity", 5000, 10000, func(_ int, p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "zone-1"}
		}},
		{"unschedulable", 5000, 5000, func(_ int, p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("100")
		}},
	} {
		b.Run(shape.name, func(b *testing.B) {
			benchmark(b, func() store.Engine { return memory.New() }, false, shape.nodes, shape.pods, shape.change)
		})
	}
	for name, withEvents := range map[string]bool{"basic-durable": false, "basic-durable-with-events": true} {
		b.Run(name, func(b *testing.B) {
			benchmark(b, func() store.Engine {
				e, err := pebble.Open(pebble.Config{Dir: b.TempDir()})
				if err != nil {
					b.Fatal(err)
				}
				return e
			}, withEvents, 5000, 10000, func(int, *corev1.Pod) {})
		})
	}
}

func spread(action corev1.UnsatisfiableConstraintAction) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 5, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: action,
			LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		}}
	}
}

func affinity(anti bool) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		key := corev1.LabelTopologyZone
		if anti {
			key = corev1.LabelHostname
		}
		terms := []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}, TopologyKey: key}}
		p.Spec.Affinity = &corev1.Affinity{}
		if anti {
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
		} else {
			p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
		}
	}
}

func benchmark(b *testing.B, engine func() store.Engine, withEvents bool, nodes, pods int, change func(int, *corev1.Pod)) {
	for b.Loop() {
		b.StopTimer()
		api := newServer(b, engine())
		fill(b, nodes, func(i int) client.Object {
			return node(fmt.Sprintf("node-%d", i), "32", "128Gi", label(corev1.LabelTopologyZone, fmt.Sprintf("zone-%d", i%10)))
		}, api)
		fill(b, pods, func(i int) client.Object {
			p := pod(fmt.Sprintf("pod-%d", i), "10m")
			change(i, p)
			return p
		}, api)
		b.StartTimer()
		begin, busy := time.Now(), cpuTime(b)
		var decided sync.WaitGroup
		decided.Add(pods)
		w := start(b, api, func(c *Config) {
			seen := map[string]bool{} // handlers run one at a time
			client.Shared[*corev1.Pod](c.Cache).OnChange(func(_, p *corev1.Pod) {
				if p != nil && !seen[p.Name] && (p.Spec.NodeName != "" || len(p.Status.Conditions) > 0) {
					seen[p.Name] = true
					decided.Done()
				}
			})
			c.Recorder = nil
			if !withEvents {
				c.Recorder = func(string) events.EventRecorder { return quiet{} }
			}
		})
		decided.Wait()
		b.ReportMetric(float64(pods)/time.Since(begin).Seconds(), "pods/s")
		b.ReportMetric(float64((cpuTime(b)-busy).Microseconds())/float64(pods), "cpu-us/pod")
		w.stop()
	}
}

// cpuTime is what this process has used: the fairer figure on a shared machine.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type quiet struct{ events.EventRecorder }

func (quiet) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}

// fill creates n objects from a few goroutines.
func fill(b *testing.B, n int, make func(i int) client.Object, api client.API) {
	const workers = 16
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for i := worker; i < n; i += workers {
				var err error
				switch o := make(i).(type) {
				case *corev1.Node:
					_, err = client.Of[*corev1.Node](api).Create(b.Context(), o)
				case *corev1.Pod:
					_, err = client.Of[*corev1.Pod](api).Create(b.Context(), o)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
