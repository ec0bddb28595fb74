package interpodaffinity

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/scheduler/framework"
)

// attraction of domains, by topology key and value; negative keeps away.
type attraction map[pair]int64

func (a attraction) Clone() framework.StateData { return a }

const scoreKey = Name + "/score"

// weighed are the pod's own preferences: counts by domain times a weight.
type weighed struct {
	counts domains
	key    string
	weight int64
}

type scoring struct {
	own      []weighed
	existing attraction
}

func (s *scoring) Clone() framework.StateData { return s }

// PreScore sums up what draws the pod to a domain or keeps it away.
func (p *Plugin) PreScore(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	prefers := len(pod.PreferredAffinity)+len(pod.PreferredAntiAffinity) > 0
	s := &scoring{existing: attraction{}}
	if prefers || !p.ignore {
		s.existing = p.attractionOfOthers(pod)
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
			own = append(own, weighed{counts, t.TopologyKey, sign * terms[i].Weight})
		}
	}
	return own
}

func (p *Plugin) attractionOfOthers(pod *framework.PodInfo) attraction {
	a := attraction{}
	namespace := p.labelsOf(pod.Pod.Namespace)
	for _, n := range p.handle.Snapshot.WithAffinity {
		for _, other := range n.WithAffinity {
			for i := range other.RequiredAffinity {
				a.add(&other.RequiredAffinity[i], p.hardWeight, pod, namespace, n)
			}
			for i := range other.PreferredAffinity {
				a.add(&other.PreferredAffinity[i].AffinityTerm, other.PreferredAffinity[i].Weight, pod, namespace, n)
			}
			for i := range other.PreferredAntiAffinity {
				a.add(&other.PreferredAntiAffinity[i].AffinityTerm, -other.PreferredAntiAffinity[i].Weight, pod, namespace, n)
			}
		}
	}
	return a
}

func (a attraction) add(t *framework.AffinityTerm, weight int64, pod *framework.PodInfo, namespace labels.Set, n *framework.NodeInfo) {
	if value, ok := n.Node.Labels[t.TopologyKey]; ok && weight != 0 && t.Matches(pod.Pod, namespace) {
		a[pair{t.TopologyKey, value}] += weight
	}
}

// Score sums the attraction of the node's domains.
func (p *Plugin) Score(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	s, ok := framework.Read[*scoring](cs, scoreKey)
	if !ok {
		return 0, nil
	}
	var score int64
	for i := range s.own {
		if value, ok := node.Node.Labels[s.own[i].key]; ok {
			score += s.own[i].weight * int64(s.own[i].counts.count(value))
		}
	}
	if len(s.existing) <= len(node.Node.Labels) {
		for k, v := range s.existing {
			if value, ok := node.Node.Labels[k.key]; ok && value == k.value {
				score += v
			}
		}
		return score, nil
	}
	for key, value := range node.Node.Labels {
		score += s.existing[pair{key, value}]
	}
	return score, nil
}

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
