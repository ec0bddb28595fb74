// Package network is how pods talk: the pod network of one node (bridge, CNI
// configuration), the service proxy in the kernel and the cluster's DNS. It
// reads Services, EndpointSlices, Pods and Nodes and writes only what DNS needs
// to be found: the Service kube-system/kube-dns and its EndpointSlice.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/network/dns"
	"proa/internal/network/podnet"
	"proa/internal/network/proxy"
)

// Config makes a Network. Cache, NodeName, Bridge, Table, PodCIDR, ServiceCIDR,
// CNIDir and StateDir have no default.
type Config struct {
	Cache *client.Cache // not yet running: New asks it for its informers
	// API writes the DNS service. Its user may create and update Services and
	// EndpointSlices in kube-system. Nil: the cache's.
	API client.API

	NodeName string
	Bridge   string // link of this node's pods, at most 15 bytes; also names the CNI network
	Table    string // nftables table, family inet

	PodCIDR       netip.Prefix // of all pods of the cluster, IPv4
	NodeCIDR      netip.Prefix // of this node's pods; zero: NodeCIDR(PodCIDR)
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

// NodeCIDR is the range of the first node in a cluster's pod range: its first /24.
func NodeCIDR(podCIDR netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(podCIDR.Masked().Addr(), max(podCIDR.Bits(), 24))
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
	c     Config
	pods  *podnet.Network
	proxy *proxy.Proxy
	dns   *dns.Server
	ready chan struct{}
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
	if !c.NodeCIDR.IsValid() {
		c.NodeCIDR = NodeCIDR(c.PodCIDR)
	}
	if !c.DNSAddress.IsValid() {
		c.DNSAddress = DNSAddress(c.ServiceCIDR)
	}
	if c.API == nil {
		c.API = c.Cache.API()
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
	pods, err := podnet.New(podnet.Config{Bridge: c.Bridge, CIDR: c.NodeCIDR, ServiceCIDR: c.ServiceCIDR,
		CNIDir: c.CNIDir, StateDir: c.StateDir, MTU: c.MTU})
	if err != nil {
		return nil, err
	}
	if c.DNSListen == "" {
		c.DNSListen = netip.AddrPortFrom(pods.Gateway(), dns.Port).String()
	}
	return &Network{
		c:    c,
		pods: pods,
		proxy: proxy.New(proxy.Config{Cache: c.Cache, NodeName: c.NodeName, Table: c.Table, Bridge: c.Bridge,
			PodCIDR: c.PodCIDR, NodeCIDR: c.NodeCIDR, ServiceCIDR: c.ServiceCIDR, NodePortAddresses: c.NodePortAddresses,
			AllowExternalIPs: c.AllowExternalIPs, HealthAddress: c.HealthAddress, Clock: c.Clock}),
		dns: dns.New(dns.Config{Cache: c.Cache, Domain: c.ClusterDomain, Listen: c.DNSListen, Address: c.DNSAddress,
			Ranges: []netip.Prefix{c.PodCIDR.Masked(), c.ServiceCIDR.Masked()}, ResolvConf: c.ResolvConf, Clock: c.Clock}),
		ready: make(chan struct{}),
	}, nil
}

// Gateway is the node's address on the bridge, where pods send what is not for themselves.
func (n *Network) Gateway() netip.Addr { return n.pods.Gateway() }

// Ready is closed once pods can be given addresses, Services reach them and DNS answers.
func (n *Network) Ready() <-chan struct{} { return n.ready }

// Run sets the network up and keeps it current until ctx ends. The cache must
// have synced. Pods keep their network when Run ends: see Remove.
func (n *Network) Run(ctx context.Context) error {
	if err := n.pods.SetUp(ctx); err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.proxy.Run(ctx) })
	g.Go(func() error { return n.dns.Run(ctx) })
	g.Go(func() error { return n.announceDNS(ctx) })
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

// Remains names what a Network leaves behind for its pods.
type Remains struct {
	Bridge, Table, CNIDir, StateDir string
}

// Remove deletes what a Network with these names set up on this host: pods'
// links, bridge, nftables table, CNI configuration and address book. What is
// not there is no error.
func Remove(r Remains) error {
	return errors.Join(
		proxy.Remove(r.Table),
		podnet.Remove(podnet.Config{Bridge: r.Bridge, CNIDir: r.CNIDir, StateDir: r.StateDir}),
	)
}
