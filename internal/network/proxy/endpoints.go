package proxy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// endpoint is one address of a Service port.
type endpoint struct {
	addr                        netip.AddrPort
	ready, serving, terminating bool
	local                       bool // on this node
	zones, nodes                []string
}

// endpointsOf returns the endpoints of one Service port, each once, in order of address.
func (n node) endpointsOf(slicesOf []*discoveryv1.EndpointSlice, port corev1.ServicePort) []endpoint {
	found := map[netip.AddrPort]endpoint{}
	for _, slice := range slicesOf {
		if slice.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		for _, p := range slice.Ports {
			if p.Port == nil || ptr.Deref(p.Name, "") != port.Name || ptr.Deref(p.Protocol, corev1.ProtocolTCP) != protocolOf(port) {
				continue
			}
			for _, e := range slice.Endpoints {
				if ep, ok := n.endpoint(e, uint16(*p.Port)); ok && (!found[ep.addr].ready || ep.ready) {
					found[ep.addr] = ep
				}
			}
		}
	}
	all := make([]endpoint, 0, len(found))
	for _, ep := range found {
		all = append(all, ep)
	}
	slices.SortFunc(all, func(a, b endpoint) int { return a.addr.Compare(b.addr) })
	return all
}

func (n node) endpoint(e discoveryv1.Endpoint, port uint16) (endpoint, bool) {
	if len(e.Addresses) == 0 {
		return endpoint{}, false
	}
	addr, err := netip.ParseAddr(e.Addresses[0])
	if err != nil || !addr.Is4() {
		return endpoint{}, false
	}
	ready := ptr.Deref(e.Conditions.Ready, true)
	ep := endpoint{
		addr:        netip.AddrPortFrom(addr, port),
		ready:       ready,
		serving:     ptr.Deref(e.Conditions.Serving, ready),
		terminating: ptr.Deref(e.Conditions.Terminating, false),
		local:       ptr.Deref(e.NodeName, "") == n.name,
	}
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			ep.zones = append(ep.zones, z.Name)
		}
		for _, h := range e.Hints.ForNodes {
			ep.nodes = append(ep.nodes, h.Name)
		}
	}
	return ep, true
}

// usable returns the endpoints that take new connections: the ready ones, or,
// when there are none, those that still serve while they terminate (KEP-1669).
func usable(all []endpoint) []endpoint {
	if ready := filter(all, func(e endpoint) bool { return e.ready }); len(ready) > 0 {
		return ready
	}
	return filter(all, func(e endpoint) bool { return e.serving && e.terminating })
}

// near narrows ready endpoints to those hinted for this node or its zone, if every
// one has a hint of that kind and at least one is for here (KEP-2433, KEP-3015).
func (n node) near(all []endpoint) []endpoint {
	for _, hint := range []struct {
		here string
		of   func(endpoint) []string
	}{
		{n.name, func(e endpoint) []string { return e.nodes }},
		{n.zone, func(e endpoint) []string { return e.zones }},
	} {
		hinted := func(e endpoint) bool { return e.ready && len(hint.of(e)) > 0 }
		if hint.here == "" || len(filter(all, hinted)) != len(all) {
			continue
		}
		if here := filter(all, func(e endpoint) bool { return slices.Contains(hint.of(e), hint.here) }); len(here) > 0 {
			return here
		}
	}
	return all
}

func filter(all []endpoint, keep func(endpoint) bool) []endpoint {
	var kept []endpoint
	for _, e := range all {
		if keep(e) {
			kept = append(kept, e)
		}
	}
	return kept
}

func addresses(all []endpoint) []netip.AddrPort {
	out := make([]netip.AddrPort, len(all))
	for i, e := range all {
		out[i] = e.addr
	}
	return out
}
