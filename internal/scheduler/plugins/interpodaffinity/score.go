package interpodaffinity

import (
	"context"

	"proa/internal/scheduler/framework"
)

const scoreKey = Name + "/score"

// weighed are the pod's own preferences: counts by domain times a weight.
type weighed struct {
	key    string // of the term
	counts domains
	weight int64
}

// drawn is what other pods' term does: their number by domain times a weight.
type drawn struct {
	group  *framework.TermGroup
	weight int64
}

type scoring struct {
	own      []weighed
	existing []drawn
}

func (s *scoring) Clone() framework.StateData { return s }

// PreScore sums up what draws the pod to a domain or keeps it away.
func (p *Plugin) PreScore(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	s := &scoring{}
	if prefers(pod) || !p.ignore {
		s.existing = p.drawnBy(pod)
	}
	s.own = append(p.weigh(pod.PreferredAffinity, 1), p.weigh(pod.PreferredAntiAffinity, -1)...)
	if len(s.own) == 0 && len(s.existing) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	cs.Write(scoreKey, s)
	return nil
}

func (p *Plugin) weigh(terms []framework.WeightedAffinityTerm, sign int64) []weighed {
	var own []weighed
	for i := range terms {
		t := p.resolveTerm(terms[i].AffinityTerm)
		counts := p.tally([]framework.AffinityTerm{t}, t.TopologyKey)
		if counts.any() {
			own = append(own, weighed{t.Key(), counts, sign * terms[i].Weight})
		}
	}
	return own
}

// drawnBy returns the other pods' terms that select the pod.
func (p *Plugin) drawnBy(pod *framework.PodInfo) []drawn {
	namespace := p.labelsOf(pod.Pod.Namespace)
	var found []drawn
	for _, g := range p.handle.Snapshot.TermGroups() {
		if weight := p.weightOf(g); weight != 0 && g.Term.Matches(pod.Pod, namespace) {
			found = append(found, drawn{g, weight})
		}
	}
	return found
}

// weightOf is how much each pod with a term draws those that it selects.
func (p *Plugin) weightOf(g *framework.TermGroup) int64 {
	switch g.Kind {
	case framework.RequiredAffinity:
		return p.hardWeight
	case framework.PreferredAffinity:
		return g.Weight
	case framework.PreferredAntiAffinity:
		return -g.Weight
	}
	return 0
}

// Score sums what draws the pod to the node's domains.
func (p *Plugin) Score(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	s, ok := framework.Read[*scoring](cs, scoreKey)
	if !ok {
		return 0, nil
	}
	var score int64
	for i := range s.own {
		count, _ := s.own[i].counts.at(node)
		score += s.own[i].weight * int64(count)
	}
	for i := range s.existing {
		score += s.existing[i].weight * int64(s.existing[i].group.At(node))
	}
	return score, nil
}

// NormalizesRange has scores of nodes kept from pod to pod: see framework.RangeNormalizer.
func (*Plugin) NormalizesRange() {}

// NormalizeScore maps the range of the scores to 0..MaxNodeScore.
func (p *Plugin) NormalizeScore(_ context.Context, _ *framework.CycleState, _ *framework.PodInfo, _ []*framework.NodeInfo, scores []int64) *framework.Status {
	if len(scores) == 0 {
		return nil
	}
	low, high := scores[0], scores[0]
	for _, s := range scores {
		low, high = min(low, s), max(high, s)
	}
	for i, s := range scores {
		scores[i] = 0
		if high > low {
			scores[i] = int64(float64(framework.MaxNodeScore) * (float64(s-low) / float64(high-low)))
		}
	}
	return nil
}
