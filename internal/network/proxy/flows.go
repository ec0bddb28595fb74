package proxy

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// flowCleaner makes the kernel forget where packets of protocols without
// connections went: a client that keeps sending from one port would otherwise
// stay with an endpoint that is gone, or untranslated, for as long as it sends.
type flowCleaner struct {
	netns int
	wake  chan struct{}

	mu      sync.Mutex
	pending map[frontend][]netip.AddrPort // guarded by mu: current endpoints
}

func newFlowCleaner(netns int) *flowCleaner {
	return &flowCleaner{netns: netns, wake: make(chan struct{}, 1), pending: map[frontend][]netip.AddrPort{}}
}

// datagramChanges returns the frontends whose flows may be stale once new
// replaces old, with their endpoints from then on.
func datagramChanges(old, new *fragment) map[frontend][]netip.AddrPort {
	var was, is map[frontend][]netip.AddrPort
	if old != nil {
		was = old.datagram
	}
	if new != nil {
		is = new.datagram
	}
	changed := map[frontend][]netip.AddrPort{}
	for front := range was {
		if !slices.Equal(was[front], is[front]) {
			changed[front] = is[front]
		}
	}
	for front, to := range is {
		if _, known := was[front]; !known {
			changed[front] = to
		}
	}
	return changed
}

// clean asks for the flows of these frontends that lead elsewhere to be deleted.
func (c *flowCleaner) clean(current map[frontend][]netip.AddrPort) {
	if len(current) == 0 {
		return
	}
	c.mu.Lock()
	maps.Copy(c.pending, current)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *flowCleaner) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
		c.mu.Lock()
		pending := c.pending
		c.pending = map[frontend][]netip.AddrPort{}
		c.mu.Unlock()
		if err := deleteStale(c.netns, pending); err != nil {
			slog.WarnContext(ctx, "delete stale flows", "err", err)
		}
	}
}

func deleteStale(ns int, current map[frontend][]netip.AddrPort) error {
	handle, err := handleOf(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer handle.Close()
	local, err := localAddresses(ns)
	if err != nil {
		return err
	}
	_, err = handle.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, staleFlows{current, local})
	return err
}

func localAddresses(ns int) (map[netip.Addr]bool, error) {
	handle, err := handleOf(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	found, err := handle.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	local := map[netip.Addr]bool{}
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			local[addr.Unmap()] = true
		}
	}
	return local, nil
}

func handleOf(ns, family int) (*netlink.Handle, error) {
	if ns != 0 {
		return netlink.NewHandleAt(netns.NsHandle(ns), family)
	}
	return netlink.NewHandle(family)
}

// staleFlows matches flows to one of the frontends that are answered by none of
// its endpoints.
type staleFlows struct {
	current map[frontend][]netip.AddrPort
	local   map[netip.Addr]bool // the node's own
}

func (s staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	to, ok1 := netip.AddrFromSlice(flow.Forward.DstIP)
	from, ok2 := netip.AddrFromSlice(flow.Reverse.SrcIP)
	if !ok1 || !ok2 {
		return false
	}
	to, from = to.Unmap(), from.Unmap()
	endpoints, known := s.current[frontend{to, flow.Forward.Protocol, flow.Forward.DstPort}]
	if !known && s.local[to] {
		endpoints, known = s.current[frontend{proto: flow.Forward.Protocol, port: flow.Forward.DstPort}]
	}
	return known && !slices.Contains(endpoints, netip.AddrPortFrom(from, flow.Reverse.SrcPort))
}
