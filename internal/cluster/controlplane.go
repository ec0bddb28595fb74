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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver"
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

	kubeletClient *http.Client
	listener      net.Listener
}

// openControlPlane puts the control plane together and binds its port. Nothing
// is served yet; close releases it.
func openControlPlane(ctx context.Context, l Layout, s Settings, authority *pki.Authority) (*controlPlane, error) {
	engine, err := pebble.Open(pebble.Config{Dir: l.Store()})
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	catalogue := builtin.Catalogue()
	st, err := store.Open(ctx, store.Config{Engine: engine, Codec: registry.NewCodec(catalogue), Indexes: registry.Indexes(catalogue)})
	if err != nil {
		engine.Close()
		return nil, fmt.Errorf("open store: %w", err)
	}
	cp := &controlPlane{settings: s, authority: authority, store: st}
	if err := cp.assemble(ctx, catalogue); err != nil {
		st.Close()
		return nil, err
	}
	cp.listener, err = net.Listen("tcp", fmt.Sprintf(":%d", s.Port))
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
	chain, err := admission.New(admission.Config{
		Store: cp.store, Catalogue: catalogue, Authorizer: cp.auth.Authorizer, RBAC: cp.auth.RBAC,
	})
	if err != nil {
		return err
	}
	cp.registry, err = registry.New(registry.Config{
		Store: cp.store, Catalogue: catalogue, Admission: chain, Authorizer: cp.auth.Authorizer, Clock: clk,
		ServiceCIDRs:     []netip.Prefix{serviceCIDR},
		AdvertiseAddress: netip.MustParseAddr(cp.settings.NodeIP), SecurePort: cp.settings.Port,
	})
	if err != nil {
		return err
	}
	cp.handleReviews(chain, catalogue)
	if err := rbac.Bootstrap(ctx, cp.store, clk); err != nil {
		return fmt.Errorf("bootstrap roles: %w", err)
	}
	if err := cp.registry.Bootstrap(ctx); err != nil {
		return fmt.Errorf("bootstrap objects: %w", err)
	}
	return cp.newServer(chain, serviceCIDR)
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
	serving, err := cp.servingCertificate(serviceCIDR)
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
		Address:             net.JoinHostPort(cp.settings.NodeIP, fmt.Sprint(cp.settings.Port)),
		JWKS:                cp.auth.Tokens.JWKS(),
		OpenIDConfiguration: cp.auth.Tokens.Discovery(),
	})
	return err
}

func (cp *controlPlane) servingCertificate(serviceCIDR netip.Prefix) (tls.Certificate, error) {
	host, err := os.Hostname()
	if err != nil {
		return tls.Certificate{}, err
	}
	names := []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + cp.settings.ClusterDomain,
		"localhost", host, cp.settings.NodeName,
	}
	firstService := serviceCIDR.Masked().Addr().Next()
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.ParseIP(cp.settings.NodeIP), firstService.AsSlice()}
	return keyPair(cp.authority.KeptServer("apiserver", names, ips))
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
