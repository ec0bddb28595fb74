package endpointslicemirroring

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"proa/internal/controllers"
)

// measures are what is measured of mirrors, under upstream's names.
type measures struct {
	added, updated, removed prometheus.Histogram // endpoints of one sync
	skipped                 prometheus.Histogram // addresses of one sync
	took                    prometheus.Histogram // a sync, in seconds
	changes                 *prometheus.CounterVec
	endpoints, slices       *prometheus.Desc

	mu   sync.Mutex // guards what follows
	want map[controllers.Key]size
}

// size is that of what shows one version of an Endpoints.
type size struct {
	version           string
	slices, endpoints int
}

// totals are the changes of one sync.
type totals struct{ added, updated, removed int }

const subsystem = "endpoint_slice_mirroring_controller"

func newMeasures() *measures {
	histogram := func(name, help string, start float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: subsystem, Name: name, Help: "[ALPHA] " + help, Buckets: prometheus.ExponentialBuckets(start, 2, 15),
		})
	}
	return &measures{
		added:   histogram("endpoints_added_per_sync", "Number of endpoints added on each Endpoints sync", 2),
		updated: histogram("endpoints_updated_per_sync", "Number of endpoints updated on each Endpoints sync", 2),
		removed: histogram("endpoints_removed_per_sync", "Number of endpoints removed on each Endpoints sync", 2),
		skipped: histogram("addresses_skipped_per_sync", "Number of addresses that were invalid or too many on each Endpoints sync", 2),
		took:    histogram("endpoints_sync_duration", "Duration of an Endpoints sync in seconds", 0.001),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: subsystem, Name: "changes", Help: "[ALPHA] Number of EndpointSlice changes"}, []string{"operation"}),

		endpoints: prometheus.NewDesc(subsystem+"_endpoints_desired", "[ALPHA] Number of endpoints desired", nil, nil),
		slices:    prometheus.NewDesc(subsystem+"_desired_endpoint_slices", "[ALPHA] Number of EndpointSlices that would exist with perfect endpoint allocation", nil, nil),
		want:      map[controllers.Key]size{},
	}
}

// gauge counts what is wanted, and what there is, when somebody asks.
type gauge struct{ *Controller }

var existing = prometheus.NewDesc(subsystem+"_num_endpoint_slices", "[ALPHA] Number of EndpointSlices", nil, nil)

func (g gauge) Describe(to chan<- *prometheus.Desc) {
	to <- g.measures.endpoints
	to <- g.measures.slices
	to <- existing
}

func (g gauge) Collect(to chan<- prometheus.Metric) {
	var all size
	there := 0
	g.measures.mu.Lock()
	for key, s := range g.measures.want {
		all.slices += s.slices
		all.endpoints += s.endpoints
		there += len(g.slices.ByIndex(sliceIndex, key.String()))
	}
	g.measures.mu.Unlock()
	for desc, n := range map[*prometheus.Desc]int{g.measures.endpoints: all.endpoints, g.measures.slices: all.slices, existing: there} {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
	}
}

func (m *measures) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.added, m.updated, m.removed, m.skipped, m.took, m.changes}
}

// wanted notes what is to show an Endpoints, and tells whether this version is new.
func (m *measures) wanted(key controllers.Key, version string, slices []*discoveryv1.EndpointSlice) (news bool) {
	s := size{version: version, slices: len(slices)}
	for _, slice := range slices {
		s.endpoints += len(slice.Endpoints)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	news = m.want[key].version != version
	m.want[key] = s
	return news
}

// unwanted notes that nothing is to show an Endpoints.
func (m *measures) unwanted(key controllers.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.want, key)
}

func (m *measures) synced(t *totals, took time.Duration) {
	m.added.Observe(float64(t.added))
	m.updated.Observe(float64(t.updated))
	m.removed.Observe(float64(t.removed))
	m.took.Observe(took.Seconds())
}

// count adds the changes from some endpoints to others.
func (t *totals) count(have, want []discoveryv1.Endpoint) {
	were := make(map[identity]*discoveryv1.Endpoint, len(have))
	for i := range have {
		were[identityOf(&have[i])] = &have[i]
	}
	for i := range want {
		id := identityOf(&want[i])
		switch old := were[id]; {
		case old == nil:
			t.added++
		case !equality.Semantic.DeepEqual(old, &want[i]):
			t.updated++
		}
		delete(were, id)
	}
	t.removed += len(were)
}
