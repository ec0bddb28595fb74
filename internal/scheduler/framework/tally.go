package framework

// Tally counts pods by the domain of their node, for one selector and one
// topology key. The snapshot keeps a tally right as pods come and go, so that pods
// with the same rule, as the replicas of a workload have, do not each count anew.
// Domains are numbered, and nodes found by their Index, so that asking about a
// node costs two array reads.
type Tally struct {
	match   func(p *PodInfo) bool
	domain  func(n *NodeInfo) (string, bool) // false: the node does not count
	numbers map[string]int32                 // of domains
	ofNode  []int32                          // domain by node index; -1 for none
	counts  []int                            // by domain
	sizes   map[int]int                      // number of domains by their count
	lowest  int                              // no domain has fewer; raised on demand
	made    int64                            // topology generation
	used    int64
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

func (t *Tally) recount(nodes []*NodeInfo) {
	t.numbers, t.sizes, t.lowest = map[string]int32{}, map[int]int{}, 0
	t.counts, t.ofNode = t.counts[:0], make([]int32, len(nodes))
	for i, n := range nodes {
		t.ofNode[i] = -1
		value, ok := t.domain(n)
		if !ok {
			continue
		}
		d, known := t.numbers[value]
		if !known {
			d = int32(len(t.counts))
			t.numbers[value] = d
			t.counts = append(t.counts, 0)
		}
		t.ofNode[i] = d
		for _, p := range n.Pods {
			if t.match(p) {
				t.counts[d]++
			}
		}
	}
	for _, count := range t.counts {
		t.sizes[count]++
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
	if t.made != s.TopologyGeneration {
		t.recount(s.Nodes)
		t.made = s.TopologyGeneration
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

// PodsChanged keeps tallies and groups right: a pod came to a node (sign 1) or
// left it (-1).
func (s *Snapshot) PodsChanged(n *NodeInfo, p *PodInfo, sign int) {
	for _, t := range s.tallies.byKey {
		if n.Node != nil && t.made == s.TopologyGeneration && t.match(p) {
			t.add(n, sign)
		}
	}
	if p.HasAffinity() {
		s.groups.podsChanged(n, p, sign, s.TopologyGeneration)
	}
}
