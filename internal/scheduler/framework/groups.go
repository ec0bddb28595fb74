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

	nodes   map[*NodeInfo]int
	domains *domains // of the term's topology key
	counts  []int    // by domain
	made    int64    // topology generation of domains and counts
}

// At returns the pods with the term in a node's domain.
func (g *TermGroup) At(n *NodeInfo) int {
	if d := g.domains.ofNode[n.Index]; d >= 0 {
		return g.counts[d]
	}
	return 0
}

func (g *TermGroup) add(n *NodeInfo, sign int, generation int64) {
	if g.nodes[n] += sign; g.nodes[n] == 0 {
		delete(g.nodes, n)
	}
	if g.made != generation || n.Node == nil {
		return
	}
	if d := g.domains.ofNode[n.Index]; d >= 0 {
		g.counts[d] += sign
	}
}

func (g *TermGroup) recount(in *domains) {
	g.domains, g.made = in, in.made
	g.counts = make([]int, in.number)
	for n, count := range g.nodes {
		if n.Node == nil {
			continue
		}
		if d := in.ofNode[n.Index]; d >= 0 {
			g.counts[d] += count
		}
	}
}

// domains are those of a topology key, numbered, and where the nodes are.
type domains struct {
	ofNode []int32 // by node index; -1 for a node without the key
	number int
	made   int64 // topology generation
}

func domainsOf(key string, s *Snapshot) *domains {
	d := &domains{ofNode: make([]int32, len(s.Nodes)), made: s.TopologyGeneration}
	numbers := map[string]int32{}
	for i, n := range s.Nodes {
		value, ok := n.Node.Labels[key]
		if !ok {
			d.ofNode[i] = -1
			continue
		}
		number, known := numbers[value]
		if !known {
			number = int32(len(numbers))
			numbers[value] = number
		}
		d.ofNode[i] = number
	}
	d.number = len(numbers)
	return d
}

// lonely remembers, for one topology generation, over which keys no two nodes
// share a domain.
type lonely struct {
	made  int64
	byKey map[string]bool
}

// Alone tells whether every node with a topology key is the only one in its domain,
// as with host names. Only the scheduling loop may ask.
func (s *Snapshot) Alone(key string) bool {
	if l := &s.lonely; l.byKey == nil || l.made != s.TopologyGeneration {
		*l = lonely{made: s.TopologyGeneration, byKey: map[string]bool{}}
	}
	alone, known := s.lonely.byKey[key]
	if !known {
		alone = eachAlone(s.Nodes, key)
		s.lonely.byKey[key] = alone
	}
	return alone
}

func eachAlone(nodes []*NodeInfo, key string) bool {
	seen := make(map[string]struct{}, len(nodes))
	for _, n := range nodes {
		value, ok := n.Node.Labels[key]
		if !ok {
			continue
		}
		if _, shared := seen[value]; shared {
			return false
		}
		seen[value] = struct{}{}
	}
	return true
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
	var byKey map[string]*domains // of groups that are right, then of those made so
	for _, g := range gs.list {
		if g.made == s.TopologyGeneration {
			continue
		}
		if byKey == nil {
			byKey = gs.domainsAt(s.TopologyGeneration)
		}
		key := g.Term.TopologyKey
		if byKey[key] == nil {
			byKey[key] = domainsOf(key, s)
		}
		g.recount(byKey[key])
	}
	return gs.list
}

func (gs *groups) domainsAt(generation int64) map[string]*domains {
	byKey := map[string]*domains{}
	for _, g := range gs.list {
		if g.made == generation {
			byKey[g.Term.TopologyKey] = g.domains
		}
	}
	return byKey
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
