// Package controlplane is an API server: a store, who may ask, what is admitted,
// the request path, custom resources, and the port that serves it all. It knows
// no node, no directory and no kubeconfig, so that it is the same thing below
// `proa up`, as kube-apiserver by name, and within a test.
package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"proa/internal/admission"
	"proa/internal/admission/policy"
	"proa/internal/admission/webhook"
	"proa/internal/apiextensions"
	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apis/core"
	"proa/internal/apis/feature"
	"proa/internal/apiserver"
	"proa/internal/apiserver/aggregator"
	"proa/internal/apiserver/apply"
	"proa/internal/apiserver/registry"
	"proa/internal/auth"
	"proa/internal/auth/rbac"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/apiserveridentity"
	"proa/internal/controllers/apiservice"
	"proa/internal/controllers/clustertrust"
	"proa/internal/controllers/customresource"
	"proa/internal/controllers/legacytokentracking"
	"proa/internal/egress"
	"proa/internal/store"
	"proa/internal/store/encryption"
	"proa/internal/store/etcd"
)

// Config says what a control plane is made of. Engine and Listener are required.
// The parts have their own configurations; what connects them (stores,
// catalogues, authorizers, clocks) is filled in.
type Config struct {
	// Engine opens what keeps the objects of a catalogue. It is closed with the
	// control plane.
	Engine func(*apis.Catalogue) (store.Engine, error)

	// Listener is the API's port. It is closed with the control plane, and when
	// Open fails.
	Listener net.Listener

	// Gates and Runtime choose what is served; their zero values are upstream's
	// defaults.
	Gates   feature.Gates
	Runtime feature.Runtime

	Auth      auth.Config
	Admission admission.Config
	Registry  registry.Config
	Server    apiserver.Config

	// FrontProxy is who this server is to servers that serve a part of the API.
	// Nil: they believe nothing that it says of users.
	FrontProxy *tls.Certificate
	// Trust is what such servers can read about this one's clients.
	Trust clustertrust.Trust

	// ServiceAddresses leads this server's own calls to Services (webhooks, extension
	// servers) to their addresses, not to their endpoints.
	ServiceAddresses bool

	// Egress opens the connections of all parts but Engine.
	Egress egress.Dialers

	// Encryption keeps values unreadable on the disk; without a File they are not.
	Encryption encryption.Config

	EventTTL time.Duration    // how long Events are kept; 0 means 1 hour, less: for ever
	Clock    clock.WithTicker // nil: the real one
}

// ControlPlane is one API server.
type ControlPlane struct {
	Store    *store.Store
	Auth     *auth.Auth
	Registry *registry.Registry

	// Components are what componentstatuses tells of besides the store. They are
	// set before Run; DaemonChecks, unless another set is.
	Components map[string]ComponentCheck

	steps       steps
	engine      store.Engine
	emptied     func() // waits for the last answers of the waiting room
	storeChecks []apiserver.Check
	config      Config
	catalogue   *apis.Catalogue
	chain       *admission.Chain
	server      *apiserver.Server
	aggregator  *aggregator.Aggregator
	definitions *apiextensions.Definitions
	upkeep      []component            // of the store
	encryption  *encryption.Encryption // nil: nothing is encrypted

	cache      *client.Cache // of what the server's own controllers read
	trust      *clustertrust.Controller
	components []component
}

// component is anything that works until its context ends.
type component interface {
	Run(ctx context.Context) error
}

// Open puts a control plane together and makes the objects that every cluster
// has. Nothing is served before Run.
func Open(ctx context.Context, c Config) (*ControlPlane, error) {
	if c.Engine == nil || c.Listener == nil {
		return nil, errors.New("control plane: an engine and a listener are required")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Server.Metrics == nil {
		c.Server.Metrics = prometheus.NewRegistry()
	}
	cp := &ControlPlane{Components: DaemonChecks(), config: c, steps: stepsOf(&c), catalogue: builtin.Serving(c.Gates, c.Runtime)}
	if err := cp.open(ctx); err != nil {
		cp.emptied()
		c.Listener.Close()
		return nil, err
	}
	return cp, nil
}

func (cp *ControlPlane) open(ctx context.Context) error {
	leave, empty := openWaitingRoom(cp.config.Listener, cp.config.Server.TLS, cp.steps.checks())
	defer leave()
	cp.emptied = empty
	engine, err := cp.config.Engine(cp.catalogue)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	if shared, ok := engine.(*etcd.Engine); ok && cp.config.Server.Tracer != nil {
		if err := shared.Trace(cp.config.Server.Tracer); err != nil {
			engine.Close()
			return err
		}
	}
	if err := cp.openStore(ctx, engine); err != nil {
		engine.Close()
		return err
	}
	cp.steps.finish(storageReady)
	cp.engine = engine
	cp.upkeep = append(cp.upkeep, newCompactor(engine, cp.Store, cp.config.Clock))
	if cp.config.EventTTL >= 0 {
		cp.upkeep = append(cp.upkeep, newExpiry(cp.Store, cp.config.EventTTL, cp.config.Clock))
	}
	cp.storeChecks = engineChecks(engine)
	cp.config.Server.Checks = slices.Concat(cp.storeChecks, cp.config.Server.Checks, cp.steps.checks())
	if err := cp.assemble(ctx); err != nil {
		cp.closeStore()
		return err
	}
	return nil
}

func (cp *ControlPlane) assemble(ctx context.Context) (err error) {
	if cp.Auth, err = auth.New(cp.authConfig()); err != nil {
		return fmt.Errorf("authentication: %w", err)
	}
	if cp.chain, err = cp.newChain(); err != nil {
		return err
	}
	if cp.Registry, err = registry.New(cp.registryConfig()); err != nil {
		return err
	}
	cp.handleReviews()
	if err := cp.Registry.Serve(&core.ComponentStatuses, componentStatuses{cp}); err != nil {
		return err
	}
	if cp.definitions, err = apiextensions.New(apiextensions.Config{Store: cp.Store, Catalogue: cp.catalogue, ByAddress: cp.config.ServiceAddresses, Egress: cp.config.Egress}); err != nil {
		return err
	}
	cp.steps.finish(definitionsRead)
	if err := rbac.Bootstrap(ctx, cp.Store, cp.config.Clock); err != nil {
		return fmt.Errorf("bootstrap roles: %w", err)
	}
	cp.steps.finish(rolesMade)
	if err := cp.Registry.Bootstrap(ctx); err != nil {
		return fmt.Errorf("bootstrap objects: %w", err)
	}
	cp.steps.finish(namespacesMade, prioritiesMade, addressesMade)
	if err := cp.announce(ctx); err != nil {
		return fmt.Errorf("bootstrap objects: %w", err)
	}
	cp.steps.finish(whereaboutsTold)
	if cp.aggregator, err = aggregator.New(aggregator.Config{Store: cp.Store, Certificate: cp.config.FrontProxy, ByAddress: cp.config.ServiceAddresses, Egress: cp.config.Egress, Clock: cp.config.Clock}); err != nil {
		return err
	}
	cp.addControllers()
	for _, c := range egress.Collectors() {
		if err := cp.config.Server.Metrics.Register(c); err != nil {
			return fmt.Errorf("metrics of egress: %w", err)
		}
	}
	cp.server, err = apiserver.New(cp.serverConfig())
	return err
}

// announce leads the kubernetes Service to this server.
func (cp *ControlPlane) announce(ctx context.Context) error {
	if !cp.config.Registry.AdvertiseAddress.IsValid() {
		return nil
	}
	shared, _ := cp.engine.(*etcd.Engine)
	w := &whereabouts{
		registry: cp.Registry, shared: shared, codec: registry.NewCodec(cp.catalogue),
		self: cp.config.Registry.AdvertiseAddress.Unmap(), clock: cp.config.Clock,
	}
	cp.upkeep = append(cp.upkeep, w)
	return w.announce(ctx)
}

func (cp *ControlPlane) authConfig() auth.Config {
	c := cp.config.Auth
	c.Store, c.Clock = cp.Store, cp.config.Clock
	c.Egress = cp.config.Egress
	c.Trusts = func(clientCA, frontProxyCA []byte) { cp.trust.Renew(clientCA, frontProxyCA) }
	return c
}

// newChain returns the admission plugins, with those that users configure.
func (cp *ControlPlane) newChain() (*admission.Chain, error) {
	manifests := cp.config.Gates.Enabled("ManifestBasedAdmissionControlConfig")
	mutatingHooks, validatingHooks, err := webhook.New(webhook.Config{
		Store: cp.Store, Catalogue: cp.catalogue, Authorizer: cp.Auth.Authorizer,
		Configurations: cp.config.Admission.Configurations, Manifests: manifests,
		ByAddress: cp.config.ServiceAddresses, Egress: cp.config.Egress,
	})
	if err != nil {
		return nil, err
	}
	mutatingPolicies, validatingPolicies, err := policy.New(policy.Config{
		Store: cp.Store, Catalogue: cp.catalogue, Authorizer: cp.Auth.Authorizer, Types: apply.Types,
		Configurations: cp.config.Admission.Configurations, Manifests: manifests,
	})
	if err != nil {
		return nil, err
	}
	cp.upkeep = append(cp.upkeep, mutatingHooks, validatingHooks, mutatingPolicies, validatingPolicies)
	c := cp.config.Admission
	c.Store, c.Catalogue, c.Authorizer, c.RBAC = cp.Store, cp.catalogue, cp.Auth.Authorizer, cp.Auth.RBAC
	c.Policies = []any{mutatingPolicies, validatingPolicies}
	c.Webhooks = []any{mutatingHooks, validatingHooks}
	c.MakeNamespace, c.Clock = cp.makeNamespace, cp.config.Clock
	return admission.New(c)
}

// makeNamespace is for objects that come before their namespace.
func (cp *ControlPlane) makeNamespace(ctx context.Context, name string) error {
	namespaces := client.Of[*corev1.Namespace](cp.As(user.APIServerUser, user.SystemPrivilegedGroup))
	_, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return err
}

func (cp *ControlPlane) registryConfig() registry.Config {
	c := cp.config.Registry
	c.Store, c.Catalogue, c.Admission, c.Authorizer, c.Clock = cp.Store, cp.catalogue, cp.chain, cp.Auth.Authorizer, cp.config.Clock
	c.Metrics = cp.config.Server.Metrics
	c.Place = etcd.Paths("/", builtinResources())
	if addr, ok := cp.config.Listener.Addr().(*net.TCPAddr); ok && c.SecurePort == 0 {
		c.SecurePort = addr.Port
	}
	return c
}

// handleReviews connects the kinds that are answered, not stored, behind
// admission: a node's token requests are held to its pods there.
func (cp *ControlPlane) handleReviews() {
	for endpoint, handle := range cp.Auth.Handlers() {
		if resource, ok := cp.catalogue.Stored(endpoint.GroupResource); ok {
			handle = cp.chain.Guard(resource, endpoint.Subresource, handle)
		}
		cp.Registry.Handle(endpoint.GroupResource, endpoint.Subresource,
			func(ctx context.Context, q *registry.Request, obj apis.Object, _ metav1.CreateOptions) (apis.Object, error) {
				return handle(ctx, q.User, q.Namespace, q.Name, obj)
			})
	}
}

// addControllers adds those that are part of an API server: they serve what its
// objects say.
func (cp *ControlPlane) addControllers() {
	cp.cache = client.NewCache(cp.As(user.APIServerUser, user.SystemPrivilegedGroup))
	c := controllers.Config{Cache: cp.cache, Clock: cp.config.Clock}
	cp.trust = clustertrust.New(c, cp.config.Trust)
	cp.components = []component{
		cp.step(customresource.New(c, cp.definitions, cp.catalogue), definitionsServed),
		cp.step(apiservice.NewRegistration(c, cp.catalogue), servicesRegistered),
		cp.step(apiservice.NewAvailability(c, cp.aggregator.Probe), localAvailable, remoteAvailable),
		cp.step(cp.trust, authoritiesTold),
		cp.step(legacytokentracking.New(c), legacyTokens),
		cp.step(cp.aggregator, aggregatorFollows, servicesProxied, servicesDescribed),
		cp.step(allocations{cp}, allocationsMended),
	}
	if cp.config.Gates.Enabled("APIServerIdentity") {
		cp.components = append(cp.components, cp.step(cp.identity(), identityTold, identitiesRemoved))
	}
}

// identity lets other servers on the same store know of this one.
func (cp *ControlPlane) identity() component {
	hostname, err := os.Hostname()
	if err != nil {
		slog.Error("No name of this host", "err", err)
	}
	return apiserveridentity.New(apiserveridentity.Config{
		API: cp.As(user.APIServerUser, user.SystemPrivilegedGroup), Clock: cp.config.Clock,
		Hostname: hostname, Instance: uuid.NewString(),
	})
}

func (cp *ControlPlane) serverConfig() apiserver.Config {
	c := cp.config.Server
	c.Registry, c.Store, c.Admission, c.Aggregator = cp.Registry, cp.Store, cp.chain, cp.aggregator
	c.Authenticator, c.Authorizer = cp.Auth.Authenticator, cp.Auth.Authorizer
	if cp.config.Auth.ClientCAFile != "" {
		c.ClientCAs = cp.Auth.ClientCAs
	}
	c.Features, c.Clock = cp.config.Gates, cp.config.Clock
	c.Kubelet.Dial, c.Audit.Webhook.Dial = cp.config.Egress.Cluster, cp.config.Egress.ControlPlane
	c.JWKS, c.OpenIDConfiguration = cp.Auth.Tokens.JWKS, cp.Auth.Tokens.Discovery
	if c.Version.GitVersion == "" {
		c.Version = KubernetesVersion()
	}
	return c
}

// Catalogue is what is served, custom resources included.
func (cp *ControlPlane) Catalogue() *apis.Catalogue { return cp.catalogue }

// Aggregator knows what other servers serve.
func (cp *ControlPlane) Aggregator() *aggregator.Aggregator { return cp.aggregator }

// As is the API in this process, as one user.
func (cp *ControlPlane) As(name string, groups ...string) client.API {
	return cp.Registry.As(&user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)})
}

// Run serves the API until ctx ends. The other parts run until the server has
// answered what was in flight.
func (cp *ControlPlane) Run(ctx context.Context) error {
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	context.AfterFunc(ctx, stopServing) // when a part fails
	g.Go(func() error {
		defer stop()
		return cp.server.Run(serving, cp.config.Listener)
	})
	g.Go(func() error { return cp.Auth.Run(ctx) })
	g.Go(func() error { return cp.step(cp.definitions, definitionsFollow).Run(ctx) })
	for _, c := range cp.upkeep {
		g.Go(func() error { return c.Run(ctx) })
	}
	g.Go(func() error { return cp.step(cp.cache, informersStarted).Run(ctx) })
	g.Go(func() error {
		if cp.cache.WaitForSync(ctx) == nil { // when ctx ends first, the components only clean up
			cp.steps.finish(informersSynced)
		}
		for _, c := range cp.components {
			g.Go(func() error { return c.Run(ctx) })
		}
		return nil
	})
	return g.Wait()
}

// lastSpans is how long the spans that wait may take to send at the end.
const lastSpans = 2 * time.Second

// Close releases the port and the store; nothing runs any more.
func (cp *ControlPlane) Close() {
	cp.emptied()
	if t := cp.config.Server.Tracer; t != nil {
		ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
		defer cancel()
		_ = t.Shutdown(ctx) // without the collector the spans are lost
	}
	cp.config.Listener.Close()
	if err := cp.closeStore(); err != nil {
		slog.Error("close store", "err", err)
	}
}
