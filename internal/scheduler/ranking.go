package scheduler

import (
	"container/heap"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

// ranking has the nodes that fit, the best first; equal ones by chance. Nodes of the
// same class and with the same score of the plugin that normalizes by range are in one
// bucket: what comparison adds, and whether they are admitted at all, is the same for
// all of them, and is told when the best is asked for.
type ranking struct {
	byNode  []ranked // by index of the node
	buckets map[band]*bucket
	groups  []profile.Group // memory that best uses again
}

// band is what the nodes of a bucket have in common.
type band struct {
	class int32
	raw   int64 // the score to be normalized by range
}

type ranked struct {
	node     *framework.NodeInfo // nil: was not compared yet
	total    int64               // without what is told when the best is asked for
	relative int64
	band
	tie uint64
	at  int32 // in the bucket; -1: does not fit now
}

func newRanking(all int, nodes []*framework.NodeInfo, scores *profile.Scores, classes *classes, chance func() uint64) ranking {
	r := ranking{byNode: make([]ranked, all), buckets: map[band]*bucket{}}
	for i, n := range nodes {
		e := ranked{node: n, total: scores.Total[i], band: band{class: classes.number(n)}, tie: chance()}
		if scores.Relative != nil {
			e.relative = scores.Relative[i]
		}
		if scores.Raw != nil {
			e.raw = scores.Raw[i]
			e.total -= scores.Ranged[i]
		}
		b := r.bucket(e.band)
		e.at = int32(len(b.heap))
		r.byNode[n.Index] = e
		b.heap = append(b.heap, int32(n.Index))
	}
	for _, b := range r.buckets {
		heap.Init(b)
	}
	return r
}

// bucket returns that of nodes of a band.
func (r *ranking) bucket(of band) *bucket {
	b := r.buckets[of]
	if b == nil {
		b = &bucket{byNode: r.byNode}
		r.buckets[of] = b
	}
	return b
}

// best returns the best node, nil when none fits. Weigh returns those of the groups of
// nodes that are admitted, with what comparison adds to them.
func (r *ranking) best(weigh func([]profile.Group) ([]profile.Group, error)) (*framework.NodeInfo, error) {
	groups := r.groups[:0]
	for of, b := range r.buckets {
		groups = append(groups, profile.Group{Node: r.byNode[b.heap[0]].node, Size: len(b.heap), Raw: of.raw})
	}
	r.groups = groups
	groups, err := weigh(groups)
	if err != nil {
		return nil, err
	}
	var best *ranked
	var most int64
	for i := range groups {
		top := &r.byNode[groups[i].Node.Index]
		if total := top.total + groups[i].Added; best == nil || total > most || total == most && top.tie < best.tie {
			best, most = top, total
		}
	}
	if best == nil {
		return nil, nil
	}
	return best.node, nil
}

// drop takes out a node that does not fit any more.
func (r *ranking) drop(n *framework.NodeInfo) {
	if n.Index < len(r.byNode) {
		if e := &r.byNode[n.Index]; e.node != nil && e.at >= 0 {
			r.remove(e)
		}
	}
}

func (r *ranking) remove(e *ranked) {
	b := r.buckets[e.band]
	if heap.Remove(b, int(e.at)); len(b.heap) == 0 {
		delete(r.buckets, e.band)
	}
}

// restore undoes drop for a node whose score has not changed.
func (r *ranking) restore(n *framework.NodeInfo) {
	heap.Push(r.bucket(r.byNode[n.Index].band), int32(n.Index))
}

// update gives a node new scores besides its relative one; false when it is unknown.
func (r *ranking) update(n *framework.NodeInfo, score int64, of band, tie uint64) bool {
	if n.Index >= len(r.byNode) || r.byNode[n.Index].node == nil {
		return false
	}
	e := &r.byNode[n.Index]
	if e.at >= 0 && e.band != of {
		r.remove(e)
	}
	e.total, e.band, e.tie = score+e.relative, of, tie
	if b := r.bucket(of); e.at < 0 {
		heap.Push(b, int32(n.Index))
	} else {
		heap.Fix(b, int(e.at))
	}
	return true
}

func (r *ranking) insert(n *framework.NodeInfo, score int64, of band, tie uint64) {
	r.byNode[n.Index] = ranked{node: n, total: score, band: of, tie: tie}
	heap.Push(r.bucket(of), int32(n.Index))
}

// bucket is a heap of nodes, the best first. It is not empty but while it changes.
type bucket struct {
	byNode []ranked // the ranking's
	heap   []int32  // positions in byNode
}

func (b *bucket) Len() int { return len(b.heap) }

func (b *bucket) Less(i, j int) bool {
	x, y := &b.byNode[b.heap[i]], &b.byNode[b.heap[j]]
	if x.total != y.total {
		return x.total > y.total
	}
	return x.tie < y.tie
}

func (b *bucket) Swap(i, j int) {
	b.heap[i], b.heap[j] = b.heap[j], b.heap[i]
	b.byNode[b.heap[i]].at, b.byNode[b.heap[j]].at = int32(i), int32(j)
}

func (b *bucket) Push(x any) {
	node := x.(int32)
	b.byNode[node].at = int32(len(b.heap))
	b.heap = append(b.heap, node)
}

func (b *bucket) Pop() any {
	last := len(b.heap) - 1
	node := b.heap[last]
	b.heap = b.heap[:last]
	b.byNode[node].at = -1
	return node
}
