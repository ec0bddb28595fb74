// Package kubelet is the node agent: it runs the pods that the API binds to its
// node, through a CRI runtime, and reports how they and the node are doing.
//
//	node        the Node object, its conditions and lease
//	config      what it is told to do
//	static      pods from a directory, and their mirrors
//	admit       may this pod run here
//	podworker   one goroutine per pod: read the runtime, plan, act
//	cri         the runtime;  criconfig  what it is asked for
//	images      pulls and image garbage collection
//	probe       liveness, readiness, startup
//	eviction    what ends pods so that the node lives
//	status      pod status and its way to the API
//	volumes, environment, objects, tokens   what containers see
//	server, logs, stats                     what others ask the node
//
// The agent keeps no state of its own besides directories: a restart, or kill -9,
// leaves containers running, and the next agent takes them over unchanged.
package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/kubelet/config"
	"proa/internal/kubelet/watchdog"
)

// Version is the Kubernetes version this agent behaves as.
const Version = apis.KubernetesVersion

// Config of a Kubelet. API, NodeName and NodeIPs are required.
type Config struct {
	API client.API
	// Events takes the agent's events. Nil: API.
	Events client.API
	// Cache is shared with the process's other components, which run it. Nil:
	// the agent has its own.
	Cache    *client.Cache
	NodeName string
	NodeIPs  []string // the primary first, one per IP family
	// Configuration is what upstream's agent would be told, defaulted and valid.
	// Nil: the defaults.
	Configuration *config.Configuration

	Flags map[string]string // that are in force, for /flagz; secrets are none of them

	RootDir      string // default /var/lib/kubelet
	LocalVolumes string // where volumes of the class local-path lie; default RootDir/local-path
	NodeLabels   map[string]string
	PodCIDRs     []string // set at registration
	// Cloud leaves the node's addresses, and the last word on its registration,
	// to a cloud controller manager. CloudIPs are addresses that it is told of.
	Cloud    bool
	CloudIPs []string

	// Certificate is what the server shows. Nil: no server.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	ClientCAs   *x509.CertPool

	Clock clock.WithTicker
	Log   *slog.Logger
}

// Kubelet is the agent of one node.
type Kubelet struct {
	c        Config
	ownCache bool
	pods     *client.Informer[*corev1.Pod]
	services *client.Informer[*corev1.Service]
	watchdog *watchdog.Watchdog

	mu    sync.Mutex
	parts *parts // guarded by mu; nil until the runtime has answered
}

// New makes a Kubelet and asks its cache for informers, so it comes before the
// cache's Run.
func New(c Config) (*Kubelet, error) {
	if c.API == nil || c.NodeName == "" || len(c.NodeIPs) == 0 {
		return nil, errors.New("kubelet: API, NodeName and NodeIPs are required")
	}
	if err := setDefaults(&c); err != nil {
		return nil, err
	}
	k := &Kubelet{c: c, ownCache: c.Cache == nil}
	if k.ownCache {
		k.c.Cache = client.NewCache(c.API)
	}
	k.pods = client.Filtered[*corev1.Pod](k.c.Cache, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", c.NodeName).String(),
	})
	k.services = client.Shared[*corev1.Service](k.c.Cache)
	var err error
	if k.watchdog, err = watchdog.New(watchdog.Config{Check: k.well, Clock: k.c.Clock, Log: k.c.Log}); err != nil {
		return nil, err
	}
	k.pods.OnChange(k.podChanged)
	return k, nil
}

func setDefaults(c *Config) error {
	if c.RootDir == "" {
		c.RootDir = "/var/lib/kubelet"
	}
	if c.Configuration == nil {
		c.Configuration = config.New()
	}
	if c.Events == nil {
		c.Events = c.API
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Log = c.Log.With("component", "kubelet")
	return checkHost(c.Configuration)
}

// Run is the agent's life. It waits for the runtime, and ends with ctx; pods go on.
func (k *Kubelet) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	recorder := client.NewRecorder(ctx, k.c.Events, "kubelet", k.c.NodeName)
	if k.ownCache {
		g.Go(func() error { return k.c.Cache.Run(ctx) })
	}
	g.Go(func() error { return k.run(ctx, g, recorder) })
	g.Go(func() error { return k.watchdog.Run(ctx) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("kubelet: %w", err)
	}
	return nil
}

func (k *Kubelet) run(ctx context.Context, g *errgroup.Group, recorder record.EventRecorder) error {
	p, err := k.assemble(ctx, recorder)
	if err != nil {
		return err
	}
	if err := k.serve(ctx, g, p); err != nil {
		return err
	}
	for _, run := range []func(context.Context) error{
		p.node.Run, p.workers.Run, p.probes.Run, p.writer.Run, p.volumes.Run, p.bundles.Run, p.certificates.Run, p.devices.claims.Run, p.devices.plugins.Run, p.plugins.Run, p.resources.Run, p.rotator.Run, p.collector.Run, p.eviction.Run,
	} {
		g.Go(func() error { return run(ctx) })
	}
	if err := k.begin(ctx, p); err != nil {
		return err
	}
	g.Go(func() error { return p.static.Run(ctx) })
	g.Go(func() error { return k.keepHouse(ctx, p) })
	return p.runtime.Follow(ctx, k.c.Clock, func() { k.relist(ctx, p) }, p.workers.Wake, func(err error) {
		k.c.Log.Warn("runtime events", "err", err)
	})
}

// well tells whether the agent does its work. One that still waits for its runtime does.
func (k *Kubelet) well() error {
	k.mu.Lock()
	p := k.parts
	k.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.pulse.check()
}

// serve opens the ports of the node.
func (k *Kubelet) serve(ctx context.Context, g *errgroup.Group, p *parts) error {
	c := k.c.Configuration
	for _, port := range []struct {
		open    bool
		address string
		number  int32
		run     func(context.Context, net.Listener) error
	}{
		{k.c.Certificate != nil && *c.EnableServer, c.Address, c.Port, p.server.Run},
		{*c.HealthzPort > 0, c.HealthzBindAddress, *c.HealthzPort, p.server.RunHealthz},
	} {
		if !port.open {
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(port.address, strconv.Itoa(int(port.number))))
		if err != nil {
			return err
		}
		g.Go(func() error { return port.run(ctx, listener) })
	}
	return nil
}

// begin starts the pods the API has for this node and those of the manifest
// directory.
func (k *Kubelet) begin(ctx context.Context, p *parts) error {
	// Admission needs the node's allocatable resources.
	for {
		if _, err := p.node.Node(); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.c.Clock.After(20 * time.Millisecond):
		}
	}
	if err := k.c.Cache.WaitForSync(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	k.parts = p
	for _, pod := range k.pods.Select("", labels.Everything()) {
		p.apply(pod, false)
	}
	k.mu.Unlock()
	return p.static.Load()
}

// podChanged is the informer's handler. What it misses before the parts are
// there, begin makes up for.
func (k *Kubelet) podChanged(old, new *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.parts == nil {
		return
	}
	if new == nil {
		k.parts.apply(old, true)
		return
	}
	if old != nil && old.UID != new.UID {
		k.parts.apply(old, true)
	}
	k.parts.apply(new, false)
}
