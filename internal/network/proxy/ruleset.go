package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What changes in the table is set elements, hardly ever a chain: the kernel
// walks every chain of a table after a change to one, and every set to find one
// by name, so a chain or a set per Service would make each change cost as much
// as all Services together.
//
//	prerouting, output -> services
//	    service-ips:  10.96.0.20 . tcp . 80 -> pick 2, balancer 7
//	    -> service-ips/2:                              (one chain per number of endpoints)
//	        endpoints: 7 . (numgen random mod 2) -> 10.244.0.5 . 8080 -> dnat
//	input, forward, output -> unserved: refuse what has no endpoints
//	postrouting: what must come from the node's address, so that answers return here
//
// A balancer is a Service port's list of endpoints: svc/ of all, loc/ of those on
// this node. Session affinity uses the same maps, see stickyRules.

// frontend is where clients connect: addr is invalid for any address of the node.
type frontend struct {
	addr  netip.Addr
	proto uint8
	port  uint16
}

func (f frontend) String() string {
	text := fmt.Sprintf("%s . %d", protocolName(f.proto), f.port)
	if f.addr.IsValid() {
		text = f.addr.String() + " . " + text
	}
	return text
}

func protocolName(proto uint8) string {
	switch proto {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	}
	return fmt.Sprint(proto)
}

// Named sets.
const (
	// Frontends to a choice. Those of outside are for connections from neither
	// pods nor this node, and come first.
	serviceIPs       = "service-ips"
	nodePorts        = "node-ports"
	outsideIPs       = "outside-ips"
	outsideNodePorts = "outside-node-ports"

	endpoints = "endpoints" // balancer and index to an address and port
	members   = "members"   // balancer, address and port: endpoints of sticky balancers
	hostIPs   = "host-ips"  // frontends of pods' host ports
	hostPorts = "host-ports"
	firewalls = "firewalls" // frontends to chains of source ranges

	unservedIPs         = "unserved-ips" // frontends without endpoints
	unservedNodePorts   = "unserved-node-ports"
	masqueradeIPs       = "masquerade-ips" // original destinations
	masqueradeNodePorts = "masquerade-node-ports"
	hairpins            = "hairpins" // pods that may reach themselves
)

// element of one of the named sets. Which fields count depends on the set.
type element struct {
	set string
	frontend
	balancer string
	index    int
}

func (e element) String() string {
	switch e.set {
	case endpoints:
		return fmt.Sprintf("%s %s . %d", e.set, e.balancer, e.index)
	case members:
		return fmt.Sprintf("%s %s . %s . %d", e.set, e.balancer, e.addr, e.port)
	case hairpins:
		return fmt.Sprintf("%s %s", e.set, e.addr)
	}
	return e.set + " " + e.frontend.String()
}

// value of a map's element; zero in a set.
type value struct {
	action                  // what becomes of a connection, in a map of frontends
	balancer string         // whose endpoints the action chooses from
	to       netip.AddrPort // an endpoint
	chain    string         // that lets a connection through or not
}

// action is how to choose an endpoint. The zero action is none.
type action struct {
	drop   bool
	among  int           // number of endpoints
	sticky time.Duration // the same one again for so long after a client's last connection
}

func (a action) String() string {
	switch {
	case a.drop:
		return "drop"
	case a.sticky > 0:
		return fmt.Sprintf("%d/sticky-%d", a.among, a.sticky/time.Second)
	}
	return fmt.Sprint(a.among)
}

func (v value) String() string {
	switch {
	case v.action.drop:
		return "drop"
	case v.action != action{}:
		return fmt.Sprintf("pick %s %s", v.action, v.balancer)
	case v.to.IsValid():
		return fmt.Sprintf("%s . %d", v.to.Addr(), v.to.Port())
	}
	return v.chain
}

var dropped = value{action: action{drop: true}}

// firewall is a chain that drops what comes from none of the sources.
type firewall struct {
	name    string
	sources []netip.Prefix
}

// fragment is what one Service or pod wants in the table.
type fragment struct {
	elements  map[element]value
	firewalls []firewall
	// datagram tells for each frontend of a protocol without connections where
	// its packets may go now.
	datagram map[frontend][]netip.AddrPort
	health   *health
}

func (f *fragment) put(e element, v value) {
	if f.elements == nil {
		f.elements = map[element]value{}
	}
	f.elements[e] = v
}

func (f *fragment) add(set string, front frontend, v value) {
	f.put(element{set: set, frontend: front}, v)
}

// text is the fragment in the notation of nft, for tests.
func (f *fragment) text() string {
	var lines []string
	for e, v := range f.elements {
		line := e.String()
		if v != (value{}) {
			line += " : " + v.String()
		}
		lines = append(lines, line)
	}
	for _, w := range f.firewalls {
		lines = append(lines, fmt.Sprintf("chain %s { ip saddr %v return; drop }", w.name, w.sources))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
