package scheduler

import (
	"container/heap"
	"context"
	"encoding/binary"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

// Pods from one template get the same answer from every plugin, except about the
// nodes that changed since. So the nodes that fit such a pod are kept, ordered by
// score; for the next one only changed nodes are asked about again, which makes a
// cycle cost O(log nodes). It applies while every plugin says that its answer
// about a node depends on that node alone (framework.Equivalence): no pod
// affinity, spreading, volumes, nor nominated nodes. (After KEP-5598, which
// reuses a score list for at most half a second.)
type batch struct {
	state      *framework.CycleState
	generation int64 // of the snapshot that the order is right for
	layout     int64 // of the snapshot's nodes
	images     int64
	relative   bool // comparison between nodes is part of the scores
	order      ranking
	// nowhere is why no node fits, if so; its rejections are of all nodes, by index.
	nowhere *framework.Diagnosis
	seen    int // pods that asked while there was no order
	used    int64
}

// batches are the most recently used ones, by signature.
type batches struct {
	bySignature map[string]*batch
	clock       int64
	buffer      []byte
}

const (
	// fewBatches are kept in any case; more as long as their orders, of every node
	// each, have no more than maxRanked entries together.
	fewBatches = 8
	maxRanked  = 1 << 19
	// worthwhile: a full order is made for the second pod with a signature.
	worthwhile = 2
)

// fromBatch answers for a pod that is like an earlier one: with a node, or with
// none and why in d. It has no answer (false) for other pods.
func (s *Scheduler) fromBatch(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (*framework.NodeInfo, bool, error) {
	if len(s.snapshot.Nodes) < minNodesToFind || s.queue.AnyNominated() || pod.Pod.Spec.NodeName != "" || !p.Local(pod) {
		return nil, false, nil
	}
	b := s.batches.of(pod, max(fewBatches, maxRanked/len(s.snapshot.Nodes)))
	if b.state == nil || b.layout != s.snapshot.LayoutGeneration || b.images != s.snapshot.ImageGeneration {
		if b.seen++; b.seen < worthwhile {
			return nil, false, nil
		}
		if ok, err := s.rank(ctx, p, pod, b); !ok || err != nil {
			return nil, false, err
		}
	} else if ok, err := s.rerank(ctx, p, pod, b); !ok || err != nil {
		return nil, false, err
	}
	sampled := state.Sampled
	*state = *b.state
	state.Sampled = sampled
	if best := b.order.best(); best != nil {
		return best, true, nil
	}
	if b.nowhere == nil {
		return nil, false, nil // the full course tells why
	}
	*d = *b.nowhere.Copy()
	return nil, true, nil
}

// rank asks about all nodes; false when the pod is none for a batch.
func (s *Scheduler) rank(ctx context.Context, p *profile.Profile, pod *framework.PodInfo, b *batch) (bool, error) {
	b.state, b.seen = nil, 0
	state := &framework.CycleState{}
	names, status := p.PreFilter(ctx, state, pod, &framework.Diagnosis{})
	if status != nil || names != nil {
		return false, nil
	}
	nodes := s.snapshot.Nodes
	d := &framework.Diagnosis{AllNodes: len(nodes), Rejections: make([]framework.Rejection, len(nodes))}
	began := s.clock.Now()
	s.inParallel(filtering, len(nodes), func(i int) {
		plugin, status := p.FilterBy(ctx, state, pod, nodes[i])
		d.Rejections[i] = framework.Rejection{Node: nodes[i], Name: nodes[i].Name(), Plugin: plugin, Status: status}
	})
	var fits []*framework.NodeInfo
	var rejected map[string]int
	for i := range d.Rejections {
		if r := &d.Rejections[i]; r.Status != nil {
			rejected = counted(rejected, r.Plugin)
		}
	}
	p.Filtered(state, len(nodes), rejected)
	p.FilterTook(began, nil)
	for i := range d.Rejections {
		switch r := &d.Rejections[i]; {
		case r.Status == nil:
			fits = append(fits, r.Node)
		case !r.Status.IsRejected():
			return false, r.Status.Err()
		default:
			d.Blame(r.Plugin, r.Status)
		}
	}
	b.nowhere, b.order, b.relative = nil, ranking{}, false
	if len(fits) == 0 {
		b.nowhere = d
		b.rightFor(s.snapshot, state)
		return true, nil
	}
	scores, err := p.Score(ctx, state, pod, fits, s.each)
	if err != nil {
		return false, err
	}
	b.order = newRanking(len(nodes), fits, scores, s.random.Uint64)
	b.relative = scores.Relative != nil
	b.rightFor(s.snapshot, state)
	return true, nil
}

func (b *batch) rightFor(now *framework.Snapshot, state *framework.CycleState) {
	b.state, b.generation, b.layout, b.images = state, now.Generation, now.LayoutGeneration, now.ImageGeneration
}

// rerank asks about the nodes that changed; false when it must be done from the start.
func (s *Scheduler) rerank(ctx context.Context, p *profile.Profile, pod *framework.PodInfo, b *batch) (bool, error) {
	changed, known := s.cache.ChangedSince(b.generation)
	if !known {
		return s.rank(ctx, p, pod, b)
	}
	asked, rejected := 0, map[string]int(nil)
	defer func(state *framework.CycleState) { p.Filtered(state, asked, rejected) }(b.state)
	own := false // the account of the nodes, which may have been handed out
	for _, n := range changed {
		if n.Generation <= b.generation || n.Node == nil || s.snapshot.ByName[n.Node.Name] != n {
			continue
		}
		if n.TopologyGeneration > b.generation && (b.relative || len(n.PreferNoSchedule) > 0) {
			return s.rank(ctx, p, pod, b) // it compares differently with all others
		}
		plugin, status := p.FilterBy(ctx, b.state, pod, n)
		if asked++; status != nil {
			rejected = counted(rejected, plugin)
		}
		if status.Code() == framework.Error {
			return false, status.Err()
		}
		if status != nil {
			b.order.drop(n)
			if d := b.nowhere; d != nil && d.Rejections[n.Index].Status != status {
				if !own {
					d.Rejections, own = slices.Clone(d.Rejections), true
				}
				d.Rejections[n.Index] = framework.Rejection{Node: n, Name: n.Name(), Plugin: plugin, Status: status}
				d.Blame(plugin, status)
			}
			continue
		}
		if b.nowhere != nil {
			return s.rank(ctx, p, pod, b) // a first node fits: what scores compare is not known yet
		}
		score, err := p.ScoreAlone(ctx, b.state, pod, n)
		if err != nil {
			return false, err
		}
		if !b.order.update(n, score, s.random.Uint64()) {
			if b.relative {
				return s.rank(ctx, p, pod, b) // it was not compared yet
			}
			b.order.insert(n, score, s.random.Uint64())
		}
	}
	b.generation = s.snapshot.Generation
	return true, nil
}

// of returns the batch of pods like this one, and keeps at most so many.
func (bs *batches) of(pod *framework.PodInfo, most int) *batch {
	bs.clock++
	bs.buffer = appendSignature(bs.buffer[:0], pod)
	b := bs.bySignature[string(bs.buffer)]
	if b == nil {
		if bs.bySignature == nil {
			bs.bySignature = map[string]*batch{}
		}
		for len(bs.bySignature) >= most {
			bs.evict()
		}
		b = &batch{}
		bs.bySignature[string(bs.buffer)] = b
	}
	b.used = bs.clock
	return b
}

func (bs *batches) evict() {
	oldest, used := "", bs.clock
	for signature, b := range bs.bySignature {
		if b.used < used {
			oldest, used = signature, b.used
		}
	}
	delete(bs.bySignature, oldest)
}

// appendSignature writes all that local plugins look at in a pod.
func appendSignature(to []byte, pod *framework.PodInfo) []byte {
	text := func(s string) {
		to = binary.AppendUvarint(to, uint64(len(s)))
		to = append(to, s...)
	}
	number := func(n int64) { to = binary.AppendVarint(to, n) }
	spec := &pod.Pod.Spec
	text(spec.SchedulerName)
	r := &pod.Requests
	for _, n := range []int64{r.MilliCPU, r.Memory, r.EphemeralStorage, pod.CountedMilliCPU, pod.CountedMemory} {
		number(n)
	}
	number(int64(len(r.Scalar)))
	for _, scalar := range r.Scalar {
		text(string(scalar.Name))
		number(scalar.Value)
	}
	number(int64(len(spec.InitContainers)))
	number(int64(len(spec.Containers)))
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			text(list[i].Image)
		}
	}
	number(int64(len(pod.HostPorts)))
	for _, hp := range pod.HostPorts {
		text(hp.IP)
		text(string(hp.Protocol))
		number(int64(hp.Port))
	}
	number(int64(len(spec.NodeSelector)))
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		text(key)
		text(spec.NodeSelector[key])
	}
	number(int64(len(spec.Tolerations)))
	for i := range spec.Tolerations {
		t := &spec.Tolerations[i]
		text(t.Key)
		text(string(t.Operator))
		text(t.Value)
		text(string(t.Effect))
	}
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		text(spec.Affinity.NodeAffinity.String())
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil {
			text(v.String())
		}
	}
	return to
}

// ranking is a heap of nodes, the best first; equal ones by chance.
type ranking struct {
	byNode []ranked // by index of the node
	heap   []int32  // of those that fit: positions in byNode
}

type ranked struct {
	node     *framework.NodeInfo // nil: was not compared yet
	total    int64
	relative int64
	tie      uint64
	at       int32 // in heap; -1: does not fit now
}

func newRanking(all int, nodes []*framework.NodeInfo, scores *profile.Scores, chance func() uint64) ranking {
	r := ranking{byNode: make([]ranked, all), heap: make([]int32, len(nodes))}
	for i, n := range nodes {
		e := ranked{node: n, total: scores.Total[i], tie: chance(), at: int32(i)}
		if scores.Relative != nil {
			e.relative = scores.Relative[i]
		}
		r.byNode[n.Index] = e
		r.heap[i] = int32(n.Index)
	}
	heap.Init(&r)
	return r
}

// best returns the best node, nil when none fits.
func (r *ranking) best() *framework.NodeInfo {
	if len(r.heap) == 0 {
		return nil
	}
	return r.byNode[r.heap[0]].node
}

func (r *ranking) drop(n *framework.NodeInfo) {
	if n.Index < len(r.byNode) {
		if e := &r.byNode[n.Index]; e.node != nil && e.at >= 0 {
			heap.Remove(r, int(e.at))
		}
	}
}

// update gives a node a new score besides its relative one; false when it is unknown.
func (r *ranking) update(n *framework.NodeInfo, score int64, tie uint64) bool {
	if n.Index >= len(r.byNode) || r.byNode[n.Index].node == nil {
		return false
	}
	e := &r.byNode[n.Index]
	e.total, e.tie = score+e.relative, tie
	if e.at < 0 {
		heap.Push(r, int32(n.Index))
	} else {
		heap.Fix(r, int(e.at))
	}
	return true
}

func (r *ranking) insert(n *framework.NodeInfo, score int64, tie uint64) {
	r.byNode[n.Index] = ranked{node: n, total: score, tie: tie}
	heap.Push(r, int32(n.Index))
}

func (r *ranking) Len() int { return len(r.heap) }

func (r *ranking) Less(i, j int) bool {
	a, b := &r.byNode[r.heap[i]], &r.byNode[r.heap[j]]
	if a.total != b.total {
		return a.total > b.total
	}
	return a.tie < b.tie
}

func (r *ranking) Swap(i, j int) {
	r.heap[i], r.heap[j] = r.heap[j], r.heap[i]
	r.byNode[r.heap[i]].at, r.byNode[r.heap[j]].at = int32(i), int32(j)
}

func (r *ranking) Push(x any) {
	node := x.(int32)
	r.byNode[node].at = int32(len(r.heap))
	r.heap = append(r.heap, node)
}

func (r *ranking) Pop() any {
	last := len(r.heap) - 1
	node := r.heap[last]
	r.heap = r.heap[:last]
	r.byNode[node].at = -1
	return node
}
