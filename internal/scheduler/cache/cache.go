// Package cache keeps the scheduler's picture of nodes and the pods on them,
// with the pods it has just placed (assumed) counted before their binding is
// written.
//
// Changes come from anywhere and are only noted; the scheduling loop takes them
// in between two cycles. So the picture has one owner, plugins read it without
// locks, and nothing is copied per cycle.
package cache

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/scheduler/framework"
)

// Cache is the picture. Its zero value is not ready: use New.
type Cache struct {
	mu      sync.Mutex // guards pending
	pending []change

	// What follows belongs to the scheduling loop.
	snapshot *framework.Snapshot
	nodes    map[string]*framework.NodeInfo // also of nodes only known by their pods
	pods     map[types.UID]*placed
	assumed  int // of pods
	order    nodeOrder
	stale    bool // the snapshot's list of nodes is to be made anew
	log      changeLog
}

// placed is a pod on a node.
type placed struct {
	info    *framework.PodInfo
	node    string
	assumed bool
}

// change is one thing that happened. Exactly one of its first four fields is set.
type change struct {
	pod        *framework.PodInfo // has a node now
	removedPod types.UID
	node       *corev1.Node
	removed    string    // node
	forget     types.UID // assumed pod whose binding failed
}

// New returns an empty picture.
func New() *Cache {
	return &Cache{
		snapshot: &framework.Snapshot{
			ByName: map[string]*framework.NodeInfo{}, ImageNodes: map[string]int{}, ClaimUsers: map[string]int{},
		},
		nodes: map[string]*framework.NodeInfo{},
		pods:  map[types.UID]*placed{},
		order: nodeOrder{zones: map[string][]string{}},
	}
}

func (c *Cache) note(ch change) {
	c.mu.Lock()
	c.pending = append(c.pending, ch)
	c.mu.Unlock()
}

// SetPod notes that a pod with a node is there or has changed.
func (c *Cache) SetPod(pod *framework.PodInfo) { c.note(change{pod: pod}) }

// RemovePod notes that a pod is gone or has ended.
func (c *Cache) RemovePod(uid types.UID) { c.note(change{removedPod: uid}) }

// SetNode notes a node object.
func (c *Cache) SetNode(node *corev1.Node) { c.note(change{node: node}) }

// RemoveNode notes that a node object is gone.
func (c *Cache) RemoveNode(name string) { c.note(change{removed: name}) }

// Sizes counts nodes, pods on them, and those of the pods that are assumed. The
// scheduling loop alone calls it.
func (c *Cache) Sizes() (nodes, pods, assumed int) {
	return len(c.snapshot.Nodes), len(c.pods), c.assumed
}

// Forget takes back an Assume, unless the pod has been seen on its node since.
func (c *Cache) Forget(uid types.UID) { c.note(change{forget: uid}) }

// Refresh takes in what was noted and returns the picture. The scheduling loop
// alone calls it; what it returned before is the same object.
func (c *Cache) Refresh() *framework.Snapshot {
	c.mu.Lock()
	batch := c.pending
	c.pending = nil
	c.mu.Unlock()
	for i := range batch {
		c.take(&batch[i])
	}
	c.rebuild()
	return c.snapshot
}

func (c *Cache) take(ch *change) {
	switch {
	case ch.pod != nil:
		c.place(ch.pod, ch.pod.Pod.Spec.NodeName, false)
	case ch.node != nil:
		c.setNode(ch.node)
	case ch.removed != "":
		c.removeNode(ch.removed)
	case ch.forget != "":
		if p := c.pods[ch.forget]; p != nil && p.assumed {
			c.lift(p)
		}
	default:
		if p := c.pods[ch.removedPod]; p != nil {
			c.lift(p)
		}
	}
}

// Assume counts a pod on a node from now on. Only the scheduling loop calls it.
func (c *Cache) Assume(pod *framework.PodInfo, node string) {
	c.place(pod, node, true)
}

func (c *Cache) place(pod *framework.PodInfo, node string, assumed bool) {
	if old := c.pods[pod.Pod.UID]; old != nil {
		if old.node == node && old.info.SameDemand(pod) {
			c.nodes[node].ReplacePod(old.info, pod)
			c.assume(old.assumed, assumed)
			old.info, old.assumed = pod, assumed
			return
		}
		c.lift(old)
	}
	n := c.nodes[node]
	if n == nil {
		n = &framework.NodeInfo{}
		c.nodes[node] = n
	}
	c.pods[pod.Pod.UID] = &placed{info: pod, node: node, assumed: assumed}
	c.assume(false, assumed)
	n.AddPod(pod)
	c.podsChanged(n, pod, 1)
}

// assume counts assumed pods.
func (c *Cache) assume(was, is bool) {
	if was {
		c.assumed--
	}
	if is {
		c.assumed++
	}
}

func (c *Cache) lift(p *placed) {
	n := c.nodes[p.node]
	n.RemovePod(p.info)
	c.assume(p.assumed, false)
	delete(c.pods, p.info.Pod.UID)
	c.podsChanged(n, p.info, -1)
	if n.Node == nil && len(n.Pods) == 0 {
		delete(c.nodes, p.node)
	}
}

func (c *Cache) podsChanged(n *framework.NodeInfo, p *framework.PodInfo, sign int) {
	c.snapshot.Generation++
	n.Generation = c.snapshot.Generation
	c.log.note(n)
	c.snapshot.PodsChanged(n, p, sign)
	for _, claim := range p.Claims {
		key := p.Pod.Namespace + "/" + claim
		if c.snapshot.ClaimUsers[key] += sign; c.snapshot.ClaimUsers[key] <= 0 {
			delete(c.snapshot.ClaimUsers, key)
		}
	}
}

func (c *Cache) setNode(node *corev1.Node) {
	n := c.nodes[node.Name]
	if n == nil {
		n = &framework.NodeInfo{}
		c.nodes[node.Name] = n
	}
	topology := n.Node == nil || topologyChanged(n.Node, node)
	if !topology && !offerChanged(n.Node, node) {
		n.Node = node
		return
	}
	images := n.Node == nil && len(node.Status.Images) > 0 || n.Node != nil && imagesChanged(n.Node, node)
	c.countImages(n, -1)
	if n.Node == nil || zoneOf(n.Node) != zoneOf(node) {
		if n.Node != nil {
			c.order.remove(n.Node)
		}
		c.order.add(node)
		c.stale = true
	}
	n.SetNode(node)
	c.countImages(n, 1)
	c.nodeChanged(n, topology, images)
}

func (c *Cache) removeNode(name string) {
	n := c.nodes[name]
	if n == nil || n.Node == nil {
		return
	}
	c.countImages(n, -1)
	c.order.remove(n.Node)
	c.stale = true
	c.nodeChanged(n, true, len(n.Images) > 0)
	n.Node = nil
	if len(n.Pods) == 0 { // otherwise they go one by one
		delete(c.nodes, name)
	}
}

func (c *Cache) countImages(n *framework.NodeInfo, sign int) {
	for name := range n.Images {
		if c.snapshot.ImageNodes[name] += sign; c.snapshot.ImageNodes[name] <= 0 {
			delete(c.snapshot.ImageNodes, name)
		}
	}
}

func (c *Cache) nodeChanged(n *framework.NodeInfo, topology, images bool) {
	c.snapshot.Generation++
	n.Generation = c.snapshot.Generation
	c.log.note(n)
	if topology {
		n.TopologyGeneration, c.snapshot.TopologyGeneration = n.Generation, n.Generation
	}
	if images {
		c.snapshot.ImageGeneration = n.Generation
	}
}

// rebuild makes the list of nodes if a change has outdated it.
func (c *Cache) rebuild() {
	s := c.snapshot
	if !c.stale {
		return
	}
	names := c.order.names()
	s.Nodes = make([]*framework.NodeInfo, len(names))
	clear(s.ByName)
	for i, name := range names {
		s.Nodes[i] = c.nodes[name]
		s.Nodes[i].Index = i
		s.ByName[name] = s.Nodes[i]
	}
	s.LayoutGeneration = s.Generation
	c.stale = false
}

// ChangedSince returns the nodes whose pods changed after generation; false when
// that is too long ago to tell.
func (c *Cache) ChangedSince(generation int64) ([]*framework.NodeInfo, bool) {
	return c.log.last(c.snapshot.Generation - generation)
}
