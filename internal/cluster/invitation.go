package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/cluster/join"
	"proa/internal/controllers/csr"
	"proa/internal/controllers/nodeipam"
)

// invitation publishes what joining nodes need to know, and the token that the
// cluster was started with.
type invitation struct {
	cp    *controlPlane
	token *join.Grant
}

// Run publishes until that has worked once.
func (i *invitation) Run(ctx context.Context) error {
	const retryMax = 30 * time.Second
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, retryMax) {
		err := i.publish(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		slog.WarnContext(ctx, "publish what joining nodes need", "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

func (i *invitation) publish(ctx context.Context) error {
	s := i.cp.settings
	api := i.cp.As("system:apiserver", user.SystemPrivilegedGroup)
	err := join.Publish(ctx, api, join.Cluster{
		Server: s.joinServer(), CA: i.cp.authority.CAPEM(), KubernetesVersion: apis.KubernetesVersion,
		Networking: join.Networking{DNSDomain: s.ClusterDomain, PodSubnet: s.PodCIDR, ServiceSubnet: s.ServiceCIDR},
	})
	if err != nil || i.token == nil {
		return err
	}
	return join.EnsureToken(ctx, api, *i.token)
}

// nodeServing are the limits within which nodes get serving certificates by themselves.
func (cp *controlPlane) nodeServing() csr.Serving {
	names, ips := cp.settings.serverNames()
	limits := csr.Serving{
		Names:  names,
		Ranges: []netip.Prefix{netip.MustParsePrefix(cp.settings.ServiceCIDR), netip.MustParsePrefix(cp.settings.PodCIDR)},
	}
	for _, ip := range ips {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			limits.IPs = append(limits.IPs, addr.Unmap())
		}
	}
	return limits
}

// claimRange gives the server's own node its pod addresses before it registers.
func (cp *controlPlane) claimRange(ctx context.Context, ipam *nodeipam.Controller) error {
	nodes, err := client.Of[*corev1.Node](cp.As("system:apiserver", user.SystemPrivilegedGroup)).List(ctx, "", metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	ranges, err := ipam.Claim(cp.settings.NodeName, nodes)
	if err != nil {
		return err
	}
	cp.nodeCIDR = ranges[0]
	return nil
}

// Admin is the API of the cluster in l as its administrator.
func Admin(l Layout) (client.API, error) {
	settings, err := readSettings(l)
	if err != nil {
		return nil, err
	}
	if settings == nil || settings.Server != "" {
		return nil, fmt.Errorf("there is no control plane in %s; run this on the server", l.Data)
	}
	config, err := restConfig(l)
	if err != nil {
		return nil, err
	}
	return client.NewHTTP(config, builtin.Catalogue())
}

// JoinCommand is what a person types on a machine that shall join the cluster in l.
func JoinCommand(l Layout, t join.Token) (string, error) {
	settings, err := readSettings(l)
	if err != nil {
		return "", err
	}
	authority, err := pki.LoadOrCreate(l.PKI())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("proa agent --server %s --token %s --token-ca-cert-hash %s", settings.joinServer(), t, join.Pin(authority.Cluster.Cert)), nil
}
