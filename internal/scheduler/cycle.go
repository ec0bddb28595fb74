package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

var errNoNodes = errors.New("no nodes available to schedule pods")

// schedule is the cycle of one pod: find a node, take it, hand over to the binding.
func (s *Scheduler) schedule(ctx context.Context, pod *framework.QueuedPodInfo) {
	p := s.profiles[pod.Pod.Spec.SchedulerName]
	if pod.Pod.DeletionTimestamp != nil {
		s.event(pod.Pod, "Warning", "FailedScheduling", "Scheduling", fmt.Sprintf("skip schedule deleting pod: %v/%v", pod.Pod.Namespace, pod.Pod.Name))
		s.queue.Delete(pod.Pod.UID)
		return
	}
	pod.RejectedBy, pod.PendingOn = nil, nil
	began := s.clock.Now()
	s.refresh()
	state := &framework.CycleState{Sampled: s.sample.Intn(100) < sampledPercent}
	d := &framework.Diagnosis{AllNodes: len(s.snapshot.Nodes)}
	node, err := s.findNode(ctx, p, state, pod.PodInfo, d)
	s.metrics.algorithm.WithLabelValues().Observe(s.clock.Since(began).Seconds())
	switch {
	case err != nil:
		s.fail(ctx, pod, failure{began: began, err: err})
	case node == nil:
		s.noRoom(ctx, p, state, pod, d, began)
	default:
		s.take(ctx, p, state, pod, node, began)
	}
}

// refresh takes in what has changed since the last cycle.
func (s *Scheduler) refresh() {
	s.cache.Refresh()
	nodes, pods, assumed := s.cache.Sizes()
	s.metrics.nodes.Store(int64(nodes))
	s.metrics.pods.Store(int64(pods))
	s.metrics.assumed.Store(int64(assumed))
}

// noRoom lets the PostFilter plugins make room.
func (s *Scheduler) noRoom(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.QueuedPodInfo, d *framework.Diagnosis, began time.Time) {
	f := failure{began: began, diagnosis: d, keepNomination: !p.HasPostFilter()}
	if p.HasPostFilter() {
		result, status := p.PostFilter(ctx, state, pod.PodInfo, d)
		if status.Code() == framework.Error {
			s.fail(ctx, pod, failure{began: began, err: status.Err()})
			return
		}
		d.PostFilter = status.Message()
		if result != nil {
			f.nominate, f.keepNomination = result.NominatedNode, result.KeepNomination
		}
	}
	pod.RejectedBy, pod.PendingOn = d.RejectedBy, d.PendingOn
	s.fail(ctx, pod, f)
}

// findNode returns the best node, nil when none fits.
func (s *Scheduler) findNode(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.PodInfo, d *framework.Diagnosis) (*framework.NodeInfo, error) {
	if len(s.snapshot.Nodes) == 0 {
		return nil, errNoNodes
	}
	extended := s.extended(pod.Pod)
	if !extended {
		began := s.clock.Now()
		node, known, err := s.fromBatch(ctx, p, state, pod, d)
		s.batched(p.SchedulerName, known, began)
		if known || err != nil {
			return node, err
		}
	}
	names, status := p.PreFilter(ctx, state, pod, d)
	switch {
	case status.IsRejected():
		return nil, nil
	case status != nil:
		return nil, status.Err()
	}
	if node, err := s.tryNominated(ctx, p, state, pod, names); node != nil || err != nil {
		return node, err
	}
	nodes := s.snapshot.Nodes
	if names != nil {
		nodes = s.named(names)
	}
	fits, err := s.filter(ctx, p, state, pod, nodes, d)
	if extended && err == nil {
		fits, err = s.filterOutside(ctx, pod, fits, d)
	}
	switch {
	case err != nil || len(fits) == 0:
		return nil, err
	case len(fits) == 1:
		return fits[0], nil
	}
	scores, err := p.Score(ctx, state, pod, fits, s.each)
	if err != nil {
		return nil, err
	}
	if extended {
		s.scoreOutside(ctx, pod, scores)
	}
	return s.choose(scores), nil
}

// named returns the nodes of names, in the order of the snapshot.
func (s *Scheduler) named(names map[string]struct{}) []*framework.NodeInfo {
	nodes := make([]*framework.NodeInfo, 0, len(names))
	if len(names) == 1 {
		for name := range names {
			if n := s.snapshot.ByName[name]; n != nil {
				nodes = append(nodes, n)
			}
		}
		return nodes
	}
	for _, n := range s.snapshot.Nodes {
		if _, ok := names[n.Name()]; ok {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// tryNominated looks first at the node that preemption made room on.
func (s *Scheduler) tryNominated(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.PodInfo, names map[string]struct{}) (*framework.NodeInfo, error) {
	nominated := s.queue.NominationOf(pod.Pod.UID)
	node := s.snapshot.ByName[nominated]
	if _, allowed := names[nominated]; node == nil || names != nil && !allowed {
		return nil, nil
	}
	_, status := p.FilterWithNominated(ctx, state, pod, node)
	switch {
	case status == nil:
		fits, err := s.filterOutside(ctx, pod, []*framework.NodeInfo{node}, &framework.Diagnosis{})
		if err != nil || len(fits) == 0 {
			return nil, err
		}
		return node, nil
	case status.IsRejected():
		return nil, nil
	}
	return nil, status.Err()
}

// choose picks one of the nodes with the highest score, by chance.
func (s *Scheduler) choose(scores *profile.Scores) *framework.NodeInfo {
	best, equal := 0, 1
	for i, score := range scores.Total {
		switch {
		case i == 0:
		case score > scores.Total[best]:
			best, equal = i, 1
		case score == scores.Total[best]:
			if equal++; s.random.Intn(equal) == 0 {
				best = i
			}
		}
	}
	return scores.Nodes[best]
}

// take assumes the pod on the node and sends it on to be bound.
func (s *Scheduler) take(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.QueuedPodInfo, node *framework.NodeInfo, began time.Time) {
	pl := &placement{profile: p, state: state, pod: pod, node: node.Name(), began: began}
	s.cache.Assume(pod.PodInfo, pl.node)
	if plugin, status := p.Reserve(ctx, state, pod.PodInfo, pl.node); status != nil {
		s.cache.Forget(pod.Pod.UID)
		s.rejected(ctx, pod, node, plugin, status, began)
		return
	}
	plugin, wait, status := s.permit(ctx, pl)
	if status != nil && !status.IsWait() {
		p.Unreserve(ctx, state, pod.PodInfo, pl.node)
		s.cache.Forget(pod.Pod.UID)
		s.rejected(ctx, pod, node, plugin, status, began)
		return
	}
	s.queue.Unnominate(pod.Pod.UID)
	if wait != nil || p.PreBindNeeded(state) {
		s.tasks.start(func(ctx context.Context) { s.prepareAndBind(ctx, pl, wait) })
		return
	}
	s.queue.Done(pod.Pod.UID)
	select {
	case s.bindings <- pl:
	case <-ctx.Done():
	}
}

// rejected: a plugin refused the chosen node after all.
func (s *Scheduler) rejected(ctx context.Context, pod *framework.QueuedPodInfo, node *framework.NodeInfo, plugin string, status *framework.Status, began time.Time) {
	if !status.IsRejected() {
		s.fail(ctx, pod, failure{began: began, err: status.Err()})
		return
	}
	d := &framework.Diagnosis{AllNodes: 1, Rejections: []framework.Rejection{{Node: node, Name: node.Name(), Plugin: plugin, Status: status}}}
	d.Blame(plugin, status)
	pod.RejectedBy, pod.PendingOn = d.RejectedBy, d.PendingOn
	s.fail(ctx, pod, failure{began: began, diagnosis: d, keepNomination: true})
}
