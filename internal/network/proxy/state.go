package proxy

import (
	"maps"
	"slices"

	"proa/internal/network/nft"
)

// state is what all fragments want together, what the kernel has, and where the
// two may differ. The cost of a change is that of the change.
type state struct {
	fragments map[string]*fragment // by owner

	// An element may be claimed by several owners: two Services with one load
	// balancer's address, or with endpoints on one pod. The first by name has it.
	claims    map[element][]claim
	firewalls map[string]firewall

	// What the kernel has, as committed.
	kernel          map[element]value
	kernelFirewalls map[string]firewall
	kernelActions   map[action]uint32 // that have chains, and their codes
	balancers       map[string]uint32 // numbers, never used twice
	lastBalancer    uint32

	dirty          map[element]struct{}
	dirtyFirewalls map[string]struct{}
}

type claim struct {
	owner string
	value value
}

func newState() *state {
	s := &state{fragments: map[string]*fragment{}, claims: map[element][]claim{}, firewalls: map[string]firewall{}}
	s.forget()
	return s
}

// forget makes everything dirty against an empty table.
func (s *state) forget() {
	s.kernel, s.kernelFirewalls = map[element]value{}, map[string]firewall{}
	s.kernelActions, s.balancers = map[action]uint32{}, map[string]uint32{}
	s.dirty, s.dirtyFirewalls = map[element]struct{}{}, map[string]struct{}{}
	for e := range s.claims {
		s.dirty[e] = struct{}{}
	}
	for name := range s.firewalls {
		s.dirtyFirewalls[name] = struct{}{}
	}
}

// set replaces what an owner wants; nil for nothing.
func (s *state) set(owner string, f *fragment) {
	if old := s.fragments[owner]; old != nil {
		for e := range old.elements {
			s.release(e, owner)
		}
		for _, w := range old.firewalls {
			delete(s.firewalls, w.name)
			s.dirtyFirewalls[w.name] = struct{}{}
		}
		delete(s.fragments, owner)
	}
	if f == nil || len(f.elements) == 0 && f.health == nil {
		return
	}
	s.fragments[owner] = f
	for e, v := range f.elements {
		s.claim(e, claim{owner, v})
	}
	for _, w := range f.firewalls {
		s.firewalls[w.name] = w
		s.dirtyFirewalls[w.name] = struct{}{}
	}
}

func (s *state) claim(e element, c claim) {
	claims := s.claims[e]
	at, _ := slices.BinarySearchFunc(claims, c.owner, func(c claim, owner string) int {
		if c.owner < owner {
			return -1
		}
		return 1
	})
	s.claims[e] = slices.Insert(claims, at, c)
	s.dirty[e] = struct{}{}
}

func (s *state) release(e element, owner string) {
	s.claims[e] = slices.DeleteFunc(s.claims[e], func(c claim) bool { return c.owner == owner })
	if len(s.claims[e]) == 0 {
		delete(s.claims, e)
	}
	s.dirty[e] = struct{}{}
}

// change of one element. A changed element is removed and added.
type change struct {
	element element
	value   value
}

// diff is what a transaction changes.
type diff struct {
	add, remove   map[string][]change // by set
	newActions    map[action]uint32
	newFirewalls  []firewall // and changed ones
	goneFirewalls []firewall
}

// diff compares what is wanted with what the kernel has, where they may differ.
func (s *state) diff() diff {
	d := diff{add: map[string][]change{}, remove: map[string][]change{}, newActions: map[action]uint32{}}
	for e := range s.dirty {
		have, had := s.kernel[e]
		claims := s.claims[e]
		if had && len(claims) > 0 && claims[0].value == have {
			continue
		}
		if had {
			d.remove[e.set] = append(d.remove[e.set], change{e, have})
		}
		if len(claims) > 0 {
			want := claims[0].value
			d.add[e.set] = append(d.add[e.set], change{e, want})
			s.number(&d, e.balancer, want)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.dirtyFirewalls)) {
		want, wanted := s.firewalls[name]
		have, had := s.kernelFirewalls[name]
		switch {
		case wanted && !(had && slices.Equal(want.sources, have.sources)):
			d.newFirewalls = append(d.newFirewalls, want)
		case had && !wanted:
			d.goneFirewalls = append(d.goneFirewalls, have)
		}
	}
	return d
}

// number gives numbers to the balancers and actions that the kernel does not know.
func (s *state) number(d *diff, balancer string, v value) {
	for _, name := range []string{balancer, v.balancer} {
		if _, known := s.balancers[name]; name != "" && !known {
			s.lastBalancer++
			s.balancers[name] = s.lastBalancer
		}
	}
	if _, known := s.kernelActions[v.action]; !known && v.action != (action{}) {
		code := uint32(len(s.kernelActions) + 1)
		s.kernelActions[v.action] = code
		d.newActions[v.action] = code
	}
}

// write puts d into a transaction, in the order in which things refer to each other.
func (s *state) write(d diff, b *nft.Batch) {
	actions := slices.SortedFunc(maps.Keys(d.newActions), func(x, y action) int { return int(d.newActions[x]) - int(d.newActions[y]) })
	for _, a := range actions {
		addAction(b, a, d.newActions[a])
	}
	for _, set := range slices.Sorted(maps.Keys(d.remove)) {
		b.DeleteElements(namedSets[set], s.encode(d.remove[set]))
	}
	for _, w := range d.goneFirewalls {
		b.FlushChain(w.name)
		b.DeleteChain(w.name)
	}
	for _, w := range d.newFirewalls {
		addFirewall(b, w)
	}
	for _, set := range slices.Sorted(maps.Keys(d.add)) {
		b.AddElements(namedSets[set], s.encode(d.add[set]))
	}
}

func (s *state) encode(changes []change) []nft.Element {
	out := make([]nft.Element, len(changes))
	for i, c := range changes {
		out[i] = s.encodeElement(c.element, c.value)
	}
	return out
}

// committed notes that the kernel took d.
func (s *state) committed(d diff) {
	for _, changes := range d.remove {
		for _, c := range changes {
			delete(s.kernel, c.element)
			// The first endpoint is the last to leave a balancer.
			if c.element.set == endpoints && c.element.index == 0 {
				if _, stays := s.claims[c.element]; !stays {
					delete(s.balancers, c.element.balancer)
				}
			}
		}
	}
	for _, changes := range d.add {
		for _, c := range changes {
			s.kernel[c.element] = c.value
		}
	}
	for _, w := range d.goneFirewalls {
		delete(s.kernelFirewalls, w.name)
	}
	for _, w := range d.newFirewalls {
		s.kernelFirewalls[w.name] = w
	}
	clear(s.dirty)
	clear(s.dirtyFirewalls)
}
