package framework

// Tally counts pods by the domain of their node, for one selector and one
// topology key. The snapshot keeps a tally right as pods come and go, so that pods
// with the same rule, as the replicas of a workload have, do not each count anew.
type Tally struct {
	match    func(p *PodInfo) bool
	domain   func(n *NodeInfo) (string, bool) // false: the node does not count
	byDomain map[string]int
	domains  map[int]int // number of domains by their count
	lowest   int         // no domain has fewer; raised on demand
	made     int64       // node generation
	used     int64
}

// Of returns the count of a domain; false when no eligible node is in it.
func (t *Tally) Of(domain string) (int, bool) {
	n, ok := t.byDomain[domain]
	return n, ok
}

// Count returns the count of a domain, 0 for an unknown one.
func (t *Tally) Count(domain string) int { return t.byDomain[domain] }

// Domains returns how many domains there are.
func (t *Tally) Domains() int { return len(t.byDomain) }

// Any tells whether any pod counts.
func (t *Tally) Any() bool { return len(t.byDomain) > t.domains[0] }

// Min returns the lowest count of a domain, with more added to some of them.
func (t *Tally) Min(more map[string]int) int {
	if len(t.byDomain) == 0 {
		return 0
	}
	if len(more) == 0 {
		for t.domains[t.lowest] == 0 {
			t.lowest++
		}
		return t.lowest
	}
	first, least := true, 0
	for d, n := range t.byDomain {
		if n += more[d]; first || n < least {
			first, least = false, n
		}
	}
	return least
}

func (t *Tally) add(n *NodeInfo, count int) {
	if n.Node == nil || count == 0 {
		return
	}
	d, ok := t.domain(n)
	if !ok {
		return
	}
	was := t.byDomain[d]
	t.domains[was]--
	t.byDomain[d] = was + count
	t.domains[was+count]++
	t.lowest = min(t.lowest, was+count)
}

func (t *Tally) recount(nodes []*NodeInfo) {
	t.byDomain, t.domains, t.lowest = map[string]int{}, map[int]int{}, 0
	for _, n := range nodes {
		d, ok := t.domain(n)
		if !ok {
			continue
		}
		count := t.byDomain[d]
		for _, p := range n.Pods {
			if t.match(p) {
				count++
			}
		}
		t.byDomain[d] = count
	}
	for _, count := range t.byDomain {
		t.domains[count]++
	}
}

// tallies are the most recently used ones.
type tallies struct {
	byKey map[string]*Tally
	clock int64
}

const maxTallies = 64

// Tally returns the tally for key, which must identify what match and domain do.
// Only PreFilter and PreScore may ask.
func (s *Snapshot) Tally(key string, match func(p *PodInfo) bool, domain func(n *NodeInfo) (string, bool)) *Tally {
	ts := &s.tallies
	if ts.byKey == nil {
		ts.byKey = map[string]*Tally{}
	}
	ts.clock++
	t := ts.byKey[key]
	if t == nil {
		ts.evict()
		t = &Tally{match: match, domain: domain, made: -1}
		ts.byKey[key] = t
	}
	if t.made != s.NodeGeneration {
		t.recount(s.Nodes)
		t.made = s.NodeGeneration
	}
	t.used = ts.clock
	return t
}

func (ts *tallies) evict() {
	if len(ts.byKey) < maxTallies {
		return
	}
	oldest := ""
	for key, t := range ts.byKey {
		if oldest == "" || t.used < ts.byKey[oldest].used {
			oldest = key
		}
	}
	delete(ts.byKey, oldest)
}

// PodsChanged keeps the tallies right: a pod came to a node (sign 1) or left it (-1).
func (s *Snapshot) PodsChanged(n *NodeInfo, p *PodInfo, sign int) {
	for _, t := range s.tallies.byKey {
		if t.made == s.NodeGeneration && t.match(p) {
			t.add(n, sign)
		}
	}
}
