package podnet

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// ensureBridge makes the bridge, its gateway address and brings it up.
func (n *Network) ensureBridge() (netlink.Link, error) {
	link, err := netlink.LinkByName(n.c.Bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		link, err = n.addBridge()
	}
	if err != nil {
		return nil, err
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("a link of type %s has this name", link.Type())
	}
	if n.c.MTU > 0 && link.Attrs().MTU != n.c.MTU {
		if err := netlink.LinkSetMTU(link, n.c.MTU); err != nil {
			return nil, err
		}
	}
	gateway := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(n.Gateway(), n.c.CIDR.Bits()))}
	if err := netlink.AddrReplace(link, gateway); err != nil {
		return nil, fmt.Errorf("address %s: %w", gateway, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, err
	}
	return netlink.LinkByName(n.c.Bridge)
}

func (n *Network) addBridge() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.c.Bridge
	attrs.HardwareAddr = hardwareAddress(n.c.Bridge)
	attrs.MTU = n.c.MTU
	if attrs.MTU == 0 {
		attrs.MTU = defaultMTU()
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return netlink.LinkByName(n.c.Bridge)
}

// hardwareAddress gives the bridge an address of its own. Without one it takes
// the lowest of its ports', which changes as pods come and go, under neighbours
// that remember it.
func hardwareAddress(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	sum[0] = sum[0]&^0x01 | 0x02 // locally administered, not a group
	return sum[:6]
}

const ethernetMTU = 1500

// defaultMTU is the MTU of the link of the default route: what pods can send beyond the node.
func defaultMTU() int {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_DST)
	if err != nil {
		return ethernetMTU
	}
	for _, r := range routes {
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil && link.Attrs().MTU > 0 {
			return min(link.Attrs().MTU, 65535)
		}
	}
	return ethernetMTU
}

// ensureServiceRoute gives the host itself a way to ClusterIPs, from the gateway
// address. The proxy rewrites the destination before a packet leaves.
func (n *Network) ensureServiceRoute(link netlink.Link) error {
	if !n.c.ServiceCIDR.IsValid() {
		return nil
	}
	return netlink.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK,
		Dst: ipNet(n.c.ServiceCIDR.Masked()), Src: n.Gateway().AsSlice(),
	})
}

// setKernelOptions sets what the pod network needs, only on its own link where
// the kernel allows that.
//
//   - ip_forward: pods are routed.
//   - route_localnet: a process of this host reaches node ports at 127.0.0.1. The
//     proxy's table drops what comes from a pod with a loopback address (CVE-2020-8558).
//   - rp_filter, loose at most: strict would drop the answers to that.
//   - send_redirects: pods shall not learn a way around the gateway. The kernel
//     sends them if "all" or the link says so; other links keep their own setting.
//   - neigh: an address that a pod of before had is asked for anew at once. By default
//     packets go to the old pod's link for eight seconds, when the new one's announcement
//     was missed, and probes fail meanwhile.
func (n *Network) setKernelOptions() error {
	link, neighbours := "conf/"+n.c.Bridge, "neigh/"+n.c.Bridge
	for _, option := range []struct{ name, value string }{
		{"ip_forward", "1"},
		{link + "/forwarding", "1"},
		{link + "/route_localnet", "1"},
		{link + "/rp_filter", "2"},
		{"conf/all/send_redirects", "0"},
		{link + "/send_redirects", "0"},
		{neighbours + "/delay_first_probe_time", "0"},
		{neighbours + "/retrans_time_ms", "100"},
		{neighbours + "/ucast_solicit", "1"},
		{neighbours + "/mcast_resolicit", "3"},
	} {
		if err := setOption(option.name, option.value); err != nil {
			return fmt.Errorf("kernel option net.ipv4.%s: %w", option.name, err)
		}
	}
	return nil
}

// setOption leaves alone an option that is right.
func setOption(name, value string) error {
	path := filepath.Join("/proc/sys/net/ipv4", name)
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if string(have) == value+"\n" {
		return nil
	}
	return os.WriteFile(path, []byte(value), 0o644)
}

// removeBridge deletes the bridge and the links attached to it, which deletes
// their ends inside pods.
func removeBridge(name string) error {
	bridge, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		if link.Attrs().MasterIndex != bridge.Attrs().Index || link.Type() != "veth" {
			continue
		}
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete link %s: %w", link.Attrs().Name, err)
		}
	}
	if err := netlink.LinkDel(bridge); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete bridge %s: %w", name, err)
	}
	return nil
}
