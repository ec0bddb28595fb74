package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"proa/internal/network/nft"
)

// base is the constant part of the table.
type base struct {
	bridge            string
	pods              netip.Prefix // of the cluster
	local             netip.Prefix // of this node
	services          netip.Prefix
	nodePortAddresses []netip.Prefix
}

// Chain names of the constant part.
const (
	chainServices = "services"
	chainUnserved = "unserved"
)

// Priorities of the kernel's own stages in a hook.
const (
	priorityRaw    = -300
	priorityDstNAT = -100
	priorityFilter = 0
	prioritySrcNAT = 100
)

var (
	isIPv4      = []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: r0}, equal(r0, unix.NFPROTO_IPV4)}
	protocolTo1 = &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r1}
	portTo2     = &expr.Payload{DestRegister: r2, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	toLocal     = []expr.Any{&expr.Fib{Register: r0, FlagDADDR: true, ResultADDRTYPE: true}, isLocal}
	translated  = bits(expr.CtKeySTATUS, 1<<5) // IPS_DST_NAT
	isNew       = bits(expr.CtKeySTATE, expr.CtStateBitNEW)
	// The kernel writes sixteen bytes for an original address in this family of
	// tables; what follows it in a key is loaded after it.
	originalAddr = &expr.Ct{Key: expr.CtKeyDST, Register: r0, Direction: 0}
	originalPort = &expr.Ct{Key: expr.CtKeyPROTODST, Register: r2, Direction: 0}
	refuse       = &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}
	masquerade   = &expr.Masq{FullyRandom: true}
	dropPacket   = &expr.Verdict{Kind: expr.VerdictDrop}
	// toEndpoint sends the connection to the address in r8 and port in r9.
	toEndpoint      = &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: r8, RegProtoMin: r9}
	sourceAddr      = &expr.Payload{DestRegister: r0, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
	destinationAddr = &expr.Payload{DestRegister: r0, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	isLocal         = &expr.Cmp{Op: expr.CmpOpEq, Register: r0, Data: native(unix.RTN_LOCAL)}
	loopback        = netip.MustParsePrefix("127.0.0.0/8")
)

func equal(register uint32, data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data}
}

// bits matches when a field of the connection has any of the bits.
func bits(key expr.CtKey, mask uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: r0},
		&expr.Bitwise{SourceRegister: r0, DestRegister: r0, Len: 4, Mask: native(mask), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: r0, Data: native(0)},
	}
}

func link(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	raw := make([]byte, unix.IFNAMSIZ)
	copy(raw, name)
	return []expr.Any{&expr.Meta{Key: key, Register: r0}, &expr.Cmp{Op: op, Register: r0, Data: raw}}
}

func lookup(register uint32, set string) expr.Any {
	return &expr.Lookup{SourceRegister: register, SetName: set}
}

// into puts what a map has for the key at register into the registers from to.
func into(to, register uint32, set string) expr.Any {
	return &expr.Lookup{SourceRegister: register, DestRegister: to, IsDestRegSet: true, SetName: set}
}

// decide takes the verdict that a map has for the key at register.
func decide(register uint32, set string) expr.Any {
	return &expr.Lookup{SourceRegister: register, SetName: set, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}
}

func jump(name string) expr.Any { return &expr.Verdict{Kind: expr.VerdictJump, Chain: name} }

func join(parts ...any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		switch p := p.(type) {
		case []expr.Any:
			all = append(all, p...)
		case expr.Any:
			all = append(all, p)
		}
	}
	return all
}

// write makes an empty table with the constant part, in place of what there was.
func (c base) write(b *nft.Batch) {
	b.AddTable()
	b.DeleteTable()
	b.AddTable()
	for _, name := range slices.Sorted(maps.Keys(namedSets)) {
		b.AddSet(namedSets[name])
	}
	for _, frontends := range choices {
		b.AddSet(actionMap(frontends))
	}
	b.AddSet(sticky)
	c.writeServices(b)
	c.writeUnserved(b)
	c.writeHooks(b)
	c.writePostrouting(b)
}

func (c base) writeServices(b *nft.Batch) {
	b.AddChain(chainServices, nil)
	rule := func(parts ...any) { b.AddRule(chainServices, join(append([]any{isIPv4}, parts...)...)...) }
	act := func(frontends string) []expr.Any {
		return join(choice(frontends), decide(r4, actionMap(frontends).Name))
	}
	notLocal := &expr.Cmp{Op: expr.CmpOpNeq, Register: r0, Data: native(unix.RTN_LOCAL)}
	outside := join(sourceAddr, addrIn(c.pods, expr.CmpOpNeq),
		&expr.Fib{Register: r0, FlagSADDR: true, ResultADDRTYPE: true}, notLocal)
	toFrontend := join(destinationAddr, protocolTo1, portTo2)

	rule(toFrontend, decide(r0, firewalls))
	rule(outside, act(outsideIPs))
	rule(act(serviceIPs))
	for _, here := range c.nodePortFrontends() {
		rule(here, outside, act(outsideNodePorts))
		rule(here, act(nodePorts))
	}
	rule(toFrontend, into(r8, r0, hostIPs), toEndpoint)
	rule(toLocal, protocolTo1, portTo2, into(r8, r1, hostPorts), toEndpoint)
}

// nodePortFrontends match the addresses at which node ports are served.
func (c base) nodePortFrontends() [][]expr.Any {
	if len(c.nodePortAddresses) == 0 {
		return [][]expr.Any{toLocal}
	}
	var all [][]expr.Any
	for _, p := range c.nodePortAddresses {
		if p.Addr().Is4() {
			all = append(all, join(toLocal, destinationAddr, addrIn(p, expr.CmpOpEq)))
		}
	}
	return all
}

// writeUnserved refuses what services left as it was: without endpoints, or at
// an address of the service range that no Service has.
func (c base) writeUnserved(b *nft.Batch) {
	b.AddChain(chainUnserved, nil)
	rule := func(parts ...any) { b.AddRule(chainUnserved, join(parts...)...) }
	rule(isIPv4, destinationAddr, protocolTo1, portTo2, lookup(r0, unservedIPs), refuse)
	rule(isIPv4, toLocal, protocolTo1, portTo2, lookup(r1, unservedNodePorts), refuse)
	rule(isIPv4, destinationAddr, addrIn(c.services, expr.CmpOpEq), refuse)
}

func (c base) writeHooks(b *nft.Batch) {
	// CVE-2020-8558: the bridge takes loopback addresses, but only those that the
	// node's own connections are translated back to.
	b.AddChain("raw", &nft.Hook{Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: priorityRaw})
	fromPods := link(expr.MetaKeyIIFNAME, expr.CmpOpEq, c.bridge)
	b.AddRule("raw", join(fromPods, isIPv4, destinationAddr, addrIn(loopback, expr.CmpOpEq), dropPacket)...)
	b.AddRule("raw", join(fromPods, isIPv4, sourceAddr, addrIn(loopback, expr.CmpOpEq), dropPacket)...)

	b.AddChain("prerouting", &nft.Hook{Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: priorityDstNAT})
	b.AddRule("prerouting", jump(chainServices))
	b.AddChain("output", &nft.Hook{Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: priorityDstNAT})
	b.AddRule("output", jump(chainServices))

	for name, hook := range map[string]uint32{
		"filter-input": unix.NF_INET_LOCAL_IN, "filter-forward": unix.NF_INET_FORWARD, "filter-output": unix.NF_INET_LOCAL_OUT} {
		b.AddChain(name, &nft.Hook{Type: "filter", Number: hook, Priority: priorityFilter})
		b.AddRule(name, join(isNew, jump(chainUnserved))...)
	}
	// Pods reach their neighbours through the gateway and shall stay with that,
	// even if someone lets this host send redirects.
	b.AddRule("filter-output", join(link(expr.MetaKeyOIFNAME, expr.CmpOpEq, c.bridge), isIPv4,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r0}, equal(r0, unix.IPPROTO_ICMP),
		&expr.Payload{DestRegister: r0, Base: expr.PayloadBaseTransportHeader, Len: 1}, equal(r0, icmpRedirect), dropPacket)...)
}

const icmpRedirect = 5

// maxSticky is the longest session affinity that the API allows.
const maxSticky = 24 * time.Hour

// writePostrouting makes connections come from the node's own address when the
// answers would not return here otherwise.
func (c base) writePostrouting(b *nft.Batch) {
	const name = "postrouting"
	b.AddChain(name, &nft.Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: prioritySrcNAT})
	rule := func(parts ...any) { b.AddRule(name, append(join(parts...), masquerade)...) }
	// A pod that reached itself.
	sourceAndDestination := &expr.Payload{DestRegister: r0, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 8}
	rule(isIPv4, translated, sourceAndDestination, lookup(r0, hairpins))
	// The node's own, at a loopback address.
	rule(isIPv4, translated, sourceAddr, addrIn(loopback, expr.CmpOpEq), link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, "lo"))
	// From outside through this node to a ClusterIP, a node port or an external address.
	notPod := join(sourceAddr, addrIn(c.pods, expr.CmpOpNeq))
	toClusterIP := func(op expr.CmpOp) []expr.Any { return join(originalAddr, addrIn(c.services, op)) }
	rule(isIPv4, translated, notPod, toClusterIP(expr.CmpOpEq))
	rule(isIPv4, translated, originalAddr, protocolTo1, originalPort, lookup(r0, masqueradeIPs))
	rule(isIPv4, translated, toClusterIP(expr.CmpOpNeq), protocolTo1, originalPort, lookup(r1, masqueradeNodePorts))
	// From this node's pods to the world.
	rule(isIPv4, sourceAddr, addrIn(c.local, expr.CmpOpEq), destinationAddr, addrIn(c.pods, expr.CmpOpNeq),
		link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, c.bridge))
}
