package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"proa/internal/admission"
	"proa/internal/admission/policy"
	"proa/internal/admission/webhook"
	"proa/internal/apiextensions"
	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apis/feature"
	"proa/internal/apiserver"
	"proa/internal/apiserver/apply"
	"proa/internal/apiserver/connect"
	"proa/internal/apiserver/registry"
	"proa/internal/auth"
	"proa/internal/auth/pki"
	"proa/internal/auth/rbac"
	"proa/internal/client"
	"proa/internal/kubelet"
	"proa/internal/store"
	"proa/internal/store/pebble"
)

// controlPlane is the server half of a cluster: store, request path and HTTP.
type controlPlane struct {
	settings  Settings
	authority *pki.Authority
	store     *store.Store
	auth      *auth.Auth
	registry  *registry.Registry
	server    *apiserver.Server
	gates     feature.Gates

	kubeletClient *http.Client
	definitions   *apiextensions.Definitions // custom resources
	listener      net.Listener
	nodeCIDR      netip.Prefix // of the server's own node, if it has one
}

// openControlPlane puts the control plane together and binds its port. Nothing
// is served yet; close releases it.
func openControlPlane(ctx context.Context, l Layout, s Settings, authority *pki.Authority) (*controlPlane, error) {
	engine, err := pebble.Open(pebble.Config{Dir: l.Store()})
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	gates, runtime, err := s.serving()
	if err != nil {
		engine.Close()
		return nil, err
	}
	catalogue := builtin.Serving(gates, runtime)
	st, err := store.Open(ctx, store.Config{Engine: engine, Codec: registry.NewCodec(catalogue), Indexes: registry.Indexes(catalogue)})
	if err != nil {
		engine.Close()
		return nil, fmt.Errorf("open store: %w", err)
	}
	cp := &controlPlane{settings: s, gates: gates, authority: authority, store: st}
	if err := cp.assemble(ctx, catalogue); err != nil {
		st.Close()
		return nil, err
	}
	cp.listener, err = net.Listen("tcp", net.JoinHostPort(s.BindAddress, strconv.Itoa(s.Port)))
	if err != nil {
		st.Close()
		return nil, fmt.Errorf("API server: %w", err)
	}
	return cp, nil
}

func (cp *controlPlane) assemble(ctx context.Context, catalogue *apis.Catalogue) error {
	clk := clock.RealClock{}
	serviceCIDR := netip.MustParsePrefix(cp.settings.ServiceCIDR)
	var err error
	cp.auth, err = auth.New(auth.Config{
		Store: cp.store, Clock: clk,
		ClientCA:          cp.authority.Cluster.Pool(),
		FrontProxyCA:      cp.authority.FrontProxy.Pool(),
		Issuer:            "https://kubernetes.default.svc." + cp.settings.ClusterDomain,
		ServiceAccountKey: cp.authority.ServiceAccountKey,
	})
	if err != nil {
		return fmt.Errorf("authentication: %w", err)
	}
	chain, err := cp.newChain(catalogue)
	if err != nil {
		return err
	}
	cp.registry, err = registry.New(registry.Config{
		Store: cp.store, Catalogue: catalogue, Admission: chain, Authorizer: cp.auth.Authorizer, Clock: clk,
		ServiceCIDRs:     []netip.Prefix{serviceCIDR},
		AdvertiseAddress: netip.MustParseAddr(cp.settings.advertised()), SecurePort: cp.settings.Port,
	})
	if err != nil {
		return err
	}
	cp.handleReviews(chain, catalogue)
	if cp.definitions, err = apiextensions.New(apiextensions.Config{Store: cp.store, Catalogue: catalogue}); err != nil {
		return err
	}
	if err := rbac.Bootstrap(ctx, cp.store, clk); err != nil {
		return fmt.Errorf("bootstrap roles: %w", err)
	}
	if err := cp.registry.Bootstrap(ctx); err != nil {
		return fmt.Errorf("bootstrap objects: %w", err)
	}
	return cp.newServer(chain, serviceCIDR)
}

// newChain returns the admission plugins, with those that users configure.
func (cp *controlPlane) newChain(catalogue *apis.Catalogue) (*admission.Chain, error) {
	mutatingHooks, validatingHooks, err := webhook.New(webhook.Config{
		Store: cp.store, Catalogue: catalogue, Authorizer: cp.auth.Authorizer,
	})
	if err != nil {
		return nil, err
	}
	mutatingPolicies, validatingPolicies := policy.New(policy.Config{
		Store: cp.store, Catalogue: catalogue, Authorizer: cp.auth.Authorizer, Types: apply.Types,
	})
	return admission.New(admission.Config{
		Store: cp.store, Catalogue: catalogue, Authorizer: cp.auth.Authorizer, RBAC: cp.auth.RBAC,
		Policies: []any{mutatingPolicies, validatingPolicies},
		Webhooks: []any{mutatingHooks, validatingHooks},
	})
}

// handleReviews connects the kinds that are answered, not stored, behind
// admission: a node's token requests are held to its pods there.
func (cp *controlPlane) handleReviews(chain *admission.Chain, catalogue *apis.Catalogue) {
	for endpoint, handle := range cp.auth.Handlers() {
		if resource, ok := catalogue.Stored(endpoint.GroupResource); ok {
			handle = chain.Guard(resource, endpoint.Subresource, handle)
		}
		cp.registry.Handle(endpoint.GroupResource, endpoint.Subresource,
			func(ctx context.Context, q *registry.Request, obj apis.Object, _ metav1.CreateOptions) (apis.Object, error) {
				return handle(ctx, q.User, q.Namespace, q.Name, obj)
			})
	}
}

func (cp *controlPlane) newServer(chain *admission.Chain, serviceCIDR netip.Prefix) error {
	names, ips := cp.settings.serverNames()
	serving, err := keyPair(cp.authority.KeptServer("apiserver", names, ips))
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	kubeletClient, err := keyPair(cp.authority.KeptClient("apiserver-kubelet-client", "kube-apiserver-kubelet-client", user.SystemPrivilegedGroup))
	if err != nil {
		return fmt.Errorf("kubelet client certificate: %w", err)
	}
	kubeletTLS := &tls.Config{Certificates: []tls.Certificate{kubeletClient}, RootCAs: cp.authority.Cluster.Pool()}
	cp.kubeletClient = newKubeletClient(kubeletTLS)
	cp.server, err = apiserver.New(apiserver.Config{
		Registry: cp.registry, Store: cp.store, Admission: chain,
		Authenticator: cp.auth.Authenticator, Authorizer: cp.auth.Authorizer,
		TLS:                 &tls.Config{Certificates: []tls.Certificate{serving}, ClientCAs: cp.authority.Cluster.Pool()},
		Kubelet:             connect.Config{KubeletTLS: kubeletTLS},
		Version:             kubernetesVersion(),
		Features:            cp.gates,
		Address:             net.JoinHostPort(cp.settings.advertised(), fmt.Sprint(cp.settings.Port)),
		JWKS:                cp.auth.Tokens.JWKS(),
		OpenIDConfiguration: cp.auth.Tokens.Discovery(),
	})
	return err
}

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
		api: cp.as("system:node:"+s.NodeName, user.NodesGroup), cache: cache, nodeCIDR: cp.nodeCIDR,
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

// Commit and BuildDate are stamped at link time.
var Commit, BuildDate string

// kubernetesVersion is what /version says: the Kubernetes that the API equals.
func kubernetesVersion() version.Info {
	return version.Info{
		Major: "1", Minor: "37", GitVersion: kubelet.Version + "+proa", GitCommit: Commit, GitTreeState: "clean",
		BuildDate: BuildDate, GoVersion: goVersion, Compiler: "gc", Platform: platform,
	}
}

// as is the API in this process, as one of the system's users.
func (cp *controlPlane) as(name string, groups ...string) client.API {
	return cp.registry.As(&user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)})
}

// close releases the store; nothing runs any more.
func (cp *controlPlane) close() {
	cp.listener.Close()
	if err := cp.store.Close(); err != nil {
		slog.Error("close store", "err", err)
	}
}
