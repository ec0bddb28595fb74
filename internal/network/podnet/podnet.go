// Package podnet gives this node's pods their network: a bridge that holds the
// gateway address, and the CNI configuration with which the container runtime
// attaches pods to it.
//
// A pod's address has the prefix length of the node's range, yet the pod sends
// everything, even to its neighbours, to the gateway: two routes that are one bit
// longer than the range cover it. So each packet between pods passes the
// kernel's IP layer, where the service proxy must see both directions of a
// connection, and it does not matter whether br_netfilter is loaded.
package podnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Config makes a Network.
type Config struct {
	Bridge      string       // at most 15 bytes
	CIDR        netip.Prefix // of this node's pods, IPv4; its first address is the gateway
	ServiceCIDR netip.Prefix // routed to the bridge, so that the host itself needs no default route
	CNIDir      string       // of the container runtime
	StateDir    string       // of the plugin that hands out addresses
	MTU         int          // 0: that of the link of the default route
}

// Network is the pod network of one node.
type Network struct{ c Config }

// New checks c. It changes nothing on the host.
func New(c Config) (*Network, error) {
	c.CIDR = c.CIDR.Masked()
	switch {
	case c.Bridge == "" || len(c.Bridge) > maxLinkName:
		return nil, fmt.Errorf("bridge %q: a link's name has 1 to %d bytes", c.Bridge, maxLinkName)
	case !c.CIDR.IsValid() || !c.CIDR.Addr().Is4() || c.CIDR.Bits() > 30:
		return nil, fmt.Errorf("pod range %s: want an IPv4 range of at least four addresses", c.CIDR)
	}
	return &Network{c: c}, nil
}

const maxLinkName = 15 // IFNAMSIZ less the zero byte

// Gateway is the host's address on the bridge.
func (n *Network) Gateway() netip.Addr { return n.c.CIDR.Addr().Next() }

// SetUp makes the host match the configuration. It may be called again at any time.
func (n *Network) SetUp(ctx context.Context) error {
	link, err := n.ensureBridge()
	if err != nil {
		return fmt.Errorf("bridge %s: %w", n.c.Bridge, err)
	}
	if err := n.setKernelOptions(); err != nil {
		return err
	}
	if err := n.ensureServiceRoute(link); err != nil {
		return fmt.Errorf("route to services: %w", err)
	}
	if err := os.MkdirAll(n.c.StateDir, 0o755); err != nil {
		return err
	}
	return n.writeConflist(link.Attrs().MTU)
}

// Remove deletes pods' links, the bridge, the CNI configuration and state that
// a Network with these names left.
func Remove(c Config) error {
	results, err := filepath.Glob(filepath.Join(resultCache, "results", c.Bridge+"-*"))
	errs := []error{err, removeBridge(c.Bridge)}
	for _, path := range append(results, filepath.Join(c.CNIDir, conflistName), c.StateDir) {
		if path != "" {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// resultCache is where CNI clients keep what they were told about each
// attachment, in files named after the network. Their library fixes the path.
const resultCache = "/var/lib/cni"
