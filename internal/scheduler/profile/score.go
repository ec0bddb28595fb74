package profile

import (
	"context"
	"fmt"
	"time"

	"proa/internal/scheduler/framework"
)

// Scores are what the plugins think of some nodes.
type Scores struct {
	Nodes []*framework.NodeInfo
	Total []int64 // weighted sum over plugins, by position in Nodes
	// Relative is the part of Total that normalizing plugins gave by comparing
	// the nodes; nil when there is none.
	Relative []int64
	// Ranged is the part of Total that came from a framework.RangeNormalizer, which is
	// not in Relative, and Raw what its scores were before; nil when there is none.
	Ranged, Raw []int64
}

// Score ranks nodes that fit. State may name plugins that are to have no say.
func (p *Profile) Score(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, nodes []*framework.NodeInfo, each Each) (scores *Scores, failed error) {
	if err := p.prepareScore(ctx, state, pod, nodes); err != nil {
		return nil, err
	}
	defer func(began time.Time) { p.timed(timedScore, began, framework.AsStatus(failed)) }(p.clock.Now())
	found := &Scores{Nodes: nodes, Total: make([]int64, len(nodes))}
	raw := make([]int64, len(nodes))
	for i := range p.score {
		x := &p.score[i]
		if state.SkipScore&x.bit != 0 {
			continue
		}
		if x == p.ranged {
			found.Raw = make([]int64, len(nodes))
		}
		if err := p.scoreWith(ctx, x, state, pod, nodes, raw, found.Raw, each); err != nil {
			return nil, err
		}
		of := found.partOf(x, p.ranged)
		for n := range raw {
			found.Total[n] += raw[n] * x.weight
			if of != nil {
				of[n] += raw[n] * x.weight
			}
		}
	}
	return found, nil
}

// partOf is where the scores of a plugin are counted besides Total, nil for nowhere.
func (s *Scores) partOf(x, ranged *at[framework.ScorePlugin]) []int64 {
	if x == ranged {
		s.Ranged = make([]int64, len(s.Nodes))
		return s.Ranged
	}
	if _, relative := x.plugin.(framework.ScoreNormalizer); !relative {
		return nil
	}
	if s.Relative == nil {
		s.Relative = make([]int64, len(s.Nodes))
	}
	return s.Relative
}

// prepareScore runs the PreScore plugins.
func (p *Profile) prepareScore(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, nodes []*framework.NodeInfo) (failed error) {
	defer func(began time.Time) { p.timed(timedPreScore, began, framework.AsStatus(failed)) }(p.clock.Now())
	for _, x := range p.preScore {
		if state.SkipScore&x.bit != 0 {
			continue
		}
		s := p.call(state, timedPreScore, x.plugin, func() *framework.Status { return x.plugin.PreScore(ctx, state, pod, nodes) })
		if s.IsSkip() {
			state.SkipScore |= x.bit
			continue
		}
		if x.calls.Add(1); !s.IsSuccess() {
			return fmt.Errorf("running PreScore plugin %q: %w", x.plugin.Name(), s.Err())
		}
	}
	return nil
}

// Each calls f for 0 to n-1, possibly in parallel, and returns the first error.
type Each func(n int, f func(i int) error) error

// scoreWith leaves the scores in raw, and what they were before they were normalized
// in before, if that is not nil and the plugin is the profile's ranged one.
func (p *Profile) scoreWith(ctx context.Context, x *at[framework.ScorePlugin], state *framework.CycleState, pod *framework.PodInfo, nodes []*framework.NodeInfo, raw, before []int64, each Each) error {
	name := x.plugin.Name()
	x.calls.Add(float64(len(nodes)))
	err := each(len(nodes), func(i int) error {
		var s *framework.Status
		if state.Sampled {
			s = p.call(state, timedScore, x.plugin, func() (s *framework.Status) {
				raw[i], s = x.plugin.Score(ctx, state, pod, nodes[i])
				return s
			})
		} else {
			raw[i], s = x.plugin.Score(ctx, state, pod, nodes[i])
		}
		if !s.IsSuccess() {
			return fmt.Errorf("plugin %q failed with: %w", name, s.Err())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("running Score plugins: %w", err)
	}
	if x == p.ranged {
		copy(before, raw)
	}
	if normal, ok := x.plugin.(framework.ScoreNormalizer); ok {
		s := p.call(state, timedNormalize, normal, func() *framework.Status { return normal.NormalizeScore(ctx, state, pod, nodes, raw) })
		if !s.IsSuccess() {
			return fmt.Errorf("running Normalize on Score plugins: plugin %q failed with: %w", name, s.Err())
		}
	}
	for i, v := range raw {
		if v < 0 || v > framework.MaxNodeScore {
			return fmt.Errorf("plugin %q returns an invalid score %d for node %s, it should be in the range of [0, %d] after normalizing",
				name, v, nodes[i].Name(), framework.MaxNodeScore)
		}
	}
	return nil
}

// ScoreAlone is the part of a node's score that does not come from comparison.
// State is that of an earlier Score.
func (p *Profile) ScoreAlone(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (int64, error) {
	var total int64
	for i := range p.score {
		x := &p.score[i]
		if state.SkipScore&x.bit != 0 {
			continue
		}
		if _, relative := x.plugin.(framework.ScoreNormalizer); relative {
			continue
		}
		x.calls.Add(1)
		v, s := x.plugin.Score(ctx, state, pod, node)
		if !s.IsSuccess() {
			return 0, fmt.Errorf("plugin %q failed with: %w", x.plugin.Name(), s.Err())
		}
		total += v * x.weight
	}
	return total, nil
}

// Renew makes the state of another pod with the same signature right for this one,
// as PreFilter and Score do; false when it is none that may go to any node.
func (p *Profile) Renew(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo) bool {
	names, status := p.PreFilter(ctx, state, pod, &framework.Diagnosis{})
	if status != nil || names != nil {
		return false
	}
	if p.ranged == nil || state.SkipScore&p.ranged.bit != 0 {
		return true
	}
	prepares, ok := p.ranged.plugin.(framework.PreScorePlugin)
	return !ok || prepares.PreScore(ctx, state, pod, nil).IsSuccess()
}

// ScoreRaw is the score of a node by the plugin that normalizes by range, before it
// does; 0 when there is none.
func (p *Profile) ScoreRaw(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (int64, error) {
	if p.ranged == nil || state.SkipScore&p.ranged.bit != 0 {
		return 0, nil
	}
	p.ranged.calls.Add(1)
	raw, s := p.ranged.plugin.Score(ctx, state, pod, node)
	if !s.IsSuccess() {
		return 0, fmt.Errorf("plugin %q failed with: %w", p.ranged.plugin.Name(), s.Err())
	}
	return raw, nil
}

// Sign appends what the plugins' answers for a local pod depend on besides its spec.
func (p *Profile) Sign(to []byte, pod *framework.PodInfo) []byte {
	for _, x := range p.signers {
		to = x.Sign(to, pod)
	}
	return to
}

// Local tells whether, for this pod, every plugin's answer about a node depends
// on that node and what Sign says alone, so that a cycle for an identical pod may
// start from the results of this one.
func (p *Profile) Local(pod *framework.PodInfo) bool {
	for _, plugin := range p.all {
		if x, ok := plugin.(framework.Equivalence); ok {
			if !x.Local(pod) {
				return false
			}
			continue
		}
		if isFilterOrScore(plugin) {
			return false
		}
	}
	return true
}

func isFilterOrScore(plugin framework.Plugin) bool {
	if _, ok := plugin.(framework.FilterPlugin); ok {
		return true
	}
	_, ok := plugin.(framework.ScorePlugin)
	return ok
}
