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
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	metricsapi "proa/internal/apis/metrics"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/bootstrapsigner"
	"proa/internal/controllers/clusterdns"
	"proa/internal/controllers/clusterroleaggregation"
	"proa/internal/controllers/cronjob"
	"proa/internal/controllers/csr"
	"proa/internal/controllers/customresource"
	"proa/internal/controllers/daemonset"
	"proa/internal/controllers/deployment"
	"proa/internal/controllers/disruption"
	"proa/internal/controllers/endpoints"
	"proa/internal/controllers/endpointslice"
	"proa/internal/controllers/endpointslicemirroring"
	"proa/internal/controllers/garbagecollector"
	"proa/internal/controllers/horizontalpodautoscaler"
	"proa/internal/controllers/job"
	"proa/internal/controllers/namespace"
	"proa/internal/controllers/nodeipam"
	"proa/internal/controllers/nodelifecycle"
	"proa/internal/controllers/podgc"
	"proa/internal/controllers/replicaset"
	"proa/internal/controllers/replicationcontroller"
	"proa/internal/controllers/resourcequota"
	"proa/internal/controllers/rootca"
	saccounts "proa/internal/controllers/serviceaccount"
	"proa/internal/controllers/serviceaccounttoken"
	"proa/internal/controllers/servicecidr"
	"proa/internal/controllers/statefulset"
	"proa/internal/controllers/storageversionmigrator"
	"proa/internal/controllers/tainteviction"
	"proa/internal/controllers/tokencleaner"
	"proa/internal/controllers/ttlafterfinished"
	"proa/internal/controllers/validatingadmissionpolicy"
	"proa/internal/metrics"
	"proa/internal/scheduler"
	"proa/internal/store"
	"proa/internal/volume"
)

// component is anything that works on the shared state until its context ends.
type component interface {
	Run(ctx context.Context) error
}

// terminatedPods is how many finished pods are kept before the oldest go.
const terminatedPods = 12500

// components returns what runs beside the API server in its process, on one
// shared cache. Each writes as a user of its own, with the roles that upstream
// gives that user and no more. They are made before the cache runs, so that it
// knows every informer and index they need.
func (cp *controlPlane) components(ctx context.Context, o Options) (*client.Cache, []component, error) {
	cache := client.NewCache(cp.as(user.KubeControllerManager))
	as := func(controller string) controllers.Config {
		api := cp.asController(controller)
		return controllers.Config{
			Cache: cache.As(api),
			Clock: clock.RealClock{},
			Recorder: func(component string) record.EventRecorder {
				return client.NewRecorder(ctx, api, component, "")
			},
		}
	}
	catalogue := cp.registry.Catalogue()
	ipam, err := nodeipam.New(as("node-controller"), netip.MustParsePrefix(cp.settings.PodCIDR))
	if err != nil {
		return nil, nil, err
	}
	if o.Node {
		if err := cp.claimRange(ctx, ipam); err != nil {
			return nil, nil, err
		}
	}
	scheduling, err := scheduler.New(scheduler.Config{
		Cache: cache.As(cp.as(user.KubeScheduler)), Clock: clock.RealClock{},
	})
	if err != nil {
		return nil, nil, err
	}
	usage, err := cp.measure(cache)
	if err != nil {
		return nil, nil, err
	}
	rawMetrics, err := cp.rawAPI("horizontal-pod-autoscaler")
	if err != nil {
		return nil, nil, err
	}
	tokens := as("tokens-controller")
	tokens.Cache = cache // upstream's fills Secrets as system:kube-controller-manager itself
	dns := controllers.Config{Cache: cache.As(cp.as("system:proa:cluster-dns", user.SystemPrivilegedGroup)), Clock: clock.RealClock{}}
	definitions := controllers.Config{Cache: cache.As(cp.as(user.APIServerUser, user.SystemPrivilegedGroup)), Clock: clock.RealClock{}}
	return cache, []component{
		scheduling, usage,
		saccounts.New(as("service-account-controller")),
		rootca.New(as("root-ca-cert-publisher"), cp.authority.CAPEM()),
		endpointslice.New(as("endpointslice-controller")),
		endpointslicemirroring.New(as("endpointslicemirroring-controller")),
		endpoints.New(as("endpoint-controller")),
		namespace.New(as("namespace-controller"), catalogue),
		garbagecollector.New(as("generic-garbage-collector"), catalogue),
		replicaset.New(as("replicaset-controller")),
		replicationcontroller.New(as("replication-controller")),
		deployment.New(as("deployment-controller")),
		statefulset.New(as("statefulset-controller")),
		daemonset.New(as("daemon-set-controller")),
		job.New(as("job-controller")),
		cronjob.New(as("cronjob-controller")),
		ttlafterfinished.New(as("ttl-after-finished-controller")),
		disruption.New(as("disruption-controller"), catalogue),
		horizontalpodautoscaler.New(as("horizontal-pod-autoscaler"), catalogue, rawMetrics),
		storageversionmigrator.New(as("storage-version-migrator-controller"), catalogue),
		servicecidr.New(as("service-cidrs-controller")),
		nodelifecycle.New(as("node-controller")),
		tainteviction.New(as("node-controller")),
		ipam,
		podgc.New(as("pod-garbage-collector"), terminatedPods),
		resourcequota.New(as("resourcequota-controller"), catalogue),
		customresource.New(definitions, cp.definitions, catalogue),
		csr.New(as("certificate-controller"), cp.authority.Cluster.Sign, cp.nodeServing()),
		clusterroleaggregation.New(as("clusterrole-aggregation-controller")),
		tokencleaner.New(as("token-cleaner")),
		validatingadmissionpolicy.New(as("validatingadmissionpolicy-status-controller"), catalogue),
		bootstrapsigner.New(as("bootstrap-signer")),
		clusterdns.New(dns, cp.settings.clusterDNS()),
		&invitation{cp: cp, token: o.Token},
		serviceaccounttoken.New(tokens, cp.auth.Tokens.Legacy, cp.authority.CAPEM()),
		volume.New(volume.Config{
			Controllers: as("volume-controller"),
			LocalPath: volume.LocalPath{
				Root:   o.Layout.LocalPath(),
				Remove: volume.RemoveThrough(cp.kubeletClient, kubeletAddress(client.Shared[*corev1.Node](cache))),
			},
		}),
	}, nil
}

// measure serves metrics.k8s.io, and returns what does the measuring.
func (cp *controlPlane) measure(cache *client.Cache) (*metrics.Collector, error) {
	c := metrics.New(metrics.Config{
		Cache: cache, Client: cp.kubeletClient, Address: kubeletAddress(client.Shared[*corev1.Node](cache)),
	})
	if err := cp.registry.Serve(&metricsapi.NodeMetrics, metrics.Nodes{Collector: c}); err != nil {
		return nil, err
	}
	return c, cp.registry.Serve(&metricsapi.PodMetrics, metrics.Pods{Collector: c})
}

// asController is the API as the service account of one controller.
func (cp *controlPlane) asController(name string) client.API {
	return cp.as(serviceaccount.MakeUsername("kube-system", name), serviceaccount.MakeGroupNames("kube-system")...)
}

// newKubeletClient returns the client for requests of the control plane to node agents.
func newKubeletClient(config *tls.Config) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{TLSClientConfig: config.Clone()},
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
	g.Go(func() error { return cp.server.Run(ctx, cp.listener) })
	g.Go(func() error { return cache.Run(ctx) })
	g.Go(func() error { return cp.definitions.Run(ctx) })
	g.Go(func() error { return (&store.Compactor{Store: cp.store}).Run(ctx) })
	g.Go(func() error {
		if err := cache.WaitForSync(ctx); err != nil {
			return nil // ctx ended
		}
		for _, c := range components {
			g.Go(func() error { return c.Run(ctx) })
		}
		return nil
	})
	return g.Wait()
}
