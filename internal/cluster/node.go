package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"proa/internal/client"
	"proa/internal/containerd"
	"proa/internal/kubelet"
	"proa/internal/network"
	"proa/internal/payload"
)

// node is the node half of a cluster: containers, network and agent.
type node struct {
	layout   Layout
	settings Settings
	runtime  *containerd.Runtime
	api      client.API    // as this node
	reads    *client.Cache // what network and agent read
	network  *network.Network
	agent    *kubelet.Kubelet
}

// access is a node's way to the API, and what it shows those who call its agent.
type access struct {
	api         client.API    // as this node
	cache       *client.Cache // that network and agent read through; it must not run yet
	nodeCIDR    netip.Prefix  // of the node's pods; zero: not known before it registers
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	clientCAs   *x509.CertPool
}

// newNode unpacks the payload and prepares the runtime; it starts nothing.
func newNode(ctx context.Context, l Layout, s Settings) (*node, error) {
	bin, err := payload.Unpack(ctx, l.Payload())
	if err != nil {
		return nil, err
	}
	n := &node{layout: l, settings: s}
	n.runtime, err = containerd.New(containerdConfig(l, bin))
	return n, err
}

func containerdConfig(l Layout, bin payload.Bin) containerd.Config {
	return containerd.Config{
		Bin: bin, Root: l.Containerd(), RunDir: l.ContainerdRun(), CNIConfDir: l.CNI(),
		LogFile: filepath.Join(l.Logs(), "containerd.log"), CgroupRoot: l.CgroupRoot(),
	}
}

// join connects the node to an API.
func (n *node) join(a access) error {
	view := a.cache.As(a.api)
	n.api, n.reads = a.api, view
	config := networkConfig(n.layout, n.settings, view)
	config.NodeCIDR = a.nodeCIDR
	var err error
	if n.network, err = network.New(config); err != nil {
		return err
	}
	var podCIDRs []string
	if a.nodeCIDR.IsValid() {
		podCIDRs = []string{a.nodeCIDR.String()}
	}
	configuration, err := n.configuration()
	if err != nil {
		return err
	}
	n.agent, err = kubelet.New(kubelet.Config{
		API: a.api, Cache: view, NodeName: n.settings.NodeName, NodeIPs: []string{n.settings.NodeIP}, PodCIDRs: podCIDRs,
		RootDir: n.layout.Kubelet(), Configuration: configuration, Certificate: a.certificate, ClientCAs: a.clientCAs,
	})
	return err
}

func (s Settings) clusterDNS() netip.Addr {
	return network.DNSAddress(netip.MustParsePrefix(s.ServiceCIDR))
}

// Run keeps network and agent going until ctx ends, once what they read is there.
func (n *node) Run(ctx context.Context) error {
	if n.reads.WaitForSync(ctx) != nil {
		return nil // ctx ended
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.network.Run(ctx) })
	g.Go(func() error { return n.agent.Run(ctx) })
	return g.Wait()
}

// readyTimeout bounds a start. A node that is not Ready by then has a problem
// that waiting does not mend; the log says which.
const readyTimeout = 60 * time.Second

// waitReady blocks until the API shows this node as Ready.
func (n *node) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	w, err := client.Of[*corev1.Node](n.api).Watch(ctx, "", metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", n.settings.NodeName).String(),
	})
	if err != nil {
		return fmt.Errorf("watch node %s: %w", n.settings.NodeName, err)
	}
	defer w.Stop()
	last := "it has not registered"
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return fmt.Errorf("node %s is not Ready: %s; see %s", n.settings.NodeName, last, n.layout.LogFile())
		}
		for _, ev := range events {
			obj, ok := ev.Object.(*corev1.Node)
			if !ok || obj.Name == "" {
				continue
			}
			part := nodePart(obj)
			if part.Healthy {
				return nil
			}
			last = part.Detail
		}
	}
}

func networkConfig(l Layout, s Settings, cache *client.Cache) network.Config {
	return network.Config{
		Cache: cache, NodeName: s.NodeName, Bridge: l.Bridge(), Table: l.NFTable(),
		PodCIDR: netip.MustParsePrefix(s.PodCIDR), ServiceCIDR: netip.MustParsePrefix(s.ServiceCIDR),
		ClusterDomain: s.ClusterDomain, CNIDir: l.CNI(), StateDir: l.CNIState(), DNSAddress: s.clusterDNS(),
	}
}

func networkRemains(l Layout, s *Settings) network.Remains {
	r := network.Remains{Bridge: l.Bridge(), Table: l.NFTable(), CNIDir: l.CNI(), StateDir: l.CNIState()}
	if s != nil {
		r.PodCIDR, _ = netip.ParsePrefix(s.PodCIDR) // an agent that never joined knows none
	}
	return r
}
