package proxy

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"proa/internal/network/nft"
)

var (
	addrPortKey = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	portKey     = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
	addrPair    = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
	numberPair  = nftables.MustConcatSetType(nftables.TypeInteger, nftables.TypeInteger) // action and balancer, or balancer and index
	address     = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	memberKey   = nftables.MustConcatSetType(nftables.TypeInteger, nftables.TypeIPAddr, nftables.TypeInetService)
)

// namedSets are the sets and maps that the table always has.
var namedSets = map[string]nft.Set{
	serviceIPs:          {Name: serviceIPs, Key: addrPortKey, Data: numberPair},
	nodePorts:           {Name: nodePorts, Key: portKey, Data: numberPair},
	outsideIPs:          {Name: outsideIPs, Key: addrPortKey, Data: numberPair},
	outsideNodePorts:    {Name: outsideNodePorts, Key: portKey, Data: numberPair},
	endpoints:           {Name: endpoints, Key: numberPair, Data: address},
	members:             {Name: members, Key: memberKey},
	hostIPs:             {Name: hostIPs, Key: addrPortKey, Data: address},
	hostPorts:           {Name: hostPorts, Key: portKey, Data: address},
	firewalls:           {Name: firewalls, Key: addrPortKey, Verdicts: true},
	unservedIPs:         {Name: unservedIPs, Key: addrPortKey},
	unservedNodePorts:   {Name: unservedNodePorts, Key: portKey},
	masqueradeIPs:       {Name: masqueradeIPs, Key: addrPortKey},
	masqueradeNodePorts: {Name: masqueradeNodePorts, Key: portKey},
	hairpins:            {Name: hairpins, Key: addrPair},
}

// encodeElement is the element as the kernel stores it: each field padded to four
// bytes, addresses and ports in network order, numbers in the machine's.
func (s *state) encodeElement(e element, v value) nft.Element {
	var out nft.Element
	switch e.set {
	case endpoints:
		out.Key = binary.NativeEndian.AppendUint32(native(s.balancers[e.balancer]), uint32(e.index))
	case members:
		out.Key = append(native(s.balancers[e.balancer]), encodeAddress(netip.AddrPortFrom(e.addr, e.port))...)
	case hairpins:
		out.Key = append(e.addr.AsSlice(), e.addr.AsSlice()...)
	default:
		if e.addr.IsValid() {
			out.Key = e.addr.AsSlice()
		}
		out.Key = append(binary.BigEndian.AppendUint16(append(out.Key, e.proto, 0, 0, 0), e.port), 0, 0)
	}
	switch {
	case v.action != action{}:
		out.Data = binary.NativeEndian.AppendUint32(native(s.kernelActions[v.action]), s.balancers[v.balancer])
	case v.to.IsValid():
		out.Data = encodeAddress(v.to)
	case v.chain != "":
		out.Verdict = &expr.Verdict{Kind: expr.VerdictJump, Chain: v.chain}
	}
	return out
}

func encodeAddress(to netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(to.Addr().AsSlice(), to.Port()), 0, 0)
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Registers are the kernel's 32-bit ones: a key of several fields lies in
// neighbours. A rule uses only what it wrote itself.
const (
	r0 = unix.NFT_REG32_00 + iota // frontend: address, protocol, port
	r1
	r2
	r3
	r4 // action, then client's address
	r5 // balancer
	r6 // index
	r7 // balancer again
	r8 // endpoint: address, port
	r9
)

// addrIn matches when the address in r0 is in p.
func addrIn(p netip.Prefix, op expr.CmpOp) []expr.Any {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		&expr.Bitwise{SourceRegister: r0, DestRegister: r0, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: r0, Data: p.Masked().Addr().AsSlice()},
	}
}

// addFirewall makes a chain, or makes it anew, that returns for its sources.
func addFirewall(b *nft.Batch, w firewall) {
	b.AddChain(w.name, nil)
	b.FlushChain(w.name)
	for _, from := range w.sources {
		b.AddRule(w.name, join(sourceAddr, addrIn(from, expr.CmpOpEq), &expr.Verdict{Kind: expr.VerdictReturn})...)
	}
	b.AddRule(w.name, dropPacket)
}

// actionMap is the map from the codes of actions to their chains, for one map of frontends.
func actionMap(frontends string) nft.Set {
	return nft.Set{Name: "actions/" + frontends, Key: nftables.TypeInteger, Verdicts: true}
}

// choices are the maps of frontends that lead to actions.
var choices = []string{outsideIPs, outsideNodePorts, serviceIPs, nodePorts}

// choice puts the action of the connection's frontend into r4 and its balancer into r5.
func choice(frontends string) []expr.Any {
	if namedSets[frontends].Key.Bytes == addrPortKey.Bytes {
		return join(destinationAddr, protocolTo1, portTo2, into(r4, r0, frontends))
	}
	return join(protocolTo1, portTo2, into(r4, r1, frontends))
}

// addAction makes the chains of an action, one for each map of frontends, because
// a rule cannot see what another one looked up.
func addAction(b *nft.Batch, a action, code uint32) {
	for _, frontends := range choices {
		verdict := dropPacket
		if !a.drop {
			name := frontends + "/" + a.String()
			b.AddChain(name, nil)
			addActionRules(b, name, frontends, a)
			verdict = &expr.Verdict{Kind: expr.VerdictGoto, Chain: name}
		}
		b.AddElements(actionMap(frontends), []nft.Element{{Key: native(code), Verdict: verdict}})
	}
}

func addActionRules(b *nft.Batch, name, frontends string, a action) {
	rule := func(parts ...any) { b.AddRule(name, join(append([]any{choice(frontends)}, parts...)...)...) }
	endpoint := join(&expr.Numgen{Register: r6, Modulus: uint32(a.among), Type: unix.NFT_NG_RANDOM}, into(r8, r5, endpoints))
	if a.sticky > 0 {
		for _, r := range stickyRules(a, endpoint) {
			rule(r)
		}
	}
	rule(endpoint, toEndpoint)
}

// sticky is the map of clients (address and balancer) to endpoints.
var sticky = nft.Set{Name: "sticky", Key: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInteger), Data: address,
	Dynamic: true, Timeout: maxSticky, Size: 1 << 18}

// stickyRules keep a client at its endpoint while that takes connections. A
// client whose endpoint no longer does is forgotten on its next connection, in
// the kernel, so a change of endpoints needs no walk over clients. When the map
// is full, the rule that follows chooses any endpoint.
func stickyRules(a action, endpoint []expr.Any) [][]expr.Any {
	client := &expr.Payload{DestRegister: r4, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
	known := into(r8, r4, sticky.Name)
	copyBalancer := &expr.Bitwise{SourceRegister: r5, DestRegister: r7, Len: 4, Mask: native(^uint32(0)), Xor: native(0)}
	update := func(operation uint32) expr.Any {
		return &expr.Dynset{SrcRegKey: r4, SrcRegData: r8, SetName: sticky.Name, Operation: operation, Timeout: a.sticky}
	}
	return [][]expr.Any{
		join(client, known, copyBalancer, lookup(r7, members), update(unix.NFT_DYNSET_OP_UPDATE), toEndpoint),
		join(client, known, update(dynsetDelete)),
		join(endpoint, client, update(unix.NFT_DYNSET_OP_UPDATE), toEndpoint),
	}
}

// dynsetDelete is NFT_DYNSET_OP_DELETE of linux/netfilter/nf_tables.h.
const dynsetDelete = 2
