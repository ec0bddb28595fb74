package tainteviction

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func pod(w *controllertest.World, name string, seconds ...int64) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64(0)),
	}}
	for _, s := range seconds {
		toleration := corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
		if s >= 0 {
			toleration.TolerationSeconds = &s
		}
		p.Spec.Tolerations = append(p.Spec.Tolerations, toleration)
	}
	w.Create(p)
}

// left are the pods that are not gone, after some more time.
func left(w *controllertest.World, d time.Duration) []string {
	time.Sleep(d)
	w.Settle()
	var names []string
	for _, p := range controllertest.List[*corev1.Pod](w) {
		if p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	return names
}

func taint(w *controllertest.World, keys ...string) {
	controllertest.Change(w, "node", func(node *corev1.Node) {
		node.Spec.Taints = nil
		for _, key := range keys {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		}
	})
}

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = w.Registry()
			return []controllertest.Runner{New(c)}
		})()
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
		test(w)
	})
}

func want(w *controllertest.World, d time.Duration, names ...string) {
	w.T.Helper()
	if got := left(w, d); !slices.Equal(got, names) {
		w.T.Errorf("left %v, want %v", got, names)
	}
}

func TestPodsStayAsLongAsTheyTolerate(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "forever", -1)
		pod(w, "never")
		pod(w, "shortest", 30, 10)
		pod(w, "some", 30)
		w.Settle()
		taint(w, "k")
		want(w, 0, "forever", "shortest", "some")
		want(w, 9*time.Second, "forever", "shortest", "some")
		want(w, 2*time.Second, "forever", "some")
		want(w, 20*time.Second, "forever")
		pod(w, "late", 10)
		want(w, 9*time.Second, "forever", "late")
		want(w, 2*time.Second, "forever")
		taint(w, "k", "another")
		want(w, 0)
	})
}

func TestATaintThatGoesInTimeCancels(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "p", 30)
		w.Settle()
		taint(w, "k")
		want(w, 20*time.Second, "p")
		taint(w)
		want(w, time.Hour, "p")
		if want := "Normal TaintManagerEviction Cancelling deletion of Pod default/p"; !slices.Contains(w.Events(), want) {
			t.Errorf("events %v lack %q", w.Events(), want)
		}
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v", got)
		}
		taint(w, "k")
		want(w, 29*time.Second, "p")
		want(w, 2*time.Second)
	})
}

func TestAnEvictedPodSaysWhy(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Finalizers: []string{"example.com/hold"}}, Spec: corev1.PodSpec{
			NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}})
		w.Settle()
		taint(w, "k")
		p := controllertest.Get[*corev1.Pod](w, "p")
		i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
		if p.DeletionTimestamp == nil || i < 0 || p.Status.Conditions[i].Reason != "DeletionByTaintManager" {
			t.Errorf("pod %+v", p)
		}
	})
}

func TestEvictionsAreMeasured(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "now")
		pod(w, "later", 30)
		taint(w, "k")
		left(w, time.Minute)
		w.Measured("taint_eviction_controller_pod_deletions_total 2", "taint_eviction_controller_pod_deletion_duration_seconds_count 2",
			`taint_eviction_controller_pod_deletion_duration_seconds_bucket{le="0.005"} 2`)
	})
}
