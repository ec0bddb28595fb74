package profile

import (
	"context"
	"fmt"

	"proa/internal/scheduler/framework"
)

// classed is the profile's framework.Classifier.
type classed struct {
	framework.Classifier
	filter *at[framework.FilterPlugin] // nil when the profile does not have it filter
	score  *at[framework.ScorePlugin]  // nil when it does not have it score
}

func (p *Profile) findClassed() {
	for _, plugin := range p.all {
		x, ok := plugin.(framework.Classifier)
		if !ok {
			continue
		}
		p.classed = &classed{Classifier: x}
		for i := range p.filter {
			if p.filter[i].plugin.Name() == x.Name() {
				p.classed.filter = &p.filter[i]
			}
		}
		for i := range p.score {
			if p.score[i].plugin.Name() == x.Name() {
				p.classed.score = &p.score[i]
			}
		}
		return
	}
}

// Classify returns what names the class of a node for a pod, after PreFilter; nil when
// every plugin's answer depends on the node alone.
func (p *Profile) Classify(state *framework.CycleState, pod *framework.PodInfo) func(to []byte, node *framework.NodeInfo) []byte {
	if p.classed == nil {
		return nil
	}
	return p.classed.Classify(state, pod)
}

// Apart returns state with the plugin that goes by classes left out of FilterBy, Score
// and ScoreAlone: what it says of a node is asked by Open and Weigh.
func (p *Profile) Apart(state *framework.CycleState) *framework.CycleState {
	apart := *state
	if c := p.classed; c != nil && c.filter != nil {
		apart.SkipFilter |= c.filter.bit
	}
	if c := p.classed; c != nil && c.score != nil {
		apart.SkipScore |= c.score.bit
	}
	return &apart
}

// Group are nodes of one class and with one score to be normalized by range.
type Group struct {
	Node  *framework.NodeInfo // one of them
	Size  int
	Raw   int64 // that score
	Added int64 // what comparison adds to their totals
}

// OpensAll tells whether the plugin that goes by classes admits all nodes.
func (p *Profile) OpensAll(state *framework.CycleState) bool {
	c := p.classed
	return c == nil || c.filter == nil || state.SkipFilter&c.filter.bit != 0
}

// Open returns the groups whose nodes the plugin that goes by classes admits, in place.
func (p *Profile) Open(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, groups []Group) ([]Group, error) {
	if p.OpensAll(state) {
		return groups, nil
	}
	c := p.classed
	c.filter.calls.Add(float64(len(groups)))
	open := groups[:0]
	for _, g := range groups {
		switch s := p.filterWith(ctx, c.filter.plugin, state, pod, g.Node); {
		case s.IsSuccess():
			open = append(open, g)
		case !s.IsRejected():
			return nil, s.Err()
		}
	}
	return open, nil
}

// Weigh finds what comparison adds to the totals of groups, which are all that fit.
func (p *Profile) Weigh(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, groups []Group) error {
	raw := make([]int64, len(groups))
	if p.ranged != nil && state.SkipScore&p.ranged.bit == 0 {
		for i := range groups {
			raw[i] = groups[i].Raw
		}
		if err := p.normalize(ctx, p.ranged, state, pod, groups, raw); err != nil {
			return err
		}
	}
	if p.classed == nil || p.classed.score == nil {
		return nil
	}
	nodes, sizes := make([]*framework.NodeInfo, len(groups)), make([]int, len(groups))
	for i := range groups {
		nodes[i], sizes[i] = groups[i].Node, groups[i].Size
	}
	switch s := p.classed.PreScoreClasses(ctx, state, pod, nodes, sizes); {
	case s.IsSkip():
		return nil
	case !s.IsSuccess():
		return fmt.Errorf("running PreScore plugin %q: %w", p.classed.Name(), s.Err())
	}
	x := p.classed.score
	x.calls.Add(float64(len(groups)))
	for i, n := range nodes {
		var s *framework.Status
		if raw[i], s = x.plugin.Score(ctx, state, pod, n); !s.IsSuccess() {
			return fmt.Errorf("plugin %q failed with: %w", x.plugin.Name(), s.Err())
		}
	}
	return p.normalize(ctx, x, state, pod, groups, raw)
}

// normalize turns scores of groups into what they add to totals, and adds that.
func (p *Profile) normalize(ctx context.Context, x *at[framework.ScorePlugin], state *framework.CycleState, pod *framework.PodInfo, groups []Group, raw []int64) error {
	normal := x.plugin.(framework.ScoreNormalizer)
	if s := normal.NormalizeScore(ctx, state, pod, nil, raw); !s.IsSuccess() {
		return fmt.Errorf("running Normalize on Score plugins: plugin %q failed with: %w", normal.Name(), s.Err())
	}
	for i := range groups {
		groups[i].Added += raw[i] * x.weight
	}
	return nil
}
