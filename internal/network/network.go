// Package network is how pods talk: the pod network of one node (bridge, CNI
// configuration, routes to the other nodes), the service proxy in the kernel and
// the cluster's DNS. It reads Services, EndpointSlices, Namespaces, Pods and
// Nodes, and writes only the condition NetworkUnavailable of its own Node.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/network/dns"
	"proa/internal/network/podnet"
	"proa/internal/network/proxy"
)

// Config makes a Network. Cache, NodeName, Bridge, Table, PodCIDR, ServiceCIDR,
// CNIDir and StateDir have no default.
type Config struct {
	// Cache is not yet running: New asks it for its informers. Its API writes the
	// Node's status.
	Cache *client.Cache

	NodeName string
	Bridge   string // link of this node's pods, at most 15 bytes; also names the CNI network
	Table    string // nftables table, family inet

	PodCIDR       netip.Prefix // of all pods of the cluster, IPv4
	NodeCIDR      netip.Prefix // of this node's pods; zero: what its Node says, once it does
	ServiceCIDR   netip.Prefix // of ClusterIPs, IPv4
	ClusterDomain string       // "": cluster.local

	CNIDir   string // where the container runtime looks for its CNI configuration
	StateDir string // where CNI plugins note addresses in use
	MTU      int    // 0: that of the link of the default route

	DNSAddress netip.Addr // ClusterIP of kube-dns; zero: DNSAddress(ServiceCIDR)
	DNSListen  string     // "": port 53 of the bridge
	ResolvConf string     // host's resolvers; "": /etc/resolv.conf

	// NodePortAddresses limits the local addresses that serve node ports. Empty: all.
	NodePortAddresses []netip.Prefix
	// AllowExternalIPs serves spec.externalIPs of Services. They let whoever may
	// create a Service take over traffic to any address (CVE-2020-8554).
	AllowExternalIPs bool
	// HealthAddress serves the proxy's /healthz and /livez, ":10256" upstream. Empty: not served.
	HealthAddress string

	Clock clock.WithTicker // nil: the real one
}

// DNSAddress is the ClusterIP of kube-dns: the tenth address of the service range.
func DNSAddress(serviceCIDR netip.Prefix) netip.Addr {
	a := serviceCIDR.Masked().Addr()
	for range 10 {
		a = a.Next()
	}
	return a
}

// Network is one node's networking.
type Network struct {
	c      Config
	nodes  *client.Informer[*corev1.Node]
	proxy  *proxy.Proxy
	dns    *dns.Server
	ready  chan struct{}
	routes *podnet.Routes
	wake   chan struct{} // has an entry when a Node has changed
}

func (c *Config) setDefaults() error {
	for name, missing := range map[string]bool{"Cache": c.Cache == nil, "NodeName": c.NodeName == "", "Bridge": c.Bridge == "",
		"Table": c.Table == "", "CNIDir": c.CNIDir == "", "StateDir": c.StateDir == ""} {
		if missing {
			return fmt.Errorf("network: %s is missing", name)
		}
	}
	for name, p := range map[string]netip.Prefix{"PodCIDR": c.PodCIDR, "ServiceCIDR": c.ServiceCIDR} {
		if !p.IsValid() || !p.Addr().Is4() {
			return fmt.Errorf("network: %s %s is not an IPv4 range", name, p)
		}
	}
	if !c.DNSAddress.IsValid() {
		c.DNSAddress = DNSAddress(c.ServiceCIDR)
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return nil
}

// New checks c and asks the cache for what Run needs. It changes nothing on the host.
func New(c Config) (*Network, error) {
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	cidr := c.NodeCIDR
	if !cidr.IsValid() {
		cidr = c.PodCIDR // for the check
	}
	if _, err := podNetwork(c, cidr); err != nil {
		return nil, err
	}
	n := &Network{
		c:     c,
		nodes: client.Shared[*corev1.Node](c.Cache),
		proxy: proxy.New(proxy.Config{Cache: c.Cache, NodeName: c.NodeName, Table: c.Table, Bridge: c.Bridge,
			PodCIDR: c.PodCIDR, ServiceCIDR: c.ServiceCIDR, NodePortAddresses: c.NodePortAddresses,
			AllowExternalIPs: c.AllowExternalIPs, HealthAddress: c.HealthAddress, Clock: c.Clock}),
		dns: dns.New(dns.Config{Cache: c.Cache, Domain: c.ClusterDomain, Address: c.DNSAddress,
			Ranges: []netip.Prefix{c.PodCIDR.Masked(), c.ServiceCIDR.Masked()}, ResolvConf: c.ResolvConf, Clock: c.Clock}),
		ready:  make(chan struct{}),
		routes: podnet.NewRoutes(c.PodCIDR),
		wake:   make(chan struct{}, 1),
	}
	n.nodes.OnChange(n.nodeChanged)
	return n, nil
}

func podNetwork(c Config, cidr netip.Prefix) (*podnet.Network, error) {
	return podnet.New(podnet.Config{Bridge: c.Bridge, CIDR: cidr, ServiceCIDR: c.ServiceCIDR,
		CNIDir: c.CNIDir, StateDir: c.StateDir, MTU: c.MTU})
}

// Ready is closed once pods can be given addresses, Services reach them and DNS answers.
func (n *Network) Ready() <-chan struct{} { return n.ready }

// Run sets the network up and keeps it current until ctx ends. The cache must
// have synced. Pods keep their network when Run ends: see Remove.
func (n *Network) Run(ctx context.Context) error {
	cidr, err := n.nodeCIDR(ctx)
	if err != nil {
		return nil // ctx ended
	}
	pods, err := podNetwork(n.c, cidr)
	if err != nil {
		return err
	}
	if err := pods.SetUp(ctx); err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	n.proxy.SetNodeCIDR(cidr)
	if n.c.DNSListen == "" {
		n.dns.SetListen(netip.AddrPortFrom(pods.Gateway(), dns.Port).String())
	} else {
		n.dns.SetListen(n.c.DNSListen)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.proxy.Run(ctx) })
	g.Go(func() error { return n.dns.Run(ctx) })
	g.Go(func() error { return n.keepRoutes(ctx, cidr) })
	g.Go(func() error {
		for _, part := range []<-chan struct{}{n.proxy.Ready(), n.dns.Ready()} {
			select {
			case <-part:
			case <-ctx.Done():
				return nil
			}
		}
		close(n.ready)
		return nil
	})
	return g.Wait()
}

// nodeCIDR is the range of this node's pods, as configured or, else, as soon as
// its Node says it.
func (n *Network) nodeCIDR(ctx context.Context) (netip.Prefix, error) {
	if n.c.NodeCIDR.IsValid() {
		return n.c.NodeCIDR, nil
	}
	for {
		if node, ok := n.nodes.Cached("", n.c.NodeName); ok {
			if cidr, err := netip.ParsePrefix(node.Spec.PodCIDR); err == nil && cidr.Addr().Is4() {
				return cidr, nil
			}
		}
		select {
		case <-n.wake:
		case <-ctx.Done():
			return netip.Prefix{}, ctx.Err()
		}
	}
}

// Remains names what a Network leaves behind for its pods.
type Remains struct {
	Bridge, Table, CNIDir, StateDir string
	PodCIDR                         netip.Prefix // of the cluster; zero: unknown, no routes are removed
}

// Remove deletes what a Network with these names set up on this host: pods'
// links, bridge, routes to other nodes, nftables table, CNI configuration and
// address book. What is not there is no error.
func Remove(r Remains) error {
	return errors.Join(
		proxy.Remove(r.Table),
		podnet.RemoveRoutes(r.PodCIDR),
		podnet.Remove(podnet.Config{Bridge: r.Bridge, CNIDir: r.CNIDir, StateDir: r.StateDir}),
	)
}
