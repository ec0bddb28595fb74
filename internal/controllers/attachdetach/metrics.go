package attachdetach

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
)

var (
	inUse = prometheus.NewDesc("storage_count_attachable_volumes_in_use", "[ALPHA] Attachable volumes that pods of a node use", []string{"node", "volume_plugin"}, nil)
	total = prometheus.NewDesc("attachdetach_controller_total_volumes", "[ALPHA] Volumes that should be attached and that are", []string{"plugin_name", "state"}, nil)
)

var _ prometheus.Collector = (*Controller)(nil)

// Describe implements prometheus.Collector.
func (a *Controller) Describe(all chan<- *prometheus.Desc) {
	all <- inUse
	all <- total
}

// Collect implements prometheus.Collector.
func (a *Controller) Collect(all chan<- prometheus.Metric) {
	type labeled struct{ plugin, of string }
	used, states := map[labeled]int{}, map[labeled]int{}
	for _, pv := range a.volumes.Select("", labels.Everything()) {
		csi := csiOf(pv)
		if csi == nil {
			continue
		}
		plugin := "kubernetes.io/csi:" + csi.Driver
		for node, pods := range a.users(pv) {
			used[labeled{plugin, node}] += len(pods)
			states[labeled{plugin, "desired_state_of_world"}]++
		}
		for _, va := range a.attachments.ByIndex(byVolume, pv.Name) {
			if va.Status.Attached {
				states[labeled{plugin, "actual_state_of_world"}]++
			}
		}
	}
	for l, n := range used {
		all <- prometheus.MustNewConstMetric(inUse, prometheus.GaugeValue, float64(n), l.of, l.plugin)
	}
	for l, n := range states {
		all <- prometheus.MustNewConstMetric(total, prometheus.GaugeValue, float64(n), l.plugin, l.of)
	}
}
