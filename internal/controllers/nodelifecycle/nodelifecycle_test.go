package nodelifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func run(t *testing.T, nodes int, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = w.Registry()
			return []controllertest.Runner{New(c, Periods{})}
		})()
		for i := range nodes {
			name := fmt.Sprint("node", i)
			w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			w.Create(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease}})
			report(w, name, corev1.ConditionTrue)
		}
		w.Settle()
		test(w)
	})
}

func report(w *controllertest.World, name string, ready corev1.ConditionStatus) {
	controllertest.ChangeStatus(w, name, func(node *corev1.Node) {
		node.Status.Conditions = nil
		for _, kind := range watchedConditions {
			s := corev1.ConditionFalse
			if kind == corev1.NodeReady {
				s = ready
			}
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: s, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()})
		}
	})
}

// pass lets time go by in which only the named nodes renew their leases.
func pass(w *controllertest.World, d time.Duration, alive ...string) {
	w.T.Helper()
	const step = 10 * time.Second
	for ; d > 0; d -= step {
		time.Sleep(min(step, d))
		for _, name := range alive {
			patch := map[string]any{"spec": map[string]any{"renewTime": metav1.NowMicro()}}
			if _, err := client.Of[*coordinationv1.Lease](w.API).MergePatch(w.T.Context(), corev1.NamespaceNodeLease, name, patch); err != nil {
				w.T.Fatal(err)
			}
		}
		w.Settle()
	}
}

func taints(w *controllertest.World, name string) string {
	var out []string
	for _, t := range controllertest.Get[*corev1.Node](w, name).Spec.Taints {
		_, key, _ := strings.Cut(t.Key, "/")
		out = append(out, key+":"+string(t.Effect))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (w1 world) want(name, want string) {
	w1.T.Helper()
	if got := taints(w1.World, name); got != want {
		w1.T.Errorf("%s has taints %q, want %q", name, got, want)
	}
}

type world struct{ *controllertest.World }

func TestASilentNodeBecomesUnknown(t *testing.T) {
	run(t, 3, func(w *controllertest.World) {
		w.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "node2", Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
		w.Report(controllertest.Get[*corev1.Pod](w, "p"), corev1.PodRunning, true)
		pass(w, gracePeriod-10*time.Second, "node0", "node1")
		world{w}.want("node2", "")
		w.Writes()
		pass(w, 20*time.Second, "node0", "node1")
		world{w}.want("node2", "unreachable:NoExecute unreachable:NoSchedule")
		world{w}.want("node1", "")
		w.Measured(`node_collector_evictions_total{zone=""} 1`, `node_collector_zone_size{zone=""} 3`,
			`node_collector_unhealthy_nodes_in_zone{zone=""} 1`, `node_collector_zone_health{zone=""} 66.66666666666667`)
		for _, c := range controllertest.Get[*corev1.Node](w, "node2").Status.Conditions {
			if c.Status != corev1.ConditionUnknown || c.Reason != "NodeStatusUnknown" || c.Message != "Kubelet stopped posting node status." {
				t.Errorf("condition %+v", c)
			}
		}
		pod := controllertest.Get[*corev1.Pod](w, "p")
		if c := pod.Status.Conditions[slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })]; c.Status != corev1.ConditionFalse {
			t.Errorf("pod condition %+v", c)
		}
		if got := w.Writes(); got["update nodes/status"] != 1 || got["patch nodes"] != 1 || got["patch pods/status"] != 1 || len(got) != 3 {
			t.Errorf("wrote %v", got)
		}
		for _, want := range []string{"Normal NodeNotReady Node node2 status is now: NodeNotReady", "Warning NodeNotReady Node is not ready"} {
			if !slices.Contains(w.Events(), want) {
				t.Errorf("events %v lack %q", w.Events(), want)
			}
		}
		report(w, "node2", corev1.ConditionTrue)
		world{w}.want("node2", "")
		pass(w, time.Minute, "node0", "node1", "node2")
		w.Writes()
		pass(w, time.Hour, "node0", "node1", "node2")
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v while all nodes are well", got)
		}
	})
}

func TestANodeWithALongLeaseMayBeSilentForLonger(t *testing.T) {
	run(t, 2, func(w *controllertest.World) {
		patch := map[string]any{"spec": map[string]any{"leaseDurationSeconds": 400, "renewTime": metav1.NowMicro()}}
		if _, err := client.Of[*coordinationv1.Lease](w.API).MergePatch(w.T.Context(), corev1.NamespaceNodeLease, "node1", patch); err != nil {
			t.Fatal(err)
		}
		pass(w, 2*gracePeriod, "node0")
		world{w}.want("node1", "")
		pass(w, 360*time.Second, "node0")
		world{w}.want("node1", "unreachable:NoExecute unreachable:NoSchedule")
	})
}

func TestConditionsAndCordonsAreTaints(t *testing.T) {
	run(t, 3, func(w *controllertest.World) {
		report(w, "node0", corev1.ConditionFalse)
		world{w}.want("node0", "not-ready:NoExecute not-ready:NoSchedule")
		report(w, "node0", corev1.ConditionUnknown)
		world{w}.want("node0", "unreachable:NoExecute unreachable:NoSchedule")
		controllertest.Change(w, "node1", func(node *corev1.Node) {
			node.Spec.Unschedulable = true
			node.Spec.Taints = []corev1.Taint{{Key: "mine/own", Effect: corev1.TaintEffectNoSchedule}}
		})
		world{w}.want("node1", "own:NoSchedule unschedulable:NoSchedule")
		controllertest.Change(w, "node1", func(node *corev1.Node) { node.Spec.Unschedulable = false })
		world{w}.want("node1", "own:NoSchedule")
		controllertest.ChangeStatus(w, "node1", func(node *corev1.Node) { condition(node, corev1.NodeDiskPressure).Status = corev1.ConditionTrue })
		world{w}.want("node1", "disk-pressure:NoSchedule own:NoSchedule")
	})
}

func TestNodesOfAZoneAreTaintedOneAfterTheOther(t *testing.T) {
	run(t, 5, func(w *controllertest.World) {
		report(w, "node0", corev1.ConditionFalse)
		report(w, "node1", corev1.ConditionFalse)
		world{w}.want("node0", "not-ready:NoExecute not-ready:NoSchedule")
		world{w}.want("node1", "not-ready:NoSchedule")
		pass(w, normalPause, "node0", "node1", "node2", "node3", "node4")
		world{w}.want("node1", "not-ready:NoExecute not-ready:NoSchedule")
	})
}

func TestNobodyIsEvictedWhenAllNodesAreSilent(t *testing.T) {
	run(t, 3, func(w *controllertest.World) {
		pass(w, time.Hour)
		for i := range 3 {
			world{w}.want(fmt.Sprint("node", i), "unreachable:NoSchedule")
		}
		report(w, "node0", corev1.ConditionTrue)
		pass(w, time.Minute, "node0")
		world{w}.want("node0", "")
	})
}

func TestMuchOfASmallZoneIsLeftAlone(t *testing.T) {
	run(t, 5, func(w *controllertest.World) {
		for i := range 4 {
			report(w, fmt.Sprint("node", i), corev1.ConditionFalse)
		}
		pass(w, time.Hour, "node0", "node1", "node2", "node3", "node4")
		evicting := 0
		for i := range 4 {
			if strings.Contains(taints(w, fmt.Sprint("node", i)), "NoExecute") {
				evicting++
			}
		}
		if evicting != 1 { // the first, before most were down
			t.Errorf("%d nodes have NoExecute taints", evicting)
		}
	})
}
