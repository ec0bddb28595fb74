package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/containerd"
	"proa/internal/kubelet"
	"proa/internal/network"
	"proa/internal/payload"
)

const (
	nodesGroup = "system:nodes"
	nodePrefix = "system:node:"
	dnsUser    = "system:proa:cluster-dns"
)

// node is the node half of a cluster: containers, network and agent.
type node struct {
	layout    Layout
	settings  Settings
	authority *pki.Authority
	bin       payload.Bin
	runtime   *containerd.Runtime
	system    client.API // as the control plane, for what a node may not see or write
	network   *network.Network
	agent     *kubelet.Kubelet
}

// newNode unpacks the payload and prepares the runtime; it starts nothing.
func newNode(ctx context.Context, l Layout, s Settings, authority *pki.Authority) (*node, error) {
	bin, err := payload.Unpack(ctx, l.Payload())
	if err != nil {
		return nil, err
	}
	n := &node{layout: l, settings: s, authority: authority, bin: bin}
	n.runtime, err = containerd.New(containerdConfig(l, bin))
	return n, err
}

func containerdConfig(l Layout, bin payload.Bin) containerd.Config {
	return containerd.Config{
		Bin: bin, Root: l.Containerd(), RunDir: l.ContainerdRun(), CNIConfDir: l.CNI(),
		LogFile: filepath.Join(l.Logs(), "containerd.log"), CgroupRoot: l.CgroupRoot(),
	}
}

// join connects the node to an API as this node; system may write what a node
// may not, the DNS Service. Cache is the one that network and agent read
// through; it must not run yet.
func (n *node) join(api, system client.API, cache *client.Cache) error {
	n.system = system
	config := networkConfig(n.layout, n.settings, cache.As(api))
	config.API = system
	var err error
	n.network, err = network.New(config)
	if err != nil {
		return err
	}
	serving, err := keyPair(n.authority.KeptNodeServer("kubelet", n.settings.NodeName,
		[]string{n.settings.NodeName, "localhost"}, []net.IP{net.ParseIP(n.settings.NodeIP), net.IPv4(127, 0, 0, 1)}))
	if err != nil {
		return fmt.Errorf("kubelet certificate: %w", err)
	}
	n.agent, err = kubelet.New(kubelet.Config{
		API: api, Cache: cache.As(api), NodeName: n.settings.NodeName, NodeIPs: []string{n.settings.NodeIP},
		Runtime: n.runtime.Endpoint(),
		RootDir: n.layout.Kubelet(), LogDir: filepath.Join(n.layout.Logs(), "pods"), ManifestDir: n.layout.Manifests(),
		ImageDir: n.layout.Containerd(), CgroupRoot: n.layout.CgroupRoot(),
		ClusterDNS: []string{n.settings.clusterDNS().String()}, ClusterDomain: n.settings.ClusterDomain,
		Port:        int32(n.settings.KubeletPort),
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil },
		ClientCAs:   n.authority.Cluster.Pool(),
	})
	return err
}

func (s Settings) clusterDNS() netip.Addr {
	return network.DNSAddress(netip.MustParsePrefix(s.ServiceCIDR))
}

// Run keeps network and agent going until ctx ends; the cache has synced.
func (n *node) Run(ctx context.Context) error {
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
	send := true
	w, err := client.Of[*corev1.Node](n.system).Watch(ctx, "", metav1.ListOptions{
		FieldSelector:       fields.OneTermEqualSelector("metadata.name", n.settings.NodeName).String(),
		SendInitialEvents:   &send,
		AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
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

func networkRemains(l Layout) network.Remains {
	return network.Remains{Bridge: l.Bridge(), Table: l.NFTable(), CNIDir: l.CNI(), StateDir: l.CNIState()}
}
