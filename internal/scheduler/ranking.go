package scheduler

import (
	"container/heap"
	"maps"
	"slices"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

// ranking has the nodes that fit, the best first; equal ones by chance. Nodes with
// the same score of the plugin that normalizes by range are in one bucket: how much
// that adds is the same for all of them, and is told when the best is asked for.
type ranking struct {
	byNode  []ranked // by index of the node
	buckets map[int64]*bucket
}

type ranked struct {
	node     *framework.NodeInfo // nil: was not compared yet
	total    int64               // without what is normalized by range
	relative int64
	raw      int64 // the score to be normalized by range
	tie      uint64
	at       int32 // in the bucket; -1: does not fit now
}

func newRanking(all int, nodes []*framework.NodeInfo, scores *profile.Scores, chance func() uint64) ranking {
	r := ranking{byNode: make([]ranked, all), buckets: map[int64]*bucket{}}
	for i, n := range nodes {
		e := ranked{node: n, total: scores.Total[i], tie: chance()}
		if scores.Relative != nil {
			e.relative = scores.Relative[i]
		}
		if scores.Raw != nil {
			e.raw = scores.Raw[i]
			e.total -= scores.Ranged[i]
		}
		b := r.bucket(e.raw)
		e.at = int32(len(b.heap))
		r.byNode[n.Index] = e
		b.heap = append(b.heap, int32(n.Index))
	}
	for _, b := range r.buckets {
		heap.Init(b)
	}
	return r
}

// bucket returns that of nodes with a raw score.
func (r *ranking) bucket(raw int64) *bucket {
	b := r.buckets[raw]
	if b == nil {
		b = &bucket{byNode: r.byNode}
		r.buckets[raw] = b
	}
	return b
}

// best returns the best node, nil when none fits. Normalize turns raw scores into what
// they add; it is called when there are several.
func (r *ranking) best(normalize func(raw []int64) error) (*framework.NodeInfo, error) {
	var raw []int64
	if len(r.buckets) > 1 {
		raw = slices.Collect(maps.Keys(r.buckets))
	}
	added := slices.Clone(raw)
	if len(added) > 0 {
		if err := normalize(added); err != nil {
			return nil, err
		}
	} else {
		for only := range r.buckets {
			raw, added = append(raw, only), append(added, 0)
		}
	}
	var best *ranked
	var most int64
	for i := range raw {
		top := &r.byNode[r.buckets[raw[i]].heap[0]]
		if total := top.total + added[i]; best == nil || total > most || total == most && top.tie < best.tie {
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
	b := r.buckets[e.raw]
	if heap.Remove(b, int(e.at)); len(b.heap) == 0 {
		delete(r.buckets, e.raw)
	}
}

// restore undoes drop for a node whose score has not changed.
func (r *ranking) restore(n *framework.NodeInfo) {
	heap.Push(r.bucket(r.byNode[n.Index].raw), int32(n.Index))
}

// update gives a node new scores besides its relative one; false when it is unknown.
func (r *ranking) update(n *framework.NodeInfo, score, raw int64, tie uint64) bool {
	if n.Index >= len(r.byNode) || r.byNode[n.Index].node == nil {
		return false
	}
	e := &r.byNode[n.Index]
	if e.at >= 0 && e.raw != raw {
		r.remove(e)
	}
	e.total, e.raw, e.tie = score+e.relative, raw, tie
	if b := r.bucket(raw); e.at < 0 {
		heap.Push(b, int32(n.Index))
	} else {
		heap.Fix(b, int(e.at))
	}
	return true
}

func (r *ranking) insert(n *framework.NodeInfo, score, raw int64, tie uint64) {
	r.byNode[n.Index] = ranked{node: n, total: score, raw: raw, tie: tie}
	heap.Push(r.bucket(raw), int32(n.Index))
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
