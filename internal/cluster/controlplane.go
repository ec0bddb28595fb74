package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apiserver"
	"proa/internal/apiserver/connect"
	"proa/internal/apiserver/registry"
	"proa/internal/auth"
	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/controllers/clustertrust"
	"proa/internal/controlplane"
)

// controlPlane is the server half of a cluster with what the cluster knows about it.
type controlPlane struct {
	*controlplane.ControlPlane
	settings      Settings
	authority     *pki.Authority
	kubeletClient *http.Client
	metrics       *prometheus.Registry // behind /metrics
	nodeCIDR      netip.Prefix         // of the server's own node, if it has one
}

// openControlPlane puts the control plane together and binds its port. Nothing
// is served yet; Close releases it.
func openControlPlane(ctx context.Context, l Layout, s Settings, authority *pki.Authority) (*controlPlane, error) {
	config, err := s.controlPlane(l, authority)
	if err != nil {
		return nil, err
	}
	config.Listener, err = net.Listen("tcp", net.JoinHostPort(s.BindAddress, strconv.Itoa(s.Port)))
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	config.Server.Metrics = prometheus.NewRegistry()
	cp := &controlPlane{metrics: config.Server.Metrics, settings: s, authority: authority, kubeletClient: newKubeletClient(config.Server.Kubelet.KubeletTLS, config.Egress.Cluster)}
	cp.ControlPlane, err = controlplane.Open(ctx, config)
	if err == nil {
		cp.Components = map[string]controlplane.ComponentCheck{
			"controller-manager": cp.checkLeader("kube-controller-manager"), "scheduler": cp.checkLeader("kube-scheduler"),
		}
	}
	return cp, err
}

// checkLeader returns what says how a component is. Alone it is well: it ends with
// this process. Of servers that share an etcd one holds the Lease of that name.
func (cp *controlPlane) checkLeader(name string) controlplane.ComponentCheck {
	return func(ctx context.Context) error {
		if !cp.settings.Datastore.shared() {
			return nil
		}
		lease, err := client.Of[*coordinationv1.Lease](cp.As(user.APIServerUser, user.SystemPrivilegedGroup)).Get(ctx, "kube-system", name)
		if err != nil {
			return err
		}
		s := lease.Spec
		if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || time.Since(s.RenewTime.Time) > leaseDuration {
			return fmt.Errorf("lease kube-system/%s: no server leads", name)
		}
		return nil
	}
}

// controlPlane is what the settings make of a control plane, but for its listener.
func (s Settings) controlPlane(l Layout, authority *pki.Authority) (c controlplane.Config, err error) {
	if c.EventTTL, err = s.eventTTL(); err != nil {
		return c, err
	}
	if c.Gates, c.Runtime, err = s.serving(); err != nil {
		return c, err
	}
	names, ips := s.serverNames()
	serving, err := keyPair(authority.KeptServer("apiserver", names, ips))
	if err != nil {
		return c, fmt.Errorf("serving certificate: %w", err)
	}
	kubeletClient, err := keyPair(authority.KeptClient("apiserver-kubelet-client", "kube-apiserver-kubelet-client", user.SystemPrivilegedGroup))
	if err != nil {
		return c, fmt.Errorf("kubelet client certificate: %w", err)
	}
	c.Auth = auth.Config{
		ClientCA:          authority.Cluster.Pool(),
		FrontProxyCA:      authority.FrontProxy.Pool(),
		Issuers:           []string{"https://kubernetes.default.svc." + s.ClusterDomain},
		ServiceAccountKey: authority.ServiceAccountKey,
	}
	frontProxy, err := keyPair(authority.Kept("front-proxy-client", authority.FrontProxy,
		pki.Leaf{CommonName: frontProxyName, Usage: x509.ExtKeyUsageClientAuth}))
	if err != nil {
		return c, fmt.Errorf("front proxy certificate: %w", err)
	}
	c.FrontProxy = &frontProxy
	c.Trust = clustertrust.Trust{
		ClientCA: authority.CAPEM(), FrontProxyNames: []string{frontProxyName},
		FrontProxyCA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.FrontProxy.Cert.Raw}),
	}
	c.Registry = registry.Config{
		ServiceCIDRs:     []netip.Prefix{netip.MustParsePrefix(s.ServiceCIDR)},
		AdvertiseAddress: netip.MustParseAddr(s.advertised()), SecurePort: s.Port,
	}
	c.Server = apiserver.Config{
		TLS:     &tls.Config{Certificates: []tls.Certificate{serving}, ClientCAs: authority.Cluster.Pool()},
		Kubelet: connect.Config{KubeletTLS: &tls.Config{Certificates: []tls.Certificate{kubeletClient}, RootCAs: authority.Cluster.Pool()}},
		Address: net.JoinHostPort(s.advertised(), strconv.Itoa(s.Port)),
	}
	err = s.applyFlags(&c)
	c.Engine = s.Datastore.engine(l, c.Egress.Etcd)
	return c, err
}

// applyFlags changes c to what upstream's flags say.
func (s Settings) applyFlags(c *controlplane.Config) error {
	flags, err := controlplane.ParseFlags(s.APIServer)
	if err != nil {
		return err
	}
	return flags.Apply(c)
}

// frontProxyName is the API server's name to servers that serve a part of the API.
const frontProxyName = "front-proxy-client"

// serverNames are the names and addresses that the API server has.
func (s Settings) serverNames() (names []string, ips []net.IP) {
	names = []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + s.ClusterDomain, "localhost", s.NodeName,
	}
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	firstService := netip.MustParsePrefix(s.ServiceCIDR).Masked().Addr().Next()
	ips = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, firstService.AsSlice()}
	for _, name := range append([]string{s.NodeIP, s.AdvertiseAddress, s.BindAddress}, s.TLSNames...) {
		addr, err := netip.ParseAddr(name)
		switch {
		case err == nil && !addr.IsUnspecified():
			ips = append(ips, addr.AsSlice())
		case err != nil && name != "":
			names = append(names, name)
		}
	}
	return names, ips
}

// access is how the server's own node reaches the API: in the process.
func (cp *controlPlane) access(cache *client.Cache) (access, error) {
	s := cp.settings
	serving, err := keyPair(cp.authority.KeptNodeServer("kubelet", s.NodeName,
		[]string{s.NodeName, "localhost"}, []net.IP{net.ParseIP(s.NodeIP), net.IPv4(127, 0, 0, 1)}))
	if err != nil {
		return access{}, fmt.Errorf("kubelet certificate: %w", err)
	}
	return access{
		api: cp.As("system:node:"+s.NodeName, user.NodesGroup), cache: cache, nodeCIDR: cp.nodeCIDR,
		certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil },
		clientCAs:   cp.authority.Cluster.Pool(),
	}, nil
}

func keyPair(certPEM, keyPEM []byte, err error) (tls.Certificate, error) {
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}
