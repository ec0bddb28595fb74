// Package interpodaffinity places pods near to or apart from other pods.
package interpodaffinity

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/client"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins/hint"
)

const Name = "InterPodAffinity"

// Args of the plugin.
type Args struct {
	// HardPodAffinityWeight is how much an existing pod's required affinity draws
	// the pods that it selects: 0 to 100. Nil means 1.
	HardPodAffinityWeight *int64
	// IgnorePreferredTermsOfExistingPods for pods that have no terms themselves.
	IgnorePreferredTermsOfExistingPods bool
}

type Plugin struct {
	handle     *framework.Handle
	namespaces *client.Informer[*corev1.Namespace]
	hardWeight int64
	ignore     bool
}

func New(h *framework.Handle) (framework.Plugin, error) {
	p := &Plugin{handle: h, namespaces: client.Shared[*corev1.Namespace](h.Cache), hardWeight: 1}
	if args, ok := h.Args.(*Args); ok && args != nil {
		p.ignore = args.IgnorePreferredTermsOfExistingPods
		if args.HardPodAffinityWeight != nil {
			p.hardWeight = *args.HardPodAffinityWeight
		}
	}
	return p, nil
}

func (*Plugin) Name() string { return Name }

// Local while what matters to the pod is on each node by itself: as long as no two
// nodes share a domain of the terms that are about the pod.
func (p *Plugin) Local(pod *framework.PodInfo) bool {
	snapshot := p.handle.Snapshot
	shared := func(t *framework.AffinityTerm) bool { return !snapshot.Alone(t.TopologyKey) }
	sharedToo := func(t framework.WeightedAffinityTerm) bool { return shared(&t.AffinityTerm) }
	if len(pod.RequiredAffinity) > 0 || slices.ContainsFunc(pod.PreferredAffinity, sharedToo) || slices.ContainsFunc(pod.PreferredAntiAffinity, sharedToo) {
		return false
	}
	for i := range pod.RequiredAntiAffinity {
		if shared(&pod.RequiredAntiAffinity[i]) {
			return false
		}
	}
	if !snapshot.AnyAffinity() {
		return true
	}
	namespace := p.labelsOf(pod.Pod.Namespace)
	for _, g := range snapshot.TermGroups() {
		if p.matters(g, pod) && shared(g.Term) && g.Term.Matches(pod.Pod, namespace) {
			return false
		}
	}
	return true
}

// matters tells whether a term of other pods has a say about a pod that it selects.
func (p *Plugin) matters(g *framework.TermGroup, pod *framework.PodInfo) bool {
	if g.Kind == framework.RequiredAntiAffinity {
		return true
	}
	return p.weightOf(g) != 0 && (!p.ignore || prefers(pod))
}

func prefers(pod *framework.PodInfo) bool {
	return len(pod.PreferredAffinity)+len(pod.PreferredAntiAffinity) > 0
}

// Sign names the terms that are about the pod, its own and those of others, and
// which of its preferences mean anything yet.
func (p *Plugin) Sign(to []byte, pod *framework.PodInfo) []byte {
	sign := func(side byte, weight int64, key string) {
		to = binary.AppendVarint(append(to, side), weight)
		to = append(binary.AppendUvarint(to, uint64(len(key))), key...)
	}
	for i := range pod.RequiredAntiAffinity {
		t := p.resolveTerm(pod.RequiredAntiAffinity[i])
		sign('!', 0, t.Key())
	}
	for _, preferred := range [][]weighed{p.weigh(pod.PreferredAffinity, 1), p.weigh(pod.PreferredAntiAffinity, -1)} {
		for i := range preferred {
			sign('?', preferred[i].weight, preferred[i].key)
		}
	}
	if !p.handle.Snapshot.AnyAffinity() {
		return to
	}
	namespace := p.labelsOf(pod.Pod.Namespace)
	for _, g := range p.handle.Snapshot.TermGroups() {
		if p.matters(g, pod) && g.Term.Matches(pod.Pod, namespace) {
			sign(byte('0'+g.Kind), g.Weight, g.Term.Key())
		}
	}
	return to
}

var (
	affinityUnmet     = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match pod affinity rules")
	antiAffinityUnmet = framework.NewStatus(framework.Unschedulable, "node(s) didn't match pod anti-affinity rules")
	existingAntiUnmet = framework.NewStatus(framework.Unschedulable, "node(s) didn't satisfy existing pods anti-affinity rules")
)

// domains counts pods by domain: those of a tally, and those of a trial.
type domains struct {
	tally *framework.Tally
	more  map[int]int
}

func (d *domains) at(node *framework.NodeInfo) (count int, in bool) {
	number := d.tally.Domain(node)
	if number < 0 {
		return 0, false
	}
	return d.tally.Count(number) + d.more[number], true
}

func (d *domains) any() bool {
	if len(d.more) == 0 {
		return d.tally.Any()
	}
	for number := range d.tally.Domains() {
		if d.tally.Count(number)+d.more[number] > 0 {
			return true
		}
	}
	return false
}

func (d *domains) note(node *framework.NodeInfo, sign int) {
	number := d.tally.Domain(node)
	if number < 0 {
		return
	}
	if d.more == nil {
		d.more = map[int]int{}
	}
	d.more[number] += sign
}

// pair is a topology domain.
type pair struct{ key, value string }

// state of one pod's cycle. Affinity and anti are by position in the pod's terms.
type state struct {
	affinityTerms, antiTerms []framework.AffinityTerm
	affinity, anti           []domains
	existing                 []*framework.TermGroup // anti-affinity of other pods that means this one
	existingMore             map[pair]int           // of a trial
	anywhere                 bool                   // some pod meets the affinity
	namespace                labels.Set             // of the pod
}

func (s *state) Clone() framework.StateData {
	c := *s
	c.affinity, c.anti = slices.Clone(s.affinity), slices.Clone(s.anti)
	for i := range c.affinity {
		c.affinity[i].more = maps.Clone(c.affinity[i].more)
	}
	for i := range c.anti {
		c.anti[i].more = maps.Clone(c.anti[i].more)
	}
	c.existingMore = maps.Clone(s.existingMore)
	return &c
}

func (p *Plugin) labelsOf(namespace string) labels.Set {
	if ns, ok := p.namespaces.Cached("", namespace); ok {
		return ns.Labels
	}
	return nil
}

// resolve turns the namespace selectors of terms into namespaces.
func (p *Plugin) resolve(terms []framework.AffinityTerm) []framework.AffinityTerm {
	resolved := slices.Clone(terms)
	for i := range resolved {
		resolved[i] = p.resolveTerm(resolved[i])
	}
	return resolved
}

func (p *Plugin) resolveTerm(t framework.AffinityTerm) framework.AffinityTerm {
	if !t.SelectsNamespaces() {
		return t
	}
	all := maps.Clone(t.Namespaces)
	for _, ns := range p.namespaces.Select("", t.NamespaceSelector) {
		all[ns.Name] = struct{}{}
	}
	return t.In(all)
}

func (p *Plugin) tally(terms []framework.AffinityTerm, topologyKey string) domains {
	key := Name
	for i := range terms {
		key += "|" + terms[i].Key()
	}
	return domains{tally: p.handle.Snapshot.Tally(framework.Rule{
		Pods: key, Match: func(other *framework.PodInfo) bool { return matchesAll(terms, other.Pod) },
		Domains: topologyKey, Domain: func(n *framework.NodeInfo) (string, bool) { v, ok := n.Node.Labels[topologyKey]; return v, ok },
	})}
}

// matchesAll tells whether resolved terms all select pod.
func matchesAll(terms []framework.AffinityTerm, pod *corev1.Pod) bool {
	for i := range terms {
		if !terms[i].Matches(pod, nil) {
			return false
		}
	}
	return true
}

// PreFilter counts pods by domain: those that the pod's terms select, and those
// whose anti-affinity selects the pod.
func (p *Plugin) PreFilter(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	s := &state{namespace: p.labelsOf(pod.Pod.Namespace)}
	s.existing = p.forbidden(pod, s.namespace)
	if len(s.existing) == 0 && len(pod.RequiredAffinity) == 0 && len(pod.RequiredAntiAffinity) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s.affinityTerms, s.antiTerms = p.resolve(pod.RequiredAffinity), p.resolve(pod.RequiredAntiAffinity)
	for i := range s.affinityTerms {
		// A pod counts for a term only if it meets all of them.
		s.affinity = append(s.affinity, p.tally(s.affinityTerms, s.affinityTerms[i].TopologyKey))
	}
	for i := range s.antiTerms {
		s.anti = append(s.anti, p.tally(s.antiTerms[i:i+1], s.antiTerms[i].TopologyKey))
	}
	s.look()
	cs.Write(Name, s)
	return nil, nil
}

func (p *Plugin) forbidden(pod *framework.PodInfo, namespace labels.Set) []*framework.TermGroup {
	var found []*framework.TermGroup
	for _, g := range p.handle.Snapshot.TermGroups() {
		if g.Kind == framework.RequiredAntiAffinity && g.Term.Matches(pod.Pod, namespace) {
			found = append(found, g)
		}
	}
	return found
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

func (p *Plugin) count(cs *framework.CycleState, pod, other *framework.PodInfo, node *framework.NodeInfo, sign int) {
	s, ok := framework.Read[*state](cs, Name)
	if !ok {
		return
	}
	for i := range other.RequiredAntiAffinity {
		t := &other.RequiredAntiAffinity[i]
		if value, ok := node.Node.Labels[t.TopologyKey]; ok && t.Matches(pod.Pod, s.namespace) {
			if s.existingMore == nil {
				s.existingMore = map[pair]int{}
			}
			s.existingMore[pair{t.TopologyKey, value}] += sign
		}
	}
	if len(s.affinityTerms) > 0 && matchesAll(s.affinityTerms, other.Pod) {
		for i := range s.affinityTerms {
			s.affinity[i].note(node, sign)
		}
	}
	for i := range s.antiTerms {
		if s.antiTerms[i].Matches(other.Pod, nil) {
			s.anti[i].note(node, sign)
		}
	}
	s.look()
}

// look notes whether any pod is there for the pod to be near to.
func (s *state) look() {
	s.anywhere = slices.ContainsFunc(s.affinity, func(d domains) bool { return d.any() })
}

func (p *Plugin) Filter(_ context.Context, cs *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	s, ok := framework.Read[*state](cs, Name)
	if !ok {
		return nil
	}
	if !s.meetsAffinity(pod, node) {
		return affinityUnmet
	}
	for i := range s.anti {
		if count, _ := s.anti[i].at(node); count > 0 {
			return antiAffinityUnmet
		}
	}
	if s.forbids(node) {
		return existingAntiUnmet
	}
	return nil
}

// forbids tells whether a pod in one of the node's domains keeps the pod away.
func (s *state) forbids(node *framework.NodeInfo) bool {
	if len(s.existingMore) > 0 {
		return s.forbidsInTrial(node)
	}
	for _, g := range s.existing {
		if g.At(node) > 0 {
			return true
		}
	}
	return false
}

// forbidsInTrial counts by topology key, as groups over the same key share what the
// trial changed.
func (s *state) forbidsInTrial(node *framework.NodeInfo) bool {
	counts := map[string]int{}
	for domain, n := range s.existingMore {
		if value, ok := node.Node.Labels[domain.key]; ok && value == domain.value {
			counts[domain.key] += n
		}
	}
	for _, g := range s.existing {
		counts[g.Term.TopologyKey] += g.At(node)
	}
	for _, n := range counts {
		if n > 0 {
			return true
		}
	}
	return false
}

func (s *state) meetsAffinity(pod *framework.PodInfo, node *framework.NodeInfo) bool {
	met := true
	for i := range s.affinity {
		count, in := s.affinity[i].at(node)
		if !in {
			return false
		}
		met = met && count > 0
	}
	// The first of a group that wants to be together may go anywhere.
	return met || !s.anywhere && matchesAll(s.affinityTerms, pod.Pod)
}

// EventsToRegister: other pods and nodes' labels.
func (p *Plugin) EventsToRegister() []framework.HintedEvent {
	return []framework.HintedEvent{
		hint.On(framework.AssignedPod, framework.Add|framework.Delete|framework.UpdatePodLabel, p.podHelps),
		hint.On(framework.UnscheduledPod, framework.UpdatePodLabel, nil),
		hint.On(framework.Node, framework.Add|framework.UpdateNodeLabel, nodeHelps),
	}
}

// podHelps: a pod came that affinity wants, or one went that anti-affinity, of
// either side, keeps away from.
func (p *Plugin) podHelps(pod *corev1.Pod, old, new any) framework.Hint {
	before, after := hint.Pods(old, new)
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return framework.Queue
	}
	affinity, anti := p.resolve(info.RequiredAffinity), p.resolve(info.RequiredAntiAffinity)
	anySelects := func(terms []framework.AffinityTerm, of *corev1.Pod) bool {
		return slices.ContainsFunc(terms, func(t framework.AffinityTerm) bool { return t.Matches(of, nil) })
	}
	if after != nil && len(affinity) > 0 && matchesAll(affinity, after) && (before == nil || !matchesAll(affinity, before)) {
		return framework.Queue
	}
	if after != nil && before != nil && anySelects(anti, before) && !anySelects(anti, after) {
		return framework.Queue
	}
	if before == nil || after != nil {
		return framework.QueueSkip
	}
	if anySelects(anti, before) {
		return framework.Queue
	}
	// The last member of the group went, so the pod may be its first; or the pod
	// that kept this one away.
	if len(affinity) > 0 && matchesAll(affinity, before) && matchesAll(affinity, pod) {
		return framework.Queue
	}
	gone, err := framework.NewPodInfo(before)
	if err != nil {
		return framework.Queue
	}
	return framework.Hint(anySelects(p.resolve(gone.RequiredAntiAffinity), pod))
}

// nodeHelps: the node has a domain that the pod's terms are about, or left one.
func nodeHelps(pod *corev1.Pod, old, new any) framework.Hint {
	node, ok := new.(*corev1.Node)
	if !ok || node == nil {
		return framework.QueueSkip
	}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return framework.Queue
	}
	before, _ := old.(*corev1.Node)
	for _, terms := range [][]framework.AffinityTerm{info.RequiredAffinity, info.RequiredAntiAffinity} {
		for i := range terms {
			value, has := node.Labels[terms[i].TopologyKey]
			if before == nil {
				if has || len(info.RequiredAntiAffinity) > 0 {
					return framework.Queue
				}
				continue
			}
			if was, had := before.Labels[terms[i].TopologyKey]; had != has || was != value {
				return framework.Queue
			}
		}
	}
	// Rejected by other pods' rules: a new node has none of them.
	return framework.Hint(len(info.RequiredAffinity) == 0)
}
