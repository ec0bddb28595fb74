package statefulset_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/statefulset"
)

func TestUnavailableReplicasAreMeasured(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = w.Registry()
			return []controllertest.Runner{statefulset.New(c)}
		})()
		set := db(4)
		set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{
			Type:          appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: new(intstr.FromString("50%"))},
		}
		w.Create(set)
		other := db(1)
		other.Name = "other"
		other.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
		w.Create(other)
		w.Settle()
		const labels = `{pod_management_policy="Parallel",statefulset_name="db",statefulset_namespace="default"}`
		w.Measured(
			"statefulset_controller_statefulset_max_unavailable"+labels+" 2",
			"statefulset_controller_statefulset_unavailable_replicas"+labels+" 4")
		w.Report(controllertest.Get[*corev1.Pod](w, "db-1"), corev1.PodRunning, true)
		w.Settle()
		w.Measured("statefulset_controller_statefulset_unavailable_replicas" + labels + " 3")
	})
}
