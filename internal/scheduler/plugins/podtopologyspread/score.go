package podtopologyspread

import (
	"context"
	"math"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/framework"
)

const scoreKey = Name + "/score"

// wish is a constraint that should hold, with what a pod in a domain weighs.
type wish struct {
	constraint
	tally  *framework.Tally
	alone  bool // no two nodes share a domain; found out for classes of nodes only
	weight float64
}

type wishes struct {
	all     []wish
	allKeys bool // nodes without all of the keys are the worst
}

func (w *wishes) Clone() framework.StateData { return w }

// ignores tells whether a node lacks a key.
func (w *wishes) ignores(n *framework.NodeInfo) bool {
	if !w.allKeys {
		return false
	}
	for i := range w.all {
		if w.all[i].tally.Domain(n) >= 0 {
			continue // tallies only count nodes with all keys
		}
		if _, ok := n.Node.Labels[w.all[i].key]; !ok {
			return true
		}
	}
	return false
}

// PreScore counts, for the constraints that should hold. The more domains there
// are, the more a pod in one of them weighs.
func (p *Plugin) PreScore(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo, nodes []*framework.NodeInfo) *framework.Status {
	constraints, own, err := p.constraintsOf(pod.Pod, corev1.ScheduleAnyway)
	if err != nil {
		return framework.AsStatus(err)
	}
	if len(constraints) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	w := &wishes{allKeys: own || !p.system}
	for i, t := range p.tallies(pod, constraints, w.allKeys) {
		w.all = append(w.all, wish{constraint: constraints[i], tally: t})
	}
	w.weigh(nodes, func(int) int { return 1 })
	cs.Write(scoreKey, w)
	return nil
}

// weigh sets the weights for the nodes that fit, of which each stands for some.
func (w *wishes) weigh(nodes []*framework.NodeInfo, standsFor func(i int) int) {
	for i := range w.all {
		w.all[i].weight = math.Log(float64(w.size(&w.all[i], nodes, standsFor) + 2))
	}
}

// size is the number of domains among nodes.
func (w *wishes) size(of *wish, nodes []*framework.NodeInfo, standsFor func(i int) int) int {
	n := 0
	if of.key == corev1.LabelHostname {
		for i, node := range nodes {
			if !w.ignores(node) {
				n += standsFor(i)
			}
		}
		return n
	}
	seen := make([]bool, of.tally.Domains())
	for i, node := range nodes {
		switch d := of.tally.Domain(node); {
		case d < 0:
		case of.alone:
			n += standsFor(i)
		case !seen[d]:
			seen[d] = true
			n++
		}
	}
	return n
}

// ignored marks a node without the keys until scores are normalized.
const ignored = -1

// Score is the weighed number of pods in the node's domains: less is better.
func (*Plugin) Score(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	w, _ := framework.Read[*wishes](cs, scoreKey)
	if w.ignores(node) {
		return ignored, nil
	}
	var score float64
	for i := range w.all {
		c := &w.all[i]
		d := c.tally.Domain(node)
		if d < 0 {
			d = c.tally.Find(node.Node.Labels[c.key])
		}
		if d >= 0 {
			score += float64(c.tally.Count(d))*c.weight + float64(c.maxSkew-1)
		}
	}
	return int64(math.Round(score)), nil
}

// NormalizeScore makes the emptiest domains the best.
func (*Plugin) NormalizeScore(_ context.Context, _ *framework.CycleState, _ *framework.PodInfo, _ []*framework.NodeInfo, scores []int64) *framework.Status {
	low, high := int64(math.MaxInt64), int64(0)
	for _, s := range scores {
		if s != ignored {
			low, high = min(low, s), max(high, s)
		}
	}
	for i, s := range scores {
		switch {
		case s == ignored:
			scores[i] = 0
		case high == 0:
			scores[i] = framework.MaxNodeScore
		default:
			scores[i] = framework.MaxNodeScore * (high + low - s) / high
		}
	}
	return nil
}
