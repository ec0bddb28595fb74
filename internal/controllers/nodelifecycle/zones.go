package nodelifecycle

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodetopology "k8s.io/component-helpers/node/topology"
)

// How fast nodes of a zone get NoExecute taints: one at a time, with pauses.
const (
	normalPause    = 10 * time.Second
	disruptedPause = 100 * time.Second // in a large zone of which much is not ready
	largeZone      = 50                // nodes; a smaller one is left alone when much of it is not ready
	disruptedShare = 0.55
	disruptedLeast = 3 // nodes that are not ready
)

// zones counts ready nodes per zone. When many go at once, the network or this
// process is to blame rather than they, and their pods are better left alone.
type zones struct {
	recheck time.Duration

	mu    sync.Mutex // guards zones
	zones map[string]*zone
}

type zone struct {
	ready, unready int
	tainted        time.Time // last NoExecute taint
}

func newZones(recheck time.Duration) zones { return zones{recheck: recheck, zones: map[string]*zone{}} }

func zoneOf(node *corev1.Node) string { return nodetopology.GetZoneKey(node) }

// update takes in a node's change. It tells whether all zones became fully
// disrupted by it or stopped being so.
func (z *zones) update(old, node *corev1.Node) (switched bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	before := z.allDisruptedLocked()
	if old != nil {
		z.countLocked(old, -1)
	}
	if node != nil {
		z.countLocked(node, 1)
	}
	return before != z.allDisruptedLocked()
}

func (z *zones) countLocked(node *corev1.Node, n int) {
	name := zoneOf(node)
	if z.zones[name] == nil {
		z.zones[name] = &zone{}
	}
	if status(node) == corev1.ConditionTrue {
		z.zones[name].ready += n
	} else {
		z.zones[name].unready += n
	}
	if z.zones[name].ready+z.zones[name].unready == 0 {
		delete(z.zones, name)
	}
}

func (z *zones) allDisrupted() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.allDisruptedLocked()
}

func (z *zones) allDisruptedLocked() bool {
	for _, zone := range z.zones {
		if zone.ready > 0 {
			return false
		}
	}
	return len(z.zones) > 0
}

// admit tells whether a node of the zone may get its NoExecute taint now, else
// when to ask again.
func (z *zones) admit(name string, now time.Time) (wait time.Duration, ok bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	zone := z.zones[name]
	if zone == nil || z.allDisruptedLocked() {
		return z.recheck, false
	}
	pause := zone.pause()
	if pause == 0 {
		return z.recheck, false
	}
	if left := pause - now.Sub(zone.tainted); left > 0 {
		return left, false
	}
	zone.tainted = now
	return 0, true
}

// pause is the time between taints, 0 when there are to be none.
func (z *zone) pause() time.Duration {
	size := z.ready + z.unready
	switch {
	case z.ready == 0, z.unready < disruptedLeast, float64(z.unready)/float64(size) < disruptedShare:
		return normalPause
	case size > largeZone:
		return disruptedPause
	}
	return 0
}
