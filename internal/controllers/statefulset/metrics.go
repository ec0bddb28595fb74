package statefulset

import (
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"
)

var (
	measured = []string{"statefulset_namespace", "statefulset_name", "pod_management_policy"}
	allowed  = prometheus.NewDesc("statefulset_controller_statefulset_max_unavailable", "[ALPHA] How many pods of a StatefulSet may be unavailable in a rolling update", measured, nil)
	lacking  = prometheus.NewDesc("statefulset_controller_statefulset_unavailable_replicas", "[ALPHA] How many replicas of a StatefulSet are missing or not available", measured, nil)
)

// gauge measures the sets that are updated by and by, when somebody asks.
type gauge struct{ *Controller }

func (g gauge) Describe(to chan<- *prometheus.Desc) { to <- allowed; to <- lacking }

func (g gauge) Collect(to chan<- prometheus.Metric) {
	for _, set := range g.sets.Select("", labels.Everything()) {
		if set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateStatefulSetStrategyType {
			continue
		}
		s := &step{set: set, now: g.clock.Now()}
		s.place(g.owned.Owned(set.UID))
		of := []string{set.Namespace, set.Name, string(set.Spec.PodManagementPolicy)}
		to <- prometheus.MustNewConstMetric(allowed, prometheus.GaugeValue, float64(s.maxUnavailable()), of...)
		to <- prometheus.MustNewConstMetric(lacking, prometheus.GaugeValue, float64(s.unavailable()), of...)
	}
}
