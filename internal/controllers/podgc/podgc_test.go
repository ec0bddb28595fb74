package podgc

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func run(t *testing.T, threshold int, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = w.Registry()
			return []controllertest.Runner{New(c, threshold)}
		})()
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
		test(w)
	})
}

func pod(w *controllertest.World, name, node string, phase corev1.PodPhase) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/hold"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	w.Create(p)
	if phase != corev1.PodPending {
		w.Report(p, phase, false)
	}
}

// going are the pods being deleted at once, with their phases.
func going(w *controllertest.World, d time.Duration) []string {
	time.Sleep(d)
	w.Settle()
	var out []string
	for _, p := range controllertest.List[*corev1.Pod](w) {
		if p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0 {
			out = append(out, p.Name+" "+string(p.Status.Phase))
		}
	}
	return out
}

func want(w *controllertest.World, d time.Duration, pods ...string) {
	w.T.Helper()
	if got := going(w, d); !slices.Equal(got, pods) {
		w.T.Errorf("going: %v, want %v", got, pods)
	}
}

func TestTheOldestEndedPodsGo(t *testing.T) {
	run(t, 2, func(w *controllertest.World) {
		for _, name := range []string{"z-first", "b", "c", "d"} {
			pod(w, name, "node", corev1.PodSucceeded)
			time.Sleep(2 * time.Second)
		}
		pod(w, "running", "node", corev1.PodRunning)
		controllertest.ChangeStatus(w, "d", func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" })
		want(w, period, "d Failed", "z-first Succeeded")
		w.Measured(`pod_gc_collector_force_delete_pods_total{namespace="default",reason="terminated"} 2`)
	})
}

func TestPodsOfAGoneNodeGoAfterTheQuarantine(t *testing.T) {
	run(t, 0, func(w *controllertest.World) {
		pod(w, "here", "node", corev1.PodRunning)
		pod(w, "lost", "gone", corev1.PodRunning)
		pod(w, "done", "gone", corev1.PodSucceeded)
		want(w, quarantine)
		want(w, 2*period, "done Succeeded", "lost Failed")
		w.Measured(`pod_gc_collector_force_delete_pods_total{namespace="default",reason="orphaned"} 4`) // their finalizers hold them, so that each was tried twice
		p := controllertest.Get[*corev1.Pod](w, "lost")
		if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Reason == "DeletionByPodGC" && c.Status == corev1.ConditionTrue
		}) {
			t.Errorf("conditions %+v", p.Status.Conditions)
		}
	})
}

func TestPodsStuckOnANodeOutOfServiceGo(t *testing.T) {
	run(t, 0, func(w *controllertest.World) {
		pod(w, "p", "node", corev1.PodRunning)
		pod(w, "stays", "node", corev1.PodRunning)
		if _, err := w.API.Delete(w.T.Context(), podRef("p"), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want(w, period)
		controllertest.Change(w, "node", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		})
		want(w, period, "p Failed")
	})
}

func TestNothingIsWrittenWhileAllIsWell(t *testing.T) {
	run(t, 0, func(w *controllertest.World) {
		pod(w, "a", "node", corev1.PodRunning)
		pod(w, "b", "", corev1.PodPending)
		pod(w, "c", "node", corev1.PodFailed)
		time.Sleep(time.Hour)
		w.Settle()
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v", got)
		}
	})
}

func podRef(name string) client.Ref {
	return client.Ref{Resource: corev1.SchemeGroupVersion.WithResource("pods"), Namespace: "default", Name: name}
}
