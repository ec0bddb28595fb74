package scheduler

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/scheduler/config"
	"proa/internal/scheduler/profile"
)

// ServesPodGroups tells whether a catalogue has what Config.PodGroups is about.
func ServesPodGroups(served *apis.Catalogue) bool {
	_, found := served.Lookup(schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1beta1", Resource: "podgroups"})
	return found
}

// Config is what a Scheduler is built from.
type Config struct {
	// Settings are what a KubeSchedulerConfiguration file says; config.Load reads one.
	config.Settings

	// Cache is where nodes, pods and volumes are read and what bindings are
	// written through, as the scheduler's user. Its Run is the caller's.
	Cache *client.Cache
	// PodGroups tells whether scheduling.k8s.io/v1beta1 PodGroups are served, whose
	// pods are placed together then (gate GenericWorkload).
	PodGroups bool
	// Recorder gives the recorder of one scheduler name. Nil: events.k8s.io
	// events, written through Cache in the background.
	Recorder func(name string) events.EventRecorder
	Clock    clock.WithTicker // nil means the machine's clock
	// Seed of the choice between nodes of equal score. 0 means 1.
	Seed int64
	// Factories of plugins beside the built-in ones, for profiles to name.
	Factories map[string]profile.Factory
	// Metrics is where the scheduler's metrics are gathered; nil: nowhere.
	Metrics prometheus.Registerer
	// Binders bounds the bindings under way at the same time; 0 means 64.
	Binders int
}
