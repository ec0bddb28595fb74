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
	topology   int64
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
	maxBatches = 16
	// worthwhile: a full order is made for the second pod with a signature.
	worthwhile = 2
)

// fromBatch answers for a pod that is like an earlier one: with a node, or with
// none and why in d. It has no answer (false) for other pods.
func (s *Scheduler) fromBatch(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (*framework.NodeInfo, bool, error) {
	if len(s.snapshot.Nodes) < minNodesToFind || s.queue.AnyNominated() || pod.Pod.Spec.NodeName != "" || !p.Local(pod) {
		return nil, false, nil
	}
	b := s.batches.of(pod)
	if b.state == nil || b.topology != s.snapshot.TopologyGeneration {
		if b.seen++; b.seen < worthwhile {
			return nil, false, nil
		}
		if ok, err := s.rank(ctx, p, pod, b); !ok || err != nil {
			return nil, false, err
		}
	} else if ok, err := s.rerank(ctx, p, pod, b); !ok || err != nil {
		return nil, false, err
	}
	*state = *b.state
	if best := b.order.best(); best != nil {
		return best.node, true, nil
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
	s.inParallel(len(nodes), func(i int) {
		plugin, status := p.FilterBy(ctx, state, pod, nodes[i])
		d.Rejections[i] = framework.Rejection{Node: nodes[i], Name: nodes[i].Name(), Plugin: plugin, Status: status}
	})
	var fits []*framework.NodeInfo
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
	b.nowhere, b.order = nil, ranking{byNode: map[*framework.NodeInfo]*ranked{}}
	if len(fits) == 0 {
		b.nowhere = d
		b.state, b.generation, b.topology = state, s.snapshot.Generation, s.snapshot.TopologyGeneration
		return true, nil
	}
	scores, err := p.Score(ctx, state, pod, fits, s.each)
	if err != nil {
		return false, err
	}
	b.order = newRanking(fits, scores, s.random.Uint64)
	b.relative = scores.Relative != nil
	b.state, b.generation, b.topology = state, s.snapshot.Generation, s.snapshot.TopologyGeneration
	return true, nil
}

// rerank asks about the nodes that changed; false when it must be done from the start.
func (s *Scheduler) rerank(ctx context.Context, p *profile.Profile, pod *framework.PodInfo, b *batch) (bool, error) {
	changed, known := s.cache.ChangedSince(b.generation)
	if !known {
		return s.rank(ctx, p, pod, b)
	}
	for _, n := range changed {
		if n.Generation <= b.generation || n.Node == nil || s.snapshot.ByName[n.Node.Name] != n {
			continue
		}
		plugin, status := p.FilterBy(ctx, b.state, pod, n)
		if status.Code() == framework.Error {
			return false, status.Err()
		}
		if status != nil {
			b.order.drop(n)
			if b.nowhere != nil {
				b.nowhere = b.nowhere.Revised(n.Index, framework.Rejection{Node: n, Name: n.Name(), Plugin: plugin, Status: status})
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

// of returns the batch of pods like this one.
func (bs *batches) of(pod *framework.PodInfo) *batch {
	bs.clock++
	bs.buffer = appendSignature(bs.buffer[:0], pod)
	b := bs.bySignature[string(bs.buffer)]
	if b == nil {
		if bs.bySignature == nil {
			bs.bySignature = map[string]*batch{}
		}
		bs.evict()
		b = &batch{}
		bs.bySignature[string(bs.buffer)] = b
	}
	b.used = bs.clock
	return b
}

func (bs *batches) evict() {
	if len(bs.bySignature) < maxBatches {
		return
	}
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
	entries []*ranked
	byNode  map[*framework.NodeInfo]*ranked
}

type ranked struct {
	node     *framework.NodeInfo
	total    int64
	relative int64
	tie      uint64
	at       int // in entries; -1: does not fit now
}

func newRanking(nodes []*framework.NodeInfo, scores *profile.Scores, chance func() uint64) ranking {
	r := ranking{byNode: make(map[*framework.NodeInfo]*ranked, len(nodes))}
	for i, n := range nodes {
		e := &ranked{node: n, total: scores.Total[i], tie: chance(), at: i}
		if scores.Relative != nil {
			e.relative = scores.Relative[i]
		}
		r.entries = append(r.entries, e)
		r.byNode[n] = e
	}
	heap.Init(&r)
	return r
}

func (r *ranking) best() *ranked {
	if len(r.entries) == 0 {
		return nil
	}
	return r.entries[0]
}

func (r *ranking) drop(n *framework.NodeInfo) {
	if e := r.byNode[n]; e != nil && e.at >= 0 {
		heap.Remove(r, e.at)
	}
}

// update gives a node a new score besides its relative one; false when it is unknown.
func (r *ranking) update(n *framework.NodeInfo, score int64, tie uint64) bool {
	e := r.byNode[n]
	if e == nil {
		return false
	}
	e.total, e.tie = score+e.relative, tie
	if e.at < 0 {
		heap.Push(r, e)
	} else {
		heap.Fix(r, e.at)
	}
	return true
}

func (r *ranking) insert(n *framework.NodeInfo, score int64, tie uint64) {
	e := &ranked{node: n, total: score, tie: tie}
	r.byNode[n] = e
	heap.Push(r, e)
}

func (r *ranking) Len() int { return len(r.entries) }

func (r *ranking) Less(i, j int) bool {
	a, b := r.entries[i], r.entries[j]
	if a.total != b.total {
		return a.total > b.total
	}
	return a.tie < b.tie
}

func (r *ranking) Swap(i, j int) {
	r.entries[i], r.entries[j] = r.entries[j], r.entries[i]
	r.entries[i].at, r.entries[j].at = i, j
}

func (r *ranking) Push(x any) {
	e := x.(*ranked)
	e.at = len(r.entries)
	r.entries = append(r.entries, e)
}

func (r *ranking) Pop() any {
	last := len(r.entries) - 1
	e := r.entries[last]
	r.entries[last] = nil
	r.entries = r.entries[:last]
	e.at = -1
	return e
}
