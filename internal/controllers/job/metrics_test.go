package job_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
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
