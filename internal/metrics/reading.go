package metrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// reading is what one node said at one time, with what it said before.
type reading struct {
	node series
	pods map[types.NamespacedName]map[string]series // containers by name
}

// series are the last two points of a node or container.
type series struct{ before, last point }

// point is what a node or container had used at one time.
type point struct {
	at      time.Time
	started time.Time // of a container
	cpu     float64   // core-seconds since it started
	memory  float64   // bytes of its working set
}

// follow puts the points of an older reading before those of r.
func (r *reading) follow(old *reading) {
	r.node = r.node.after(old.node)
	for pod, containers := range r.pods {
		for name, s := range containers {
			containers[name] = s.after(old.pods[pod][name])
		}
	}
}

// after continues an older series. A node that answers with the measurement it
// gave before changes nothing.
func (s series) after(old series) series {
	if !s.last.at.After(old.last.at) {
		return old
	}
	s.before = old.last
	return s
}

// rated is a use of resources over a window that ends at a time.
type rated struct {
	at     time.Time
	window time.Duration
	usage  corev1.ResourceList
}

// rate is what the series used between its points. A container that is younger
// than interval, or began anew since the point before, is measured from its
// start. It reports false when there is nothing to compare with yet.
func (s series) rate(interval time.Duration) (rated, bool) {
	from := s.before
	if from.at.IsZero() || s.last.started.After(from.at) || s.last.cpu < from.cpu {
		from = point{at: s.last.started}
		if from.at.IsZero() || s.last.at.Sub(from.at) > interval {
			return rated{}, false
		}
	}
	window := s.last.at.Sub(from.at)
	if window <= 0 {
		return rated{}, false
	}
	cores := (s.last.cpu - from.cpu) / window.Seconds()
	return rated{at: s.last.at, window: window, usage: corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(cores*1e9), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(s.last.memory), resource.BinarySI),
	}}, true
}
