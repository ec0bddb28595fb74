package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	metricsapi "proa/internal/apis/metrics"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/clusterdns"
	"proa/internal/manager"
	"proa/internal/metrics"
	"proa/internal/volume"
)

// component is anything that works on the shared state until its context ends.
type component interface {
	Run(ctx context.Context) error
}

// reader is a component that works once what it reads is there.
type reader struct {
	component
	reads *client.Cache
}

// Run waits, then works until ctx ends.
func (r reader) Run(ctx context.Context) error {
	if r.reads.WaitForSync(ctx) != nil {
		return nil // ctx ended
	}
	return r.component.Run(ctx)
}

// components returns what runs beside the API server in its process, on one
// shared cache. Each writes as a user of its own, with the roles that upstream
// gives that user and no more. They are made before the cache runs, so that it
// knows every informer and index they need.
func (cp *controlPlane) components(ctx context.Context, o Options) (*client.Cache, []component, error) {
	cache := client.NewCache(cp.As(user.KubeControllerManager))
	managing, err := cp.manager(ctx, cache, o)
	if err != nil {
		return nil, nil, err
	}
	scheduled := cache.As(cp.As(user.KubeScheduler))
	scheduling, err := cp.scheduler(scheduled)
	if err == nil {
		err = cp.explain(cache, scheduling)
	}
	if err != nil {
		return nil, nil, err
	}
	usage, err := cp.measure(cache)
	if err != nil {
		return nil, nil, err
	}
	dns := controllers.Config{Cache: cache.As(cp.As("system:proa:cluster-dns", user.SystemPrivilegedGroup)), Clock: clock.RealClock{}}
	all := []component{
		managing,
		reader{clusterdns.New(dns, cp.settings.clusterDNS()), dns.Cache},
		&invitation{cp: cp, token: o.Token},
	}
	if cp.settings.Simulation != nil {
		simulation, err := cp.simulation(ctx, cache, o)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, simulation)
	}
	if cp.settings.Datastore.shared() {
		return cache, []component{
			usage, // every server answers for metrics.k8s.io
			&elected{api: cp.As(user.KubeControllerManager), name: "kube-controller-manager", identity: o.Layout.identity(cp.settings), components: all},
			&elected{api: cp.As(user.KubeScheduler), name: "kube-scheduler", identity: o.Layout.identity(cp.settings), components: []component{reader{scheduling, scheduled}}},
		}, nil
	}
	return cache, append(all, reader{scheduling, scheduled}, usage), nil
}

// manager makes the controllers, and claims the range of the server's own node.
func (cp *controlPlane) manager(ctx context.Context, cache *client.Cache, o Options) (*manager.Manager, error) {
	rawMetrics, err := cp.rawAPI("horizontal-pod-autoscaler")
	if err != nil {
		return nil, err
	}
	m, err := manager.New(ctx, manager.Config{
		Cache: cache, As: cp.asController, Catalogue: cp.Catalogue(), Aggregator: cp.Aggregator(),
		Controllers: []string{"*", "bootstrap-signer-controller", "token-cleaner-controller"},
		RootCA:      cp.authority.CAPEM(), Token: cp.Auth.Tokens.Legacy,
		Sign: cp.authority.Cluster.Sign, Serving: cp.nodeServing(),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix(cp.settings.PodCIDR)},
		Metrics:  rawMetrics, Registry: cp.metrics,
		LocalPath: volume.LocalPath{
			Root:   o.Layout.LocalPath(),
			Remove: volume.RemoveThrough(cp.kubeletClient, kubeletAddress(client.Shared[*corev1.Node](cache))),
		},
	})
	if err == nil && o.Node {
		err = cp.claimRange(ctx, m.Ranges)
	}
	return m, err
}

// measure serves metrics.k8s.io, and returns what does the measuring.
func (cp *controlPlane) measure(cache *client.Cache) (component, error) {
	cache = cache.As(cache.API())
	c := metrics.New(metrics.Config{
		Cache: cache, Client: cp.kubeletClient, Address: kubeletAddress(client.Shared[*corev1.Node](cache)),
	})
	if err := cp.Registry.Serve(&metricsapi.NodeMetrics, metrics.Nodes{Collector: c}); err != nil {
		return nil, err
	}
	return reader{c, cache}, cp.Registry.Serve(&metricsapi.PodMetrics, metrics.Pods{Collector: c})
}

// asController is the API as the service account of one controller.
func (cp *controlPlane) asController(name string) client.API {
	return cp.As(serviceaccount.MakeUsername("kube-system", name), serviceaccount.MakeGroupNames("kube-system")...)
}

// newKubeletClient returns the client for requests of the control plane to node
// agents, which dial reaches; nil: directly.
func newKubeletClient(config *tls.Config, dial utilnet.DialFunc) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{TLSClientConfig: config.Clone(), DialContext: dial, MaxIdleConnsPerHost: 8}, // many nodes may share an address
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

var errNoAddress = errors.New("node has no internal address")

// kubeletAddress returns where a node's agent listens.
func kubeletAddress(nodes *client.Informer[*corev1.Node]) func(name string) (string, error) {
	return func(name string) (string, error) {
		node, ok := nodes.Cached("", name)
		if !ok {
			return "", fmt.Errorf("node %s is not known", name)
		}
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
				return net.JoinHostPort(a.Address, strconv.Itoa(port)), nil
			}
		}
		return "", fmt.Errorf("node %s: %w", name, errNoAddress)
	}
}

// run serves the API and runs components until ctx ends.
func (cp *controlPlane) run(ctx context.Context, cache *client.Cache, components []component) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return cp.Run(ctx) })
	g.Go(func() error { return cache.Run(ctx) })
	for _, c := range components {
		g.Go(func() error { return c.Run(ctx) })
	}
	return g.Wait()
}
