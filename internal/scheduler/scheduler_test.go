package scheduler

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPodGetsANode(t *testing.T) {
	w := newWorld(t)
	create(w, node("a", "1", "1Gi"))
	create(w, pod("p", "500m"))
	if got := w.on("p"); got != "a" {
		t.Errorf("on %q", got)
	}
	w.noted("p Normal Scheduled Binding Successfully assigned default/p to a")
	p, _ := w.pods.Cached("default", "p")
	if c := p.Status.Conditions; len(c) != 1 || c[0].Type != corev1.PodScheduled || c[0].Status != corev1.ConditionTrue {
		t.Errorf("%+v", c)
	}
}

func TestAPodThatFitsNowhereSaysWhy(t *testing.T) {
	w := newWorld(t)
	create(w, node("a", "1", "1Gi"))
	create(w, node("b", "4", "1Gi", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	}))
	w.until("nodes", func() bool { _, ok := w.nodes.Cached("", "b"); return ok })
	create(w, pod("p", "2"))
	c := w.pending("p")
	want := "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). " +
		"preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
	if c.Reason != corev1.PodReasonUnschedulable || c.Message != want {
		t.Errorf("%s: %s\nwant %s", c.Reason, c.Message, want)
	}
	w.noted("p Warning FailedScheduling Scheduling " + want)
	create(w, node("c", "4", "1Gi"))
	if got := w.on("p"); got != "c" {
		t.Errorf("on %q", got)
	}
}

func TestWithoutNodesPodsWaitForTheFirst(t *testing.T) {
	w := newWorld(t)
	create(w, pod("p", "1"))
	if c := w.pending("p"); c.Message != "no nodes available to schedule pods" || c.Reason != corev1.PodReasonUnschedulable {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
	create(w, node("a", "4", "1Gi"))
	w.on("p")
}

func TestGatedPodsWait(t *testing.T) {
	w := newWorld(t)
	create(w, node("a", "4", "1Gi"))
	create(w, pod("p", "1", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x/y"}} }))
	create(w, pod("q", "1"))
	w.on("q")
	p, _ := w.pods.Cached("default", "p")
	if p.Spec.NodeName != "" {
		t.Error("a gated pod was bound")
	}
	p = p.DeepCopy()
	p.Spec.SchedulingGates = nil
	if _, err := w.pods.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.on("p")
}

func priority(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Priority = &n }
}

func TestAnImportantPodDisplacesAnother(t *testing.T) {
	w := newWorld(t)
	create(w, node("a", "1", "1Gi"))
	create(w, pod("low", "1", func(p *corev1.Pod) { p.Finalizers = []string{"test/hold"} }))
	w.on("low")
	create(w, pod("high", "1", priority(100)))
	w.noted("low Normal Preempted Preempting Preempted by pod")
	w.until("victim", func() bool {
		p, ok := w.pods.Cached("default", "low")
		if !ok || p.DeletionTimestamp == nil {
			return false
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonPreemptionByScheduler &&
				c.Message == "default-scheduler: preempting to accommodate a higher priority pod" {
				return true
			}
		}
		return false
	})
	w.until("nomination", func() bool { p, _ := w.pods.Cached("default", "high"); return p.Status.NominatedNodeName == "a" })
	low, _ := w.pods.Cached("default", "low")
	low = low.DeepCopy()
	low.Finalizers = nil
	if _, err := w.pods.Resource.Update(t.Context(), low); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pods.Resource.Delete(t.Context(), "default", "low", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Log(err)
	}
	if got := w.on("high"); got != "a" {
		t.Errorf("on %q", got)
	}
}

func TestPreemptionNeverEvictsForAPoliteNeighbour(t *testing.T) {
	w := newWorld(t)
	create(w, node("a", "1", "1Gi"))
	create(w, pod("low", "1"))
	w.on("low")
	never := corev1.PreemptNever
	create(w, pod("high", "1", priority(100), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never }))
	if c := w.pending("high"); !strings.HasSuffix(c.Message, "preemption: not eligible due to preemptionPolicy=Never.") {
		t.Error(c.Message)
	}
}
