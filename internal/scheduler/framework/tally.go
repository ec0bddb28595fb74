package framework

import "math"

// Rule is what a tally counts: pods, by the domain of their node.
type Rule struct {
	Pods  string // identifies Match
	Match func(p *PodInfo) bool
	Among []Label // all pods that match have these; none: any pod may match

	Domains string                           // identifies Domain
	Domain  func(n *NodeInfo) (string, bool) // false: the node does not count
}

// Tally counts pods by the domain of their node, for one selector and one
// topology key. The snapshot keeps a tally right as pods come and go, so that pods
// with the same rule, as the replicas of a workload have, do not each count anew.
// Domains are numbered, and nodes found by their Index, so that asking about a
// node costs two array reads.
type Tally struct {
	*layout
	match  func(p *PodInfo) bool
	counts []int       // by domain
	sizes  map[int]int // number of domains by their count
	lowest int         // no domain has fewer; raised on demand
	used   int64
}

// layout is where the nodes are for a rule of domains. Tallies share it.
type layout struct {
	numbers map[string]int32 // of domains
	ofNode  []int32          // domain by node index; -1 for none
	made    int64            // topology generation
	used    int64
}

func newLayout(s *Snapshot, domain func(n *NodeInfo) (string, bool)) *layout {
	l := &layout{numbers: map[string]int32{}, ofNode: make([]int32, len(s.Nodes)), made: s.TopologyGeneration}
	for i, n := range s.Nodes {
		l.ofNode[i] = -1
		value, ok := domain(n)
		if !ok {
			continue
		}
		d, known := l.numbers[value]
		if !known {
			d = int32(len(l.numbers))
			l.numbers[value] = d
		}
		l.ofNode[i] = d
	}
	return l
}

// Domain returns the number of a node's domain, -1 when the node does not count.
func (t *Tally) Domain(n *NodeInfo) int { return int(t.ofNode[n.Index]) }

// Find returns the number of a domain, -1 when no node that counts is in it.
func (t *Tally) Find(value string) int {
	if number, ok := t.numbers[value]; ok {
		return int(number)
	}
	return -1
}

// Count returns the pods in a domain.
func (t *Tally) Count(domain int) int { return t.counts[domain] }

// Domains returns how many domains there are.
func (t *Tally) Domains() int { return len(t.counts) }

// Any tells whether any pod counts.
func (t *Tally) Any() bool { return len(t.counts) > t.sizes[0] }

// Min returns the lowest count of a domain, with more added to some of them. Not
// for parallel use.
func (t *Tally) Min(more map[int]int) int {
	if len(t.counts) == 0 {
		return 0
	}
	if len(more) == 0 {
		for t.sizes[t.lowest] == 0 {
			t.lowest++
		}
		return t.lowest
	}
	least := t.counts[0] + more[0]
	for d, n := range t.counts {
		least = min(least, n+more[d])
	}
	return least
}

func (t *Tally) add(n *NodeInfo, count int) {
	d := t.ofNode[n.Index]
	if d < 0 {
		return
	}
	was := t.counts[d]
	t.counts[d] = was + count
	t.sizes[was]--
	t.sizes[was+count]++
	t.lowest = min(t.lowest, was+count)
}

// recount counts the pods of a snapshot. The tally keeps the memory of its counts.
func (t *Tally) recount(s *Snapshot, in *layout, among []Label) {
	t.layout, t.lowest = in, 0
	if cap(t.counts) < len(in.numbers) {
		t.counts = make([]int, len(in.numbers))
	}
	t.counts = t.counts[:len(in.numbers)]
	clear(t.counts)
	t.sizes = map[int]int{0: len(t.counts)}
	if candidates, ok := s.labelled.rarest(s, among); ok {
		for _, c := range candidates {
			if c.node.Node != nil && t.match(c.pod) {
				t.add(c.node, 1)
			}
		}
		return
	}
	for _, n := range s.Nodes {
		if in.ofNode[n.Index] < 0 {
			continue
		}
		for _, p := range n.Pods {
			if t.match(p) {
				t.add(n, 1)
			}
		}
	}
}

// tallies are the most recently used ones, and the layouts of domains.
type tallies struct {
	byKey   map[string]*Tally
	layouts map[string]*layout
	clock   int64
}

const (
	maxTallies = 64
	maxLayouts = 16
)

// Tally returns the tally for a rule. Only PreFilter and PreScore may ask.
func (s *Snapshot) Tally(r Rule) *Tally {
	ts := &s.tallies
	if ts.byKey == nil {
		ts.byKey, ts.layouts = map[string]*Tally{}, map[string]*layout{}
	}
	ts.clock++
	key := r.Domains + "|" + r.Pods
	t := ts.byKey[key]
	if t == nil {
		t = &Tally{}
		if len(ts.byKey) >= maxTallies {
			oldest := leastUsed(ts.byKey, func(t *Tally) int64 { return t.used })
			t.counts = ts.byKey[oldest].counts[:0]
			delete(ts.byKey, oldest)
		}
		t.match = r.Match
		ts.byKey[key] = t
	}
	if t.layout == nil || t.made != s.TopologyGeneration {
		t.recount(s, s.layout(r), r.Among)
	}
	t.used, t.layout.used = ts.clock, ts.clock
	return t
}

func (s *Snapshot) layout(r Rule) *layout {
	layouts := s.tallies.layouts
	l := layouts[r.Domains]
	if l == nil || l.made != s.TopologyGeneration {
		if l == nil && len(layouts) >= maxLayouts {
			delete(layouts, leastUsed(layouts, func(l *layout) int64 { return l.used }))
		}
		l = newLayout(s, r.Domain)
		layouts[r.Domains] = l
	}
	return l
}

func leastUsed[T any](byKey map[string]T, used func(T) int64) string {
	oldest, least := "", int64(math.MaxInt64)
	for key, v := range byKey {
		if u := used(v); u < least {
			oldest, least = key, u
		}
	}
	return oldest
}

// PodsChanged keeps tallies, groups and what is known of labels right: a pod came to a node (sign 1) or
// left it (-1).
func (s *Snapshot) PodsChanged(n *NodeInfo, p *PodInfo, sign int) {
	s.labelled.podsChanged(n, p, sign)
	for _, t := range s.tallies.byKey {
		if n.Node != nil && t.made == s.TopologyGeneration && t.match(p) {
			t.add(n, sign)
		}
	}
	if p.HasAffinity() {
		s.groups.podsChanged(n, p, sign, s.TopologyGeneration)
	}
}
