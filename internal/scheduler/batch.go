package scheduler

import (
	"cmp"
	"context"
	"slices"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

// Pods from one template get the same answer from every plugin, except about the
// nodes that changed since. So the nodes that fit such a pod are kept, ordered by
// score; for the next one only changed nodes are asked about again, which makes a
// cycle cost O(log nodes). It applies while every plugin says that its answer
// about a node depends on that node and the batch's signature alone
// (framework.Equivalence, framework.Signer): no affinity over domains of several
// nodes. Spreading pods over such domains is asked about one node of each class
// (framework.Classifier), and what a plugin makes of the range of all scores is
// computed from the distinct ones (framework.RangeNormalizer). (After KEP-5598,
// which reuses a score list for at most half a second.)
//
// Nodes that are promised to others are not told apart in the order; whether the
// pod fits beside those is asked of the best node only, and then of the next.
type batch struct {
	state      *framework.CycleState
	generation int64 // of the snapshot that the order is right for
	layout     int64 // of the snapshot's nodes
	images     int64
	signed     bool // by plugins, for which each pod has a state of its own
	relative   bool // comparison between nodes is part of the scores
	order      ranking
	classes    classes
	// nowhere is why no node fits, if so; its rejections are of all nodes, by index.
	nowhere *framework.Diagnosis
	seen    int // pods that asked while there was no order
	used    int64
}

// fromBatch answers for a pod that is like an earlier one: with a node, or with
// none and why in d. It has no answer (false) for other pods.
func (s *Scheduler) fromBatch(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (*framework.NodeInfo, bool, error) {
	promised := s.queue.AnyNominated()
	if len(s.snapshot.Nodes) < minNodesToFind || pod.Pod.Spec.NodeName != "" || promised && s.queue.NominationOf(pod.Pod.UID) != "" || !p.Local(pod) {
		return nil, false, nil
	}
	b, evicted := s.batches.of(p, pod, max(fewBatches, maxRanked/len(s.snapshot.Nodes)))
	for range evicted {
		s.flushed(p.SchedulerName, flushIncompatible)
	}
	if b.state == nil || b.layout != s.snapshot.LayoutGeneration || b.images != s.snapshot.ImageGeneration {
		if b.state != nil {
			s.flushed(p.SchedulerName, flushNodeMissing)
			b.state = nil
		}
		if b.seen++; b.seen < worthwhile(p.Percentage, len(s.snapshot.Nodes)) {
			return nil, false, nil
		}
		if ok, err := s.rank(ctx, p, pod, b); !ok || err != nil {
			return nil, false, err
		}
	} else if ok, err := s.rerank(ctx, p, pod, b); !ok || err != nil {
		return nil, false, err
	}
	if promised && len(b.order.buckets) > 1 {
		return nil, false, nil // the range of scores depends on what the promises leave
	}
	sampled := state.Sampled
	*state = *b.state
	state.Sampled = sampled
	best, err := s.bestOf(ctx, p, state, pod, b, promised)
	if best != nil || err != nil {
		return best, true, err
	}
	if b.nowhere == nil || promised {
		return nil, false, nil // the full course tells why
	}
	*d = *b.nowhere.Copy()
	return nil, true, nil
}

// bestOf returns the best node of a batch; of those promised to others one where the
// pod has room beside them.
func (s *Scheduler) bestOf(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.PodInfo, b *batch, promised bool) (*framework.NodeInfo, error) {
	weigh := func(groups []profile.Group) ([]profile.Group, error) {
		if b.classes.name == nil && len(groups) < 2 {
			return groups, nil // there is nothing to compare
		}
		groups, err := p.Open(ctx, state, pod, groups)
		if err != nil {
			return nil, err
		}
		return groups, p.Weigh(ctx, state, pod, groups)
	}
	if !promised {
		return b.order.best(weigh)
	}
	var taken []*framework.NodeInfo
	defer func() {
		for _, n := range taken {
			b.order.restore(n)
		}
	}()
	for {
		best, err := b.order.best(weigh)
		if best == nil || err != nil {
			return nil, err
		}
		_, status := p.FilterWithNominated(ctx, state, pod, best)
		if status == nil {
			return best, nil
		}
		if !status.IsRejected() {
			return nil, status.Err()
		}
		b.order.drop(best)
		taken = append(taken, best)
	}
}

// rank asks about all nodes; false when the pod is none for a batch.
func (s *Scheduler) rank(ctx context.Context, p *profile.Profile, pod *framework.PodInfo, b *batch) (bool, error) {
	b.state, b.seen = nil, 0
	state := &framework.CycleState{}
	names, status := p.PreFilter(ctx, state, pod, &framework.Diagnosis{})
	if status != nil || names != nil {
		return false, nil
	}
	b.classes = classes{name: p.Classify(state, pod)}
	asked := state
	if b.classes.name != nil {
		asked = p.Apart(state)
	}
	nodes := s.snapshot.Nodes
	d := &framework.Diagnosis{AllNodes: len(nodes), Rejections: make([]framework.Rejection, len(nodes))}
	began := s.clock.Now()
	s.inParallel(filtering, len(nodes), func(i int) {
		plugin, status := p.FilterBy(ctx, asked, pod, nodes[i])
		d.Rejections[i] = framework.Rejection{Node: nodes[i], Name: nodes[i].Name(), Plugin: plugin, Status: status}
	})
	var fits []*framework.NodeInfo
	var rejected map[string]int
	for i := range d.Rejections {
		if r := &d.Rejections[i]; r.Status != nil {
			rejected = counted(rejected, r.Plugin)
		}
	}
	p.Filtered(asked, len(nodes), rejected)
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
		if b.classes.name != nil {
			b.refuse() // d lacks what the plugin that goes by classes has against nodes
			return false, nil
		}
		b.nowhere = d
		b.rightFor(s.snapshot, state)
		return true, nil
	}
	scores, err := p.Score(ctx, asked, pod, fits, s.each)
	if err != nil {
		return false, err
	}
	b.order = newRanking(len(nodes), fits, scores, &b.classes, s.random.Uint64)
	b.relative = scores.Relative != nil
	asked.SkipFilter = state.SkipFilter
	b.rightFor(s.snapshot, asked)
	return b.usable(p), nil
}

const (
	// maxBuckets are looked at for a pod with less work than a search.
	maxBuckets = 1024
	// refusedFor so many pods no new order is made after one that was of no use.
	refusedFor = 64
)

// usable tells whether the order is of use, and gives it up if not: with too many
// buckets, or when scores compare nodes of which some may not be admitted.
func (b *batch) usable(p *profile.Profile) bool {
	if len(b.order.buckets) <= maxBuckets && (b.classes.name == nil || !b.relative || p.OpensAll(b.state)) {
		return true
	}
	b.refuse()
	return false
}

func (b *batch) refuse() { b.state, b.seen = nil, -refusedFor }

func (b *batch) rightFor(now *framework.Snapshot, state *framework.CycleState) {
	b.state, b.generation, b.layout, b.images = state, now.Generation, now.LayoutGeneration, now.ImageGeneration
}

// rerank asks about the nodes that changed; false when it must be done from the start.
func (s *Scheduler) rerank(ctx context.Context, p *profile.Profile, pod *framework.PodInfo, b *batch) (bool, error) {
	changed, known := s.cache.ChangedSince(b.generation)
	if !known {
		return s.rankAgain(ctx, p, pod, b)
	}
	if b.signed {
		state := b.state.Renewed()
		if !p.Renew(ctx, state, pod) {
			return false, nil
		}
		b.state, b.classes.name = state, p.Classify(state, pod)
	}
	state := b.state
	if b.classes.name != nil {
		state = p.Apart(state)
	}
	asked, rejected := 0, map[string]int(nil)
	defer func(state *framework.CycleState) {
		p.Filtered(state, asked, rejected)
		if asked > 0 {
			s.metrics.rescores.WithLabelValues(p.SchedulerName).Inc()
		}
	}(state)
	own := false // the account of the nodes, which may have been handed out
	for _, n := range changed {
		if n.Generation <= b.generation || n.Node == nil || s.snapshot.ByName[n.Node.Name] != n {
			continue
		}
		if n.TopologyGeneration > b.generation && (b.relative || len(n.PreferNoSchedule) > 0) {
			return s.rankAgain(ctx, p, pod, b) // it compares differently with all others
		}
		plugin, status := p.FilterBy(ctx, state, pod, n)
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
			return s.rankAgain(ctx, p, pod, b) // a first node fits: what scores compare is not known yet
		}
		score, err := p.ScoreAlone(ctx, state, pod, n)
		raw, failed := p.ScoreRaw(ctx, state, pod, n)
		if err = cmp.Or(err, failed); err != nil {
			return false, err
		}
		of := band{class: b.classes.number(n), raw: raw}
		if !b.order.update(n, score, of, s.random.Uint64()) {
			if b.relative {
				return s.rankAgain(ctx, p, pod, b) // it was not compared yet
			}
			b.order.insert(n, score, of, s.random.Uint64())
		}
	}
	b.generation = s.snapshot.Generation
	return b.usable(p), nil
}

// rankAgain is rank for a batch whose order is of no use any more.
func (s *Scheduler) rankAgain(ctx context.Context, p *profile.Profile, pod *framework.PodInfo, b *batch) (bool, error) {
	s.flushed(p.SchedulerName, flushExpired)
	return s.rank(ctx, p, pod, b)
}
