package scheduler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis/explain"
)

func explained(w *world, p *corev1.Pod) *explain.Scheduling {
	w.t.Helper()
	e, err := w.s.Explain(w.t.Context(), p)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func TestEveryPluginIsAskedWhyAPodHasNoNode(t *testing.T) {
	w := newWorld(t)
	create(w, node("full", "1", "1Gi"))
	create(w, node("other", "4", "8Gi", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
	}))
	create(w, node("small", "500m", "1Gi", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
	}))
	create(w, pod("low", "800m"))
	w.on("low")
	stuck := create(w, pod("stuck", "700m"))
	w.pending("stuck")
	e := explained(w, stuck)
	got := ""
	for _, n := range e.Nodes {
		got += n.Name
		for _, v := range n.Verdicts {
			got += fmt.Sprintf(" %s(%v)", v.Plugin, v.Preemptable)
		}
		got += fmt.Sprintf(" %v %v; ", n.Lacks, n.Never)
	}
	for _, want := range []string{
		"full NodeResourcesFit(true) map[cpu:500m] false;",
		"other TaintToleration(false) map[] false;",
		"small TaintToleration(false) NodeResourcesFit(false) map[cpu:200m] true;",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if e.Last == nil || e.Last.Attempts != 1 || !strings.HasPrefix(e.Last.Message, "0/3 nodes are available") || e.Queue != "unschedulable" ||
		len(e.Fits) != 0 || e.Preemption == nil || !strings.Contains(e.Preemption.Refused, "No preemption victims found") {
		t.Errorf("%+v", e)
	}
}

func TestAnExplanationNamesTheVictimsAndTouchesNone(t *testing.T) {
	w := newWorld(t)
	create(w, node("n", "1", "1Gi"))
	create(w, pod("low", "800m"))
	w.on("low")
	polite := corev1.PreemptLowerPriority
	hypothetical := pod("high", "700m", func(p *corev1.Pod) {
		p.UID, p.Spec.SchedulerName = "u", DefaultName
		p.Spec.Priority, p.Spec.PreemptionPolicy = new(int32), &polite
		*p.Spec.Priority = 10
	})
	e := explained(w, hypothetical)
	if e.Preemption == nil || e.Preemption.Node != "n" || fmt.Sprint(e.Preemption.Victims) != "[default/low]" || e.Last != nil {
		t.Errorf("%+v %+v", e, e.Preemption)
	}
	if low, _ := w.pods.Cached("default", "low"); low.DeletionTimestamp != nil {
		t.Error("the victim is deleted")
	}
	fits := pod("fits", "100m", func(p *corev1.Pod) { p.UID, p.Spec.SchedulerName = "v", DefaultName })
	if e := explained(w, fits); fmt.Sprint(e.Fits) != "[n]" || e.Preemption != nil {
		t.Errorf("%+v", e)
	}
}

func TestMetricsHaveUpstreamsNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	w := newWorld(t, func(c *Config) { c.Metrics = registry })
	create(w, node("n", "1", "1Gi"))
	create(w, pod("a", "800m"))
	w.on("a")
	w.noted("a Normal Scheduled")
	create(w, pod("b", "700m"))
	w.pending("b")
	create(w, pod("gated", "1m", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/g"}} }))
	w.until("the gated pod is queued", func() bool { _, _, _, gated := w.s.queue.Lengths(); return gated == 1 })
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP scheduler_schedule_attempts_total [STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.
# TYPE scheduler_schedule_attempts_total counter
scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1
scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"} 1
# HELP scheduler_batch_attempts_total [ALPHA] Counts of results when we attempt to use batching.
# TYPE scheduler_batch_attempts_total counter
scheduler_batch_attempts_total{profile="default-scheduler",result="no_hint"} 2
# HELP scheduler_pending_pods [STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to schedule because they are gated.
# TYPE scheduler_pending_pods gauge
scheduler_pending_pods{queue="active"} 0
scheduler_pending_pods{queue="backoff"} 0
scheduler_pending_pods{queue="gated"} 1
scheduler_pending_pods{queue="unschedulable"} 1
# HELP scheduler_unschedulable_pods [ALPHA] The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins that caused it to not schedule and so this metric have meaning only when broken down by plugin.
# TYPE scheduler_unschedulable_pods gauge
scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="default-scheduler"} 1
`), "scheduler_schedule_attempts_total", "scheduler_batch_attempts_total", "scheduler_pending_pods", "scheduler_unschedulable_pods")
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"scheduler_scheduling_attempt_duration_seconds", "scheduler_pod_scheduling_sli_duration_seconds", "scheduler_pod_scheduling_attempts", "scheduler_scheduling_algorithm_duration_seconds", "scheduler_cache_size", "scheduler_preemption_attempts_total",
		"scheduler_framework_extension_point_duration_seconds", "scheduler_queue_incoming_pods_total", "scheduler_event_handling_duration_seconds",
		"scheduler_inflight_events", "scheduler_goroutines", "scheduler_pod_scheduled_after_flush_total"} {
		if n, err := testutil.GatherAndCount(registry, name); err != nil || n == 0 {
			t.Errorf("%s: %d series, %v", name, n, err)
		}
	}
}

// measured reads one series of a registry: its value, or how often it was observed.
func measured(t *testing.T, registry *prometheus.Registry, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			matching := 0
			for _, l := range m.GetLabel() {
				if v, ok := labels[l.GetName()]; ok && v == l.GetValue() {
					matching++
				}
			}
			if matching == len(labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func TestExtensionPointsPluginsAndTheQueueAreMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	w := newWorld(t, func(c *Config) { c.Metrics = registry })
	create(w, node("n", "1", "1Gi"))
	for i := range 100 { // of which about ten are sampled
		create(w, pod(fmt.Sprint("p", i), "1m", func(p *corev1.Pod) { p.Labels = map[string]string{"n": fmt.Sprint(i)} }))
		w.noted(fmt.Sprintf("p%d Normal Scheduled", i)) // which comes after all that is measured
	}
	create(w, pod("late", "1"))
	w.pending("late")
	create(w, node("m", "1", "1Gi"))
	w.on("late")
	w.noted("late Normal Scheduled")
	at := func(point, status string) map[string]string {
		return map[string]string{"extension_point": point, "status": status, "profile": "default-scheduler"}
	}
	for _, c := range []struct {
		name   string
		labels map[string]string
		least  float64
	}{
		{"scheduler_framework_extension_point_duration_seconds", at("PreFilter", "Success"), 101},
		{"scheduler_framework_extension_point_duration_seconds", at("Filter", "Success"), 101},
		{"scheduler_framework_extension_point_duration_seconds", at("PostFilter", "Unschedulable"), 1},
		{"scheduler_framework_extension_point_duration_seconds", at("Reserve", "Success"), 101},
		{"scheduler_framework_extension_point_duration_seconds", at("Bind", "Success"), 101},
		{"scheduler_framework_extension_point_duration_seconds", at("PostBind", "Success"), 101},
		{"scheduler_plugin_execution_duration_seconds", map[string]string{"plugin": "NodeResourcesFit", "extension_point": "Filter", "status": "Success"}, 1},
		{"scheduler_plugin_execution_duration_seconds", map[string]string{"plugin": "DefaultBinder", "extension_point": "Bind", "status": "Success"}, 1},
		{"scheduler_queue_incoming_pods_total", map[string]string{"queue": "active", "event": "UnscheduledPodAdd"}, 101},
		{"scheduler_queue_incoming_pods_total", map[string]string{"queue": "unschedulable", "event": "ScheduleAttemptFailure"}, 1},
		{"scheduler_queue_incoming_pods_total", map[string]string{"event": "NodeAdd"}, 1},
		{"scheduler_queueing_hint_execution_duration_seconds", map[string]string{"plugin": "NodeResourcesFit", "event": "NodeAdd", "hint": "Queue"}, 1},
		{"scheduler_event_handling_duration_seconds", map[string]string{"event": "NodeAdd"}, 2},
		{"scheduler_event_handling_duration_seconds", map[string]string{"event": "AssignedPodAdd"}, 101},
	} {
		if got := measured(t, registry, c.name, c.labels); got < c.least {
			t.Errorf("%s%v: %v, want %v", c.name, c.labels, got, c.least)
		}
	}
	if n := measured(t, registry, "scheduler_plugin_execution_duration_seconds", map[string]string{"plugin": "DefaultBinder"}); n > 50 {
		t.Errorf("%v pods are sampled", n)
	}
}
