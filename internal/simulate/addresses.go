package simulate

import (
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// fleetRange is where the pods of simulated nodes have their addresses: the range
// for carriers (RFC 6598), which no cluster's own pods or Services are in.
var fleetRange = netip.MustParsePrefix("100.64.0.0/10")

// nodeBits is the prefix length of one node of a fleet: 126 pods.
const nodeBits = 25

// addresses gives pods addresses, each once.
type addresses struct {
	fallback netip.Prefix // of nodes without a range

	mu    sync.Mutex // guards what follows
	used  map[netip.Addr]struct{}
	after map[netip.Prefix]netip.Addr // the last one given
}

// take returns a free address of the node's range, empty when there is none.
func (a *addresses) take(node *corev1.Node) string {
	within := a.fallback
	if cidr, err := netip.ParsePrefix(node.Spec.PodCIDR); err == nil {
		within = cidr.Masked()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used == nil {
		a.used, a.after = map[netip.Addr]struct{}{}, map[netip.Prefix]netip.Addr{}
	}
	start, began := a.after[within]
	if !began {
		start = within.Addr().Next() // the first is the node's own
	}
	for addr := start.Next(); addr != start; addr = addr.Next() {
		if !within.Contains(addr) {
			addr = within.Addr().Next()
			if addr == start {
				break
			}
			continue
		}
		if _, taken := a.used[addr]; !taken {
			a.used[addr] = struct{}{}
			a.after[within] = addr
			return addr.String()
		}
	}
	return ""
}

// keep notes that an address is in use already.
func (a *addresses) keep(address string) {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used == nil {
		a.used, a.after = map[netip.Addr]struct{}{}, map[netip.Prefix]netip.Addr{}
	}
	a.used[addr] = struct{}{}
}

func (a *addresses) free(address string) {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.used, addr)
}

// fleetCIDR is the range of the pods of node n.
func fleetCIDR(n int) (netip.Prefix, bool) {
	base := fleetRange.Addr().As4()
	whole := uint32(base[0])<<24 | uint32(base[1])<<16
	if n < 0 || n >= 1<<(nodeBits-fleetRange.Bits()) {
		return netip.Prefix{}, false
	}
	at := whole + uint32(n)<<(32-nodeBits)
	addr := netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)})
	return netip.PrefixFrom(addr, nodeBits), true
}
