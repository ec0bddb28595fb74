package job_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/job"
)

func TestJobsAreMeasured(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		r := prometheus.NewPedanticRegistry()
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics, c.Queues = r, controllers.NewQueues(r)
			return []controllertest.Runner{job.New(c)}
		})()
		w.Create(work(2, 1))
		w.Settle()
		end(w, func(*corev1.Pod) int32 { return 0 })
		for name, want := range map[string]float64{
			"job_controller_job_pods_finished_total": 2, "job_controller_job_pods_creation_total": 2,
			"job_controller_terminated_pods_tracking_finalizer_total": 4, // each got it and lost it
		} {
			if got := total(t, r, name); got != want {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
		want := `# HELP job_controller_jobs_finished_total [STABLE] The number of finished jobs
# TYPE job_controller_jobs_finished_total counter
job_controller_jobs_finished_total{completion_mode="NonIndexed",reason="CompletionsReached",result="succeeded"} 1
`
		if err := testutil.GatherAndCompare(r, strings.NewReader(want), "job_controller_jobs_finished_total"); err != nil {
			t.Error(err)
		}
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		created := 0.0
		queued := false
		for _, f := range families {
			for _, m := range f.GetMetric() {
				text := m.String()
				if f.GetName() == "job_controller_job_syncs_total" && strings.Contains(text, "pods_created") {
					created = m.GetCounter().GetValue()
				}
				queued = queued || f.GetName() == "workqueue_adds_total" && strings.Contains(text, `"job"`) && m.GetCounter().GetValue() > 0
			}
		}
		if created != 2 || !queued {
			t.Errorf("%v syncs created pods, queued %v", created, queued)
		}
	})
}

// total is the sum of the series of a metric.
func total(t *testing.T, r prometheus.Gatherer, name string) (sum float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}

func TestFailuresAreMeasured(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		r := prometheus.NewPedanticRegistry()
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = r
			return []controllertest.Runner{job.New(c)}
		})()
		j := work(2, 2)
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		j.Spec.BackoffLimitPerIndex = new(int32(0))
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:      batchv1.PodFailurePolicyActionCount,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{7}},
		}}}
		w.Create(j)
		w.Settle()
		end(w, func(p *corev1.Pod) int32 {
			if p.Labels[batchv1.JobCompletionIndexAnnotation] == "0" {
				return 7
			}
			return 0
		})
		want := `# HELP job_controller_job_finished_indexes_total [ALPHA] The number of finished indexes
# TYPE job_controller_job_finished_indexes_total counter
job_controller_job_finished_indexes_total{backoffLimit="perIndex",status="failed"} 1
job_controller_job_finished_indexes_total{backoffLimit="perIndex",status="succeeded"} 1
# HELP job_controller_job_pods_finished_total [STABLE] The number of finished Pods that are fully tracked
# TYPE job_controller_job_pods_finished_total counter
job_controller_job_pods_finished_total{completion_mode="Indexed",result="failed"} 1
job_controller_job_pods_finished_total{completion_mode="Indexed",result="succeeded"} 1
# HELP job_controller_pod_failures_handled_by_failure_policy_total [BETA] The number of failed Pods that a rule of a pod failure policy applied to
# TYPE job_controller_pod_failures_handled_by_failure_policy_total counter
job_controller_pod_failures_handled_by_failure_policy_total{action="Count"} 1
`
		if err := testutil.GatherAndCompare(r, strings.NewReader(want), "job_controller_job_finished_indexes_total",
			"job_controller_job_pods_finished_total", "job_controller_pod_failures_handled_by_failure_policy_total"); err != nil {
			t.Error(err)
		}
	})
}
