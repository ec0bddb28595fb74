package cache

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-helpers/node/topology"

	"proa/internal/scheduler/framework"
)

// nodeOrder lists nodes taking one of each zone in turn, so that any stretch of
// the list, which is what a cycle looks at, covers all zones evenly.
type nodeOrder struct {
	zones map[string][]string // names by zone, in the order they came
	known []string            // zones, in the order they came
}

func zoneOf(node *corev1.Node) string { return topology.GetZoneKey(node) }

func (o *nodeOrder) add(node *corev1.Node) {
	zone := zoneOf(node)
	if _, ok := o.zones[zone]; !ok {
		o.known = append(o.known, zone)
	}
	o.zones[zone] = append(o.zones[zone], node.Name)
}

func (o *nodeOrder) remove(node *corev1.Node) {
	zone := zoneOf(node)
	names := o.zones[zone]
	if i := slices.Index(names, node.Name); i >= 0 {
		names = slices.Delete(names, i, i+1)
	}
	if len(names) > 0 {
		o.zones[zone] = names
		return
	}
	delete(o.zones, zone)
	o.known = slices.DeleteFunc(o.known, func(z string) bool { return z == zone })
}

func (o *nodeOrder) names() []string {
	var names []string
	for i, more := 0, true; more; i++ {
		more = false
		for _, zone := range o.known {
			if in := o.zones[zone]; i < len(in) {
				names = append(names, in[i])
				more = true
			}
		}
	}
	return names
}

// topologyChanged tells whether a node changed in where it is and whom it admits.
func topologyChanged(old, node *corev1.Node) bool {
	return old.UID != node.UID || old.Spec.Unschedulable != node.Spec.Unschedulable ||
		!maps.Equal(old.Labels, node.Labels) || !equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints)
}

// offerChanged tells whether a node changed in what it offers. Heartbeats do not.
func offerChanged(old, node *corev1.Node) bool {
	return !equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) || imagesChanged(old, node)
}

func imagesChanged(old, node *corev1.Node) bool {
	return !equality.Semantic.DeepEqual(old.Status.Images, node.Status.Images)
}

// changeLog remembers which nodes' pods changed lately, newest last.
type changeLog struct {
	nodes   []*framework.NodeInfo
	trimmed bool
}

const changeLogLength = 4096

func (l *changeLog) note(n *framework.NodeInfo) {
	if len(l.nodes) == 2*changeLogLength {
		l.nodes = append(l.nodes[:0], l.nodes[changeLogLength:]...)
		l.trimmed = true
	}
	l.nodes = append(l.nodes, n)
}

// last returns what the last steps changes touched. Every entry is one step of
// the generation, though not every step an entry, so this may be more than asked.
func (l *changeLog) last(steps int64) ([]*framework.NodeInfo, bool) {
	if steps > int64(len(l.nodes)) {
		return l.nodes, !l.trimmed
	}
	return l.nodes[int64(len(l.nodes))-steps:], true
}
