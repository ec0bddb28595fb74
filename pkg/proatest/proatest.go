// Package proatest is a Kubernetes API server within a Go test. It runs in the
// test's own process, keeps its objects in memory, listens on a free port of the
// loopback interface and ends with the test: no binaries, no files, no other
// processes. Any number of them run at the same time.
//
// Controllers are off unless asked for, so that a test of one controller has the
// objects to itself: a Deployment then makes no pods, owners are not collected, a
// deleted Namespace stays. Nodes do not exist unless asked for.
package proatest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver"
	"proa/internal/auth"
	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/controllers/horizontalpodautoscaler"
	"proa/internal/controlplane"
	"proa/internal/manager"
	"proa/internal/scheduler"
	"proa/internal/simulate"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// Options choose what a test's server is. The zero value is an API server alone,
// with upstream's defaults.
type Options struct {
	// Controllers that run, by the names of kube-controller-manager's flag
	// --controllers: "*" is all of them, "-deployment-controller" leaves one out.
	// Nil: none.
	Controllers []string

	// Scheduler binds pods to nodes.
	Scheduler bool

	// Nodes are simulated: sim-0, sim-1 and so on, Ready at once, each of 32 cores,
	// 256Gi and 110 pods. A pod on one of them runs and is Ready at once, one of a
	// Job has succeeded at once, and what is deleted is gone at once. A node that
	// the test makes is not simulated unless it is annotated
	// kwok.x-k8s.io/node=fake.
	Nodes int

	// FeatureGates (A=true,B=false) and RuntimeConfig (api/all=true) are as
	// kube-apiserver's flags.
	FeatureGates, RuntimeConfig string

	// EnableAdmissionPlugins and DisableAdmissionPlugins are plugins by name.
	// Where no controller makes service accounts, ServiceAccount is off unless
	// it is enabled here.
	EnableAdmissionPlugins, DisableAdmissionPlugins []string

	// AuthorizationModes are upstream's, in order; default Node, RBAC.
	AuthorizationModes []string

	// ServiceCIDR is where Services get their addresses; default 10.0.0.0/24.
	ServiceCIDR string
}

// Start returns how to reach a new API server as a member of system:masters. To
// act as somebody else, copy the configuration and set Impersonate. The server
// stops when the test and its subtests have ended; watches that are open then
// are ended by it. A start that fails ends the test.
func Start(t testing.TB, o Options) *rest.Config {
	t.Helper()
	access, stop, err := start(t.Context(), o)
	if err != nil {
		t.Fatalf("start an API server: %v", err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("the API server ended: %v", err)
		}
	})
	return access
}

func start(ctx context.Context, o Options) (access *rest.Config, stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c, err := open(ctx, o)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }()
	return c.access, func() error {
		select {
		case <-c.started: // a part that has not run yet would not clean up
		case err := <-ended:
			cancel()
			return err
		}
		cancel()
		return <-ended
	}, nil
}

// cluster is one server with what runs beside it.
type cluster struct {
	*controlplane.ControlPlane
	access     *rest.Config
	cache      *client.Cache
	measured   *prometheus.Registry // shown by /metrics
	components []component
	started    chan struct{} // closed when all of them run
}

type component interface {
	Run(ctx context.Context) error
}

const defaultServices = "10.0.0.0/24"

// nodeAddress is of simulated nodes: one for documents, where nothing answers.
const nodeAddress = "192.0.2.1"

// shutdownTimeout is for what is in flight when a test has ended: nobody waits
// for it any more.
const shutdownTimeout = 10 * time.Millisecond

func open(ctx context.Context, o Options) (*cluster, error) {
	authority, err := pki.InMemory(nil)
	if err != nil {
		return nil, err
	}
	config, err := o.config(authority)
	if err != nil {
		return nil, err
	}
	if config.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	address := config.Listener.Addr().String()
	config.Server.Address = address
	c := &cluster{started: make(chan struct{}), measured: config.Server.Metrics}
	if c.access, err = admin(authority, address); err != nil {
		config.Listener.Close()
		return nil, err
	}
	if c.ControlPlane, err = controlplane.Open(ctx, config); err != nil {
		return nil, err
	}
	if err := c.addComponents(ctx, o, authority); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// config is all but the listener.
func (o Options) config(authority *pki.Authority) (c controlplane.Config, err error) {
	c.Engine = func(*apis.Catalogue) (store.Engine, error) { return memory.New(), nil }
	c.Gates, c.Runtime, err = builtin.Options{FeatureGates: o.FeatureGates, RuntimeConfig: o.RuntimeConfig}.Parse()
	if err != nil {
		return c, err
	}
	services := defaultServices
	if o.ServiceCIDR != "" {
		services = o.ServiceCIDR
	}
	for _, cidr := range strings.Split(services, ",") {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return c, fmt.Errorf("ServiceCIDR: %w", err)
		}
		c.Registry.ServiceCIDRs = append(c.Registry.ServiceCIDRs, p)
	}
	serving, err := keyPair(authority.Server([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}))
	if err != nil {
		return c, err
	}
	c.Auth = auth.Config{
		ClientCA: authority.Cluster.Pool(), ServiceAccountKey: authority.ServiceAccountKey, Modes: o.AuthorizationModes,
	}
	c.Admission = admission.Config{Enable: o.EnableAdmissionPlugins, Disable: o.disabled()}
	c.Server = apiserver.Config{
		TLS:             &tls.Config{Certificates: []tls.Certificate{serving}, ClientCAs: authority.Cluster.Pool()},
		ShutdownTimeout: shutdownTimeout, Metrics: prometheus.NewRegistry(),
	}
	return c, nil
}

// disabled adds ServiceAccount to the plugins that are off, where nothing makes
// the service account that it wants of a namespace.
func (o Options) disabled() []string {
	const plugin = "ServiceAccount"
	if len(o.Controllers) > 0 || slices.Contains(o.EnableAdmissionPlugins, plugin) {
		return o.DisableAdmissionPlugins
	}
	return append([]string{plugin}, o.DisableAdmissionPlugins...)
}

func keyPair(certPEM, keyPEM []byte, err error) (tls.Certificate, error) {
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

// admin is how the test reaches the server.
func admin(authority *pki.Authority, address string) (*rest.Config, error) {
	cert, key, err := authority.Client("proatest", user.SystemPrivilegedGroup)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: "https://" + address, QPS: -1, // nothing to be gentle with
		TLSClientConfig: rest.TLSClientConfig{CAData: authority.CAPEM(), CertData: cert, KeyData: key},
	}, nil
}

// addComponents makes what runs beside the API server.
func (c *cluster) addComponents(ctx context.Context, o Options, authority *pki.Authority) error {
	c.cache = client.NewCache(c.As(user.KubeControllerManager))
	if len(o.Controllers) > 0 {
		metrics, err := horizontalpodautoscaler.NewRaw(c.access)
		if err != nil {
			return err
		}
		m, err := manager.New(ctx, manager.Config{
			Cache: c.cache, Catalogue: c.Catalogue(), Aggregator: c.Aggregator(), Controllers: o.Controllers,
			As: func(account string) client.API {
				return c.As(serviceaccount.MakeUsername("kube-system", account), serviceaccount.MakeGroupNames("kube-system")...)
			},
			Registry: c.measured, Metrics: metrics, RootCA: authority.CAPEM(), Token: c.Auth.Tokens.Legacy, Sign: authority.Cluster.Sign,
		})
		if err != nil {
			return err
		}
		c.components = append(c.components, m)
	}
	if o.Scheduler {
		s, err := scheduler.New(scheduler.Config{
			Cache: c.cache.As(c.As(user.KubeScheduler)), Clock: clock.RealClock{}, Metrics: c.measured,
			PodGroups: scheduler.ServesPodGroups(c.Catalogue()),
		})
		if err != nil {
			return err
		}
		c.components = append(c.components, s)
	}
	if o.Nodes > 0 {
		s, err := simulate.New(simulate.Config{
			Cache: c.cache.As(c.As("system:proa:simulator", user.SystemPrivilegedGroup)), Fleet: simulate.Fleet{Nodes: o.Nodes},
			NodeIP: nodeAddress,
		})
		if err != nil {
			return err
		}
		c.components = append(c.components, s)
	}
	return nil
}

// run serves until ctx ends, and leaves nothing behind.
func (c *cluster) run(ctx context.Context) error {
	defer c.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return c.cache.Run(ctx) })
	g.Go(func() error {
		if c.cache.WaitForSync(ctx) != nil {
			return nil // another part has failed
		}
		for _, part := range c.components {
			g.Go(func() error { return part.Run(ctx) })
		}
		close(c.started)
		return nil
	})
	return g.Wait()
}
