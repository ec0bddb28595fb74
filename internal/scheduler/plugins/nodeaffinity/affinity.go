// Package nodeaffinity matches pods to nodes by spec.nodeSelector and node affinity.
package nodeaffinity

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
	"proa/internal/scheduler/plugins/normalize"
)

const Name = "NodeAffinity"

// Args of the plugin.
type Args struct {
	// AddedAffinity applies to all pods of the profile, besides their own.
	AddedAffinity *corev1.NodeAffinity
}

type Plugin struct {
	addedRequired  *nodeaffinity.NodeSelector
	addedPreferred *nodeaffinity.PreferredSchedulingTerms
}

func New(h *framework.Handle) (framework.Plugin, error) {
	p := &Plugin{}
	args, _ := h.Args.(*Args)
	if args == nil || args.AddedAffinity == nil {
		return p, nil
	}
	var err error
	if r := args.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		if p.addedRequired, err = nodeaffinity.NewNodeSelector(r); err != nil {
			return nil, fmt.Errorf("parsing addedAffinity: %w", err)
		}
	}
	if pref := args.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(pref) > 0 {
		if p.addedPreferred, err = nodeaffinity.NewPreferredSchedulingTerms(pref); err != nil {
			return nil, fmt.Errorf("parsing addedAffinity: %w", err)
		}
	}
	return p, nil
}

func (*Plugin) Name() string { return Name }

// Local but for pods that name their nodes: looking at these is less than keeping
// results for each.
func (*Plugin) Local(pod *framework.PodInfo) bool {
	terms := requiredTerms(pod.Pod)
	return terms == nil || !slices.ContainsFunc(terms.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return len(t.MatchFields) > 0 })
}

var (
	podMismatch      = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match Pod's node affinity/selector")
	enforcedMismatch = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match scheduler-enforced node affinity")
	conflict         = framework.NewStatus(framework.UnschedulableAndUnresolvable, "pod affinity terms conflict")
)

type required struct {
	nodeaffinity.RequiredNodeAffinity
}

func (r *required) Clone() framework.StateData { return r }

type preferred struct {
	terms *nodeaffinity.PreferredSchedulingTerms
}

func (p *preferred) Clone() framework.StateData { return p }

const preferredKey = Name + "/preferred"

// PreFilter parses the pod's rules, and narrows the nodes to those that every
// term names by metadata.name, as the pods of a DaemonSet do.
func (p *Plugin) PreFilter(_ context.Context, state *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	terms := requiredTerms(pod.Pod)
	if len(pod.Pod.Spec.NodeSelector) == 0 && terms == nil && p.addedRequired == nil {
		return nil, framework.NewStatus(framework.Skip)
	}
	state.Write(Name, &required{nodeaffinity.GetRequiredNodeAffinity(pod.Pod)})
	if terms == nil || len(terms.NodeSelectorTerms) == 0 {
		return nil, nil
	}
	nodes := map[string]struct{}{}
	for i := range terms.NodeSelectorTerms {
		named, ok := namedNodes(&terms.NodeSelectorTerms[i])
		if !ok {
			return nil, nil // this term may match any node
		}
		for name := range named {
			nodes[name] = struct{}{}
		}
	}
	if len(nodes) == 0 {
		return nil, conflict
	}
	return &framework.PreFilterResult{Nodes: nodes}, nil
}

func requiredTerms(pod *corev1.Pod) *corev1.NodeSelector {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// namedNodes returns the nodes that a term allows by name; false when it does not name any.
func namedNodes(term *corev1.NodeSelectorTerm) (map[string]struct{}, bool) {
	var allowed map[string]struct{}
	for _, f := range term.MatchFields {
		if f.Key != "metadata.name" || f.Operator != corev1.NodeSelectorOpIn {
			continue
		}
		these := map[string]struct{}{}
		for _, name := range f.Values {
			if _, ok := allowed[name]; ok || allowed == nil {
				these[name] = struct{}{}
			}
		}
		allowed = these
	}
	return allowed, allowed != nil
}

func (p *Plugin) Filter(_ context.Context, state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if p.addedRequired != nil && !p.addedRequired.Match(node.Node) {
		return enforcedMismatch
	}
	r, ok := framework.Read[*required](state, Name)
	if !ok {
		r = &required{nodeaffinity.GetRequiredNodeAffinity(pod.Pod)}
	}
	if match, _ := r.Match(node.Node); !match {
		return podMismatch
	}
	return nil
}

// PreScore skips when there is nothing to prefer.
func (p *Plugin) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	var terms []corev1.PreferredSchedulingTerm
	if a := pod.Pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		terms = a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if len(terms) == 0 && p.addedPreferred == nil {
		return framework.NewStatus(framework.Skip)
	}
	parsed, err := nodeaffinity.NewPreferredSchedulingTerms(terms)
	if err != nil {
		return framework.AsStatus(err)
	}
	state.Write(preferredKey, &preferred{parsed})
	return nil
}

// Score sums the weights of the preferences that the node meets.
func (p *Plugin) Score(_ context.Context, state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	var score int64
	if p.addedPreferred != nil {
		score += p.addedPreferred.Score(node.Node)
	}
	if pref, ok := framework.Read[*preferred](state, preferredKey); ok {
		score += pref.terms.Score(node.Node)
	}
	return score, nil
}

func (*Plugin) NormalizeScore(_ context.Context, _ *framework.CycleState, _ *framework.PodInfo, _ []*framework.NodeInfo, scores []int64) *framework.Status {
	normalize.Scale(scores, false)
	return nil
}

func (p *Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.Node, framework.Add|framework.UpdateNodeLabel, hint.Node(func(pod *corev1.Pod, node *corev1.Node) bool {
			if p.addedRequired != nil && !p.addedRequired.Match(node) {
				return false
			}
			match, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
			return match
		})),
		hint.On(framework.UnscheduledPod, framework.UpdateOther, nil),
	}
}
