package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeProtocol marks the routes that Routes writes, so that it finds them again
// after a restart and takes no other for its own.
const routeProtocol = 112

// Routes are the ways to other nodes' pods: one route per node, through the
// node's own address (host-gw). It needs the nodes on one network: the kernel
// takes no gateway that it does not reach without another one.
type Routes struct {
	whole  netip.Prefix // pods of the cluster
	handle *netlink.Handle
}

// NewRoutes returns the routes to ranges within whole.
func NewRoutes(whole netip.Prefix) *Routes { return &Routes{whole: whole.Masked()} }

// Close releases the socket; routes stay.
func (r *Routes) Close() {
	if r.handle != nil {
		r.handle.Close()
		r.handle = nil
	}
}

// Set makes the kernel's routes those of want: gateways by range. It writes what
// differs and nothing else. Failed says which ranges have no route, and why; err
// that the kernel could not be asked.
func (r *Routes) Set(want map[netip.Prefix]netip.Addr) (failed map[netip.Prefix]error, err error) {
	if r.handle == nil {
		if r.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
	}
	have, err := r.list()
	if err != nil {
		return nil, err
	}
	failed = map[netip.Prefix]error{}
	for cidr, route := range have {
		if _, wanted := want[cidr]; !wanted {
			if err := deleteRoute(r.handle, &route); err != nil {
				failed[cidr] = err
			}
		}
	}
	for cidr, gateway := range want {
		if route, ok := have[cidr]; ok && route.Gw.Equal(gateway.AsSlice()) {
			continue
		}
		err := r.handle.RouteReplace(&netlink.Route{
			Dst: ipNet(cidr), Gw: gateway.AsSlice(), Protocol: routeProtocol, Family: netlink.FAMILY_V4,
		})
		switch {
		case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EINVAL):
			failed[cidr] = fmt.Errorf("this node is on no network with %s, as it has to be: packets between pods are not encapsulated", gateway)
		case err != nil:
			failed[cidr] = err
		}
	}
	return failed, nil
}

// list returns the routes within the range that are ours.
func (r *Routes) list() (map[netip.Prefix]netlink.Route, error) {
	routes, err := r.handle.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	have := map[netip.Prefix]netlink.Route{}
	for _, route := range routes {
		if cidr, ok := prefixOf(route.Dst); ok && cidr.Bits() >= r.whole.Bits() && r.whole.Contains(cidr.Addr()) {
			have[cidr] = route
		}
	}
	return have, nil
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP.To4())
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr, bits), ok
}

func deleteRoute(h *netlink.Handle, route *netlink.Route) error {
	if err := h.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// RemoveRoutes deletes the routes that a Routes left for ranges within whole.
func RemoveRoutes(whole netip.Prefix) error {
	if !whole.IsValid() {
		return nil
	}
	r := NewRoutes(whole)
	defer r.Close()
	_, err := r.Set(nil)
	return err
}
