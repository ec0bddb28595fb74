package aggregator

import (
	"github.com/prometheus/client_golang/prometheus"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"proa/internal/store"
)

var _ prometheus.Collector = (*Aggregator)(nil)

var unavailable = prometheus.NewDesc("aggregator_unavailable_apiservice",
	"[ALPHA] Whether an APIService is unavailable (1) or not (0).", []string{"name"}, nil)

// Describe implements prometheus.Collector.
func (a *Aggregator) Describe(ch chan<- *prometheus.Desc) { ch <- unavailable }

// Collect tells of every APIService, local ones included, whether it is unavailable.
func (a *Aggregator) Collect(ch chan<- prometheus.Metric) {
	a.store.Snapshot().Range(apiServices, "", store.Key{}, func(item *store.Item) bool {
		if s, ok := item.Object.(*apiregistrationv1.APIService); ok {
			value := 1.0
			if helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available) {
				value = 0
			}
			ch <- prometheus.MustNewConstMetric(unavailable, prometheus.GaugeValue, value, s.Name)
		}
		return true
	})
}
