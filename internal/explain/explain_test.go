package explain

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/apis/explain"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestSchedulingInWords(t *testing.T) {
	fit := func(reason string) []explain.Verdict {
		return []explain.Verdict{{Plugin: "NodeResourcesFit", Reasons: []string{reason}, Preemptable: true}}
	}
	taint := explain.Verdict{Plugin: "TaintToleration", Reasons: []string{"node(s) had untolerated taint(s)"}}
	tests := []struct {
		name string
		in   *explain.Scheduling
		want []string // in order
	}{
		{"the nearest node and what it lacks", &explain.Scheduling{AllNodes: 4, Nodes: []explain.Node{
			{Name: "n1", Verdicts: fit("Insufficient cpu"), Lacks: map[string]string{"cpu": "1500m"}},
			{Name: "n2", Verdicts: append(fit("Insufficient cpu"), taint), Lacks: map[string]string{"cpu": "100m"}},
			{Name: "n3", Verdicts: fit("Insufficient cpu"), Lacks: map[string]string{"cpu": "200m"}},
			{Name: "n4", Verdicts: fit("Insufficient cpu"), Lacks: map[string]string{"cpu": "1m"}, Never: true},
		}, Preemption: &explain.Preemption{Node: "n1", Victims: []string{"default/p7"}}}, []string{
			"It fits on none of 4 nodes.", "It would fit on n3 if 200m CPU were free.", "It would preempt default/p7 on n1.",
			`4 nodes: NodeResourcesFit (n1, n2, n3, n4) says "Insufficient cpu".`, `1 node: TaintToleration (n2) says "node(s) had untolerated taint(s)".`,
		}},
		{"fewer resources are nearer", &explain.Scheduling{AllNodes: 2, Nodes: []explain.Node{
			{Name: "a", Verdicts: fit("x"), Lacks: map[string]string{"cpu": "1m", "memory": "1Mi"}},
			{Name: "b", Verdicts: fit("x"), Lacks: map[string]string{"memory": "1Gi"}},
		}}, []string{"It would fit on b if 1Gi memory were free."}},
		{"nodes that are all too small", &explain.Scheduling{AllNodes: 2, Nodes: []explain.Node{
			{Name: "a", Verdicts: fit("x"), Lacks: map[string]string{"cpu": "9"}, Never: true},
			{Name: "b", Verdicts: fit("x"), Lacks: map[string]string{"cpu": "8"}, Never: true},
		}}, []string{"No node is large enough, not even when it is empty: b lacks 8 CPU."}},
		{"what cannot be preempted", &explain.Scheduling{AllNodes: 1, Preemption: &explain.Preemption{Refused: "not eligible due to preemptionPolicy=Never."}}, []string{
			"It cannot preempt other pods: not eligible due to preemptionPolicy=Never.",
		}},
		{"a pod that will get a node", &explain.Scheduling{AllNodes: 9, Fits: []string{"a", "b", "c", "d", "e", "f"}}, []string{"It fits on a, b, c, d, e and 1 other now."}},
		{"an empty cluster", &explain.Scheduling{}, []string{"It has no node: the cluster has none."}},
		{"a rejection before any node", &explain.Scheduling{AllNodes: 1, PreFilter: `persistentvolumeclaim "x" not found`}, []string{
			`No node comes into question: persistentvolumeclaim "x" not found.`,
		}},
		{"gates", &explain.Scheduling{AllNodes: 1, GatedBy: "SchedulingGates"}, []string{"It is not scheduled before its gates are removed: example.com/a."}},
		{"another scheduler", nil, []string{`It has no node: it waits for a scheduler named "mine", which is not part of this server.`}},
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "mine", SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/a"}}}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := slices.DeleteFunc(schedulingSentences(pod, tt.in), func(s string) bool { return s == "" })
			at := -1
			for _, want := range tt.want {
				i := slices.Index(got, want)
				if i <= at {
					t.Fatalf("no %q, or not in order, in\n%s", want, strings.Join(got, "\n"))
				}
				at = i
			}
		})
	}
}

func TestPodsWithANodeInWords(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		w.Create(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("9")}}})
		make := func(name, node string, change func(*corev1.Pod)) {
			w.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/f"}}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
			controllertest.ChangeStatus(w, name, change)
		}
		container := func(c corev1.ContainerStatus) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				c.Name, c.Image = "c", "i"
				p.Status.Phase, p.Status.ContainerStatuses = corev1.PodRunning, []corev1.ContainerStatus{c}
			}
		}
		make("crashes", "n", container(corev1.ContainerStatus{
			RestartCount: 3, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}},
		}))
		make("pulls", "n", container(corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}}}))
		make("unready", "n", container(corev1.ContainerStatus{Started: ptr.To(false), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}))
		make("lost", "gone", container(corev1.ContainerStatus{}))
		make("waits", "", func(*corev1.Pod) {})
		make("leaves", "n", func(*corev1.Pod) {})
		make("runs", "n", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodRunning
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		})
		controllertest.Delete[*corev1.Pod](w, "leaves")
		var s *Source
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			s = New(Config{Cache: c.Cache, Scheduling: func(context.Context, *corev1.Pod) (*explain.Scheduling, error) {
				return &explain.Scheduling{AllNodes: 1}, nil
			}})
			return nil
		})()
		time.Sleep(time.Hour)
		for name, want := range map[string]string{
			"crashes": "Container c crashes: it was restarted 3 times; the last time it ended with exit code 137 (OOMKilled).",
			"pulls":   "Container c (i) waits: ErrImagePull: no such image.",
			"unready": "Container c runs since 0001-01-01T00:00:00Z and is not ready: its startup probe has not succeeded.",
			"lost":    "Its node gone does not exist.",
			"waits":   "Quota q is not the cause: it has let the pod in.",
			"leaves":  "It cannot go before its finalizers are removed: example.com/f.",
			"runs":    "It runs on n and is ready.",
		} {
			got, err := s.Get(controllertest.Namespace, name)
			if err != nil {
				t.Fatal(err)
			}
			if e := got.(*explain.PodExplanation); !slices.Contains(e.Sentences, want) || e.Summary != e.Sentences[0] {
				t.Errorf("%s: no %q in\n%s", name, want, strings.Join(e.Sentences, "\n"))
			}
		}
		if all := s.List(""); len(all) != 6 { // all but the one that runs
			t.Errorf("%d explanations", len(all))
		}
		if _, err := s.Get(controllertest.Namespace, "nobody"); err == nil {
			t.Error("a pod that is not there is explained")
		}
	})
}
