package daemonset_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/daemonset"
)

func start(w *controllertest.World) func() {
	return w.Start(func(c controllers.Config) []controllertest.Runner {
		return []controllertest.Runner{daemonset.New(c)}
	})
}

func agent() *appsv1.DaemonSet {
	app := map[string]string{"app": "agent"}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: app},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
			},
		},
	}
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// runPods places every pod on the node that its affinity names and runs it.
func runPods(w *controllertest.World) {
	w.T.Helper()
	for range 100 {
		for _, pod := range w.Pods("app=agent") {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
				w.Place(pod, terms[0].MatchFields[0].Values[0])
			}
		}
		if !w.RunPods(nil) {
			return
		}
	}
	w.T.Fatal("pods never settle")
}

func onNodes(w *controllertest.World) string {
	found := map[string]int{}
	for _, pod := range w.Pods("app=agent") {
		found[pod.Spec.NodeName+"="+pod.Spec.Containers[0].Image]++
	}
	return fmt.Sprint(found)
}

func TestEveryFittingNodeRunsOnePod(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		tainted := node("c")
		tainted.Spec.Taints = []corev1.Taint{{Key: "special", Effect: corev1.TaintEffectNoSchedule}}
		for _, n := range []*corev1.Node{node("a"), node("b"), tainted} {
			w.Create(n)
		}
		w.Create(agent())
		w.Settle()
		runPods(w)
		if got := onNodes(w); got != "map[a=one:1 b=one:1]" {
			t.Fatalf("pods on %s", got)
		}
		s := controllertest.Get[*appsv1.DaemonSet](w, "agent").Status
		if s.DesiredNumberScheduled != 2 || s.NumberAvailable != 2 || s.UpdatedNumberScheduled != 2 || s.ObservedGeneration != 1 {
			t.Errorf("status %+v", s)
		}
		w.Create(node("d"))
		w.Settle()
		runPods(w)
		if got := onNodes(w); got != "map[a=one:1 b=one:1 d=one:1]" {
			t.Errorf("after a node joined: pods on %s", got)
		}
		if _, err := client.Of[*corev1.Node](w.API).Delete(w.T.Context(), "", "d", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if s := controllertest.Get[*appsv1.DaemonSet](w, "agent").Status; s.DesiredNumberScheduled != 2 {
			t.Errorf("after a node left: desired %d", s.DesiredNumberScheduled)
		}
	})
}

func TestARollingUpdateReplacesPodsOneByOneAndGoesBack(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		for _, name := range []string{"a", "b", "c"} {
			w.Create(node(name))
		}
		w.Create(agent())
		w.Settle()
		runPods(w)
		controllertest.Change(w, "agent", func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Containers[0].Image = "two" })
		w.RunPods(func(*corev1.Pod) bool { return false }) // the old pod goes, the new one waits
		if got := controllertest.Get[*appsv1.DaemonSet](w, "agent").Status.NumberUnavailable; got != 1 {
			t.Errorf("%d pods unavailable in the first step, want 1", got)
		}
		runPods(w)
		if got := onNodes(w); got != "map[a=two:1 b=two:1 c=two:1]" {
			t.Fatalf("pods on %s", got)
		}
		if n := len(controllertest.List[*appsv1.ControllerRevision](w)); n != 2 {
			t.Errorf("%d revisions, want 2", n)
		}
		controllertest.Change(w, "agent", func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Containers[0].Image = "one" })
		runPods(w)
		if got := onNodes(w); got != "map[a=one:1 b=one:1 c=one:1]" {
			t.Fatalf("pods on %s", got)
		}
		revisions := controllertest.List[*appsv1.ControllerRevision](w)
		if len(revisions) != 2 || max(revisions[0].Revision, revisions[1].Revision) != 3 {
			t.Errorf("revisions %v", revisions)
		}
	})
}

func surging() *appsv1.DaemonSet {
	ds := agent()
	ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
		Type: appsv1.RollingUpdateDaemonSetStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDaemonSet{
			MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0)),
		},
	}
	return ds
}

// Who may have two pods on a node does not wait for one that goes.
func TestASurgingSetDoesNotWaitForAPodThatGoes(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(node("a"))
		w.Create(surging())
		w.Settle()
		runPods(w)
		if _, err := client.Of[*corev1.Pod](w.API).Delete(w.T.Context(), controllertest.Namespace, w.Pods("app=agent")[0].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if pods := w.Pods("app=agent"); len(pods) != 2 {
			t.Errorf("%d pods", len(pods))
		}
	})
}

// A node that takes no pods any more gets no new one beside its old one, which goes
// once others make up for it.
func TestASurgingUpdateLeavesNodesThatTakeNoMore(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		for _, name := range []string{"a", "b"} {
			w.Create(node(name))
		}
		w.Create(surging())
		w.Settle()
		runPods(w)
		nodes := client.Of[*corev1.Node](w.API)
		b, err := nodes.Get(w.T.Context(), "", "b")
		if err != nil {
			t.Fatal(err)
		}
		b = b.DeepCopy()
		b.Spec.Taints = []corev1.Taint{{Key: "full", Effect: corev1.TaintEffectNoSchedule}}
		if _, err := nodes.Update(w.T.Context(), b); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if got := onNodes(w); got != "map[a=one:1 b=one:1]" {
			t.Fatalf("pods on %s", got)
		}
		controllertest.Change(w, "agent", func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Containers[0].Image = "two" })
		runPods(w)
		if got := onNodes(w); got != "map[a=two:1]" {
			t.Errorf("pods on %s", got)
		}
	})
}

func TestASurgingUpdateNeverLosesAReadyPod(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(node("a"))
		w.Create(node("b"))
		w.Create(surging())
		w.Settle()
		runPods(w)
		controllertest.Change(w, "agent", func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Containers[0].Image = "two" })
		if n := len(w.Pods("app=agent")); n != 3 {
			t.Errorf("%d pods in the first step, want 3", n)
		}
		if got := controllertest.Get[*appsv1.DaemonSet](w, "agent").Status.NumberAvailable; got != 2 {
			t.Errorf("%d available in the first step, want 2", got)
		}
		runPods(w)
		if got := onNodes(w); got != "map[a=two:1 b=two:1]" {
			t.Errorf("pods on %s", got)
		}
	})
}

func TestAFailedPodIsReplacedWithBackoff(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(node("a"))
		w.Create(agent())
		w.Settle()
		for range 3 {
			runPods(w)
			pod := w.Pods("app=agent")[0]
			w.Report(pod, corev1.PodFailed, false)
			time.Sleep(time.Minute)
			w.RunPods(func(*corev1.Pod) bool { return false }) // let it go
			if now := w.Pods("app=agent"); len(now) != 1 || now[0].UID == pod.UID {
				t.Fatalf("pod not replaced: %v", now)
			}
		}
	})
}
