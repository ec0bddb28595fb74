package framework

import (
	"maps"
	"slices"
	"strconv"
)

// TermKind is which of a pod's affinity rules a term is of.
type TermKind int

const (
	RequiredAffinity TermKind = iota
	RequiredAntiAffinity
	PreferredAffinity
	PreferredAntiAffinity
)

// TermGroup is one affinity term and where the pods with nodes are that have it.
// Pods of one workload share their terms, so there are few groups, however many
// pods.
type TermGroup struct {
	Kind   TermKind
	Term   *AffinityTerm
	Weight int64 // of a preferred term

	nodes    map[*NodeInfo]int
	byDomain map[string]int
	made     int64 // topology generation of byDomain
}

// Count returns the pods with the term in a domain of its topology key.
func (g *TermGroup) Count(value string) int { return g.byDomain[value] }

func (g *TermGroup) add(n *NodeInfo, sign int, generation int64) {
	if g.nodes[n] += sign; g.nodes[n] == 0 {
		delete(g.nodes, n)
	}
	if g.made != generation || n.Node == nil {
		return
	}
	if value, ok := n.Node.Labels[g.Term.TopologyKey]; ok {
		if g.byDomain[value] += sign; g.byDomain[value] == 0 {
			delete(g.byDomain, value)
		}
	}
}

func (g *TermGroup) recount() {
	g.byDomain = map[string]int{}
	for n, count := range g.nodes {
		if n.Node == nil {
			continue
		}
		if value, ok := n.Node.Labels[g.Term.TopologyKey]; ok {
			g.byDomain[value] += count
		}
	}
}

// groups are the terms of all pods with nodes.
type groups struct {
	byKey map[string]*TermGroup
	list  []*TermGroup // of byKey; nil when outdated
}

// AnyAffinity tells whether some pod with a node has affinity terms.
func (s *Snapshot) AnyAffinity() bool { return len(s.groups.byKey) > 0 }

// TermGroups returns the terms of all pods with nodes. Only PreFilter and
// PreScore may ask.
func (s *Snapshot) TermGroups() []*TermGroup {
	gs := &s.groups
	if gs.list == nil {
		gs.list = make([]*TermGroup, 0, len(gs.byKey))
		for _, key := range slices.Sorted(maps.Keys(gs.byKey)) {
			gs.list = append(gs.list, gs.byKey[key])
		}
	}
	for _, g := range gs.list {
		if g.made != s.TopologyGeneration {
			g.recount()
			g.made = s.TopologyGeneration
		}
	}
	return gs.list
}

func (gs *groups) podsChanged(n *NodeInfo, p *PodInfo, sign int, generation int64) {
	change := func(kind TermKind, t *AffinityTerm, weight int64) {
		key := strconv.Itoa(int(kind)) + "|" + strconv.FormatInt(weight, 10) + "|" + t.Key()
		g := gs.byKey[key]
		if g == nil {
			if gs.byKey == nil {
				gs.byKey = map[string]*TermGroup{}
			}
			g = &TermGroup{Kind: kind, Term: t, Weight: weight, nodes: map[*NodeInfo]int{}, made: -1}
			gs.byKey[key] = g
			gs.list = nil
		}
		if g.add(n, sign, generation); len(g.nodes) == 0 {
			delete(gs.byKey, key)
			gs.list = nil
		}
	}
	for i := range p.RequiredAffinity {
		change(RequiredAffinity, &p.RequiredAffinity[i], 0)
	}
	for i := range p.RequiredAntiAffinity {
		change(RequiredAntiAffinity, &p.RequiredAntiAffinity[i], 0)
	}
	for i := range p.PreferredAffinity {
		change(PreferredAffinity, &p.PreferredAffinity[i].AffinityTerm, p.PreferredAffinity[i].Weight)
	}
	for i := range p.PreferredAntiAffinity {
		change(PreferredAntiAffinity, &p.PreferredAntiAffinity[i].AffinityTerm, p.PreferredAntiAffinity[i].Weight)
	}
}
