package scheduler

import (
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Dashboards are written for upstream's bounds.
func TestBucketBoundsAreUpstreams(t *testing.T) {
	m := newMetrics()
	for _, tt := range []struct {
		name          string
		of            *prometheus.HistogramVec
		start, factor float64
		count, labels int
	}{
		{"scheduling_attempt_duration_seconds", m.attempts, 0.001, 2, 15, 2},
		{"scheduling_algorithm_duration_seconds", m.algorithm, 0.001, 2, 15, 0},
		{"pod_scheduling_sli_duration_seconds", m.sli, 0.01, 2, 20, 1},
		{"pod_scheduling_attempts", m.tries, 1, 2, 5, 0},
		{"framework_extension_point_duration_seconds", m.points, 0.0001, 2, 12, 3},
		{"plugin_execution_duration_seconds", m.plugins, 0.00001, 1.5, 20, 3},
		{"queueing_hint_execution_duration_seconds", m.hints, 0.00001, 1.5, 20, 3},
		{"event_handling_duration_seconds", m.events, 0.0001, 2, 12, 1},
		{"permit_wait_duration_seconds", m.permits, 0.001, 2, 15, 1},
		{"get_node_hint_duration_seconds", m.batchTook, 0.00001, 2, 12, 2},
		{"preemption_goroutines_duration_seconds", m.evictions, 0.01, 2, 20, 1},
	} {
		var written dto.Metric
		one := tt.of.WithLabelValues(make([]string, tt.labels)...).(prometheus.Metric)
		if err := one.Write(&written); err != nil {
			t.Fatal(err)
		}
		buckets := written.GetHistogram().GetBucket()
		if len(buckets) != tt.count {
			t.Errorf("%s has %d buckets, want %d", tt.name, len(buckets), tt.count)
			continue
		}
		for i, b := range buckets {
			if want := tt.start * math.Pow(tt.factor, float64(i)); math.Abs(b.GetUpperBound()-want) > want/1e6 {
				t.Errorf("%s: bucket %d ends at %v, want %v", tt.name, i, b.GetUpperBound(), want)
			}
		}
	}
}
