package podtopologyspread

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/scheduler/framework"
)

var (
	skewed     = framework.NewStatus(framework.Unschedulable, "node(s) didn't match pod topology spread constraints")
	labelUnset = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match pod topology spread constraints (missing required label)")
)

// rule is a constraint with its counts, and those of a trial.
type rule struct {
	constraint
	tally *framework.Tally
	more  map[int]int
	self  int // 1 when the constraint selects the pod itself
	least int // count of the emptiest domain
}

type rules []rule

func (rs rules) Clone() framework.StateData {
	c := make(rules, len(rs))
	for i, r := range rs {
		more := make(map[int]int, len(r.more))
		for v, n := range r.more {
			more[v] = n
		}
		r.more = more
		c[i] = r
	}
	return c
}

// PreFilter counts, for the constraints that must hold.
func (p *Plugin) PreFilter(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	constraints, _, err := p.constraintsOf(pod.Pod, corev1.DoNotSchedule)
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	if len(constraints) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	rs := make(rules, len(constraints))
	for i, t := range p.tallies(pod, constraints, true) {
		rs[i] = rule{constraint: constraints[i], tally: t}
		if constraints[i].selector.Matches(labels.Set(pod.Pod.Labels)) {
			rs[i].self = 1
		}
		rs[i].findLeast()
	}
	cs.Write(Name, rs)
	return nil, nil
}

// findLeast: while there are fewer domains than wanted, an empty one is thought of.
func (r *rule) findLeast() {
	r.least = 0
	if r.tally.Domains() >= r.minDomains {
		r.least = r.tally.Min(r.more)
	}
}

func (*Plugin) Filter(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	rs, _ := framework.Read[rules](cs, Name)
	for i := range rs {
		r := &rs[i]
		d := r.tally.Domain(node)
		if d < 0 {
			// The node does not count, but may be in a domain that does.
			value, ok := node.Node.Labels[r.key]
			if !ok {
				return labelUnset
			}
			d = r.tally.Find(value)
		}
		count := r.self - r.least
		if d >= 0 {
			count += r.tally.Count(d) + r.more[d]
		}
		if count > r.maxSkew {
			return skewed
		}
	}
	return nil
}

// AddPod and RemovePod count a pod of a trial.
func (p *Plugin) AddPod(_ context.Context, cs *framework.CycleState, pod, added *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	p.count(cs, pod, added, node, 1)
	return nil
}

func (p *Plugin) RemovePod(_ context.Context, cs *framework.CycleState, pod, removed *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	p.count(cs, pod, removed, node, -1)
	return nil
}

func (*Plugin) count(cs *framework.CycleState, pod, other *framework.PodInfo, node *framework.NodeInfo, sign int) {
	rs, _ := framework.Read[rules](cs, Name)
	if other.Pod.DeletionTimestamp != nil || other.Pod.Namespace != pod.Pod.Namespace {
		return
	}
	for i := range rs {
		r := &rs[i]
		d := r.tally.Domain(node)
		if d < 0 || !r.selector.Matches(labels.Set(other.Pod.Labels)) {
			continue
		}
		if r.more == nil {
			r.more = map[int]int{}
		}
		r.more[d] += sign
		r.findLeast()
	}
}
