package devices

import resourcev1 "k8s.io/api/resource/v1"

// Version of what decides which devices a node has for a claim: another one means
// that the answer may be another. It is comparable.
type Version struct {
	published uint64 // counts changes of slices, rules and classes
	node      uint64 // counts changes of what is allocated of the node's pools
}

// Version returns that of a node, and false when there are devices that several
// nodes reach, so that any allocation may change the answer of all. Only what has
// been counted by Allocated and read by Published is in it; as there, only the
// scheduling loop and what it waits for may ask.
func (i *Inventory) Version(node string) (Version, bool) {
	return Version{published: i.places.published, node: i.places.versions[node]}, !i.places.shared
}

// places tells where the devices of pools are.
type places struct {
	published uint64
	shared    bool                 // some slice or pool is not of one node
	nodes     map[[2]string]string // by driver and pool
	versions  map[string]uint64    // by node
}

func (p *places) publish(all []*resourcev1.ResourceSlice) {
	*p = places{published: p.published + 1, nodes: make(map[[2]string]string, len(all)), versions: map[string]uint64{}}
	for _, slice := range all {
		if slice.Spec.NodeName == nil {
			p.shared = true
			continue
		}
		pool, node := [2]string{slice.Spec.Driver, slice.Spec.Pool.Name}, *slice.Spec.NodeName
		if at, ok := p.nodes[pool]; ok && at != node {
			p.shared = true
		}
		p.nodes[pool] = node
	}
}

func (p *places) used(driver, pool string) {
	if node, ok := p.nodes[[2]string{driver, pool}]; ok {
		p.versions[node]++
	}
}
