package nodelifecycle

import "github.com/prometheus/client_golang/prometheus"

var (
	zoneHealth    = zoneGauge("zone_health", "Percentage of the nodes of a zone that are Ready.")
	zoneSize      = zoneGauge("zone_size", "Nodes of a zone.")
	zoneUnhealthy = zoneGauge("unhealthy_nodes_in_zone", "Nodes of a zone that are not Ready.")
)

func zoneGauge(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("node_collector_"+name, "[ALPHA] "+help, []string{"zone"}, nil)
}

// Describe and Collect show how zones are when somebody asks.
func (z *zones) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{zoneHealth, zoneSize, zoneUnhealthy} {
		to <- d
	}
}

// Collect is beside Describe.
func (z *zones) Collect(to chan<- prometheus.Metric) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for name, zone := range z.zones {
		size := zone.ready + zone.unready
		for d, value := range map[*prometheus.Desc]float64{
			zoneHealth: 100 * float64(zone.ready) / float64(size), zoneSize: float64(size), zoneUnhealthy: float64(zone.unready),
		} {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, name)
		}
	}
}
