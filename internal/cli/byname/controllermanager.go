package byname

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	migration "k8s.io/controller-manager/config"
	"k8s.io/utils/clock"

	"proa/internal/auth/pki"
	"proa/internal/auth/token"
	"proa/internal/client"
	"proa/internal/controllers/horizontalpodautoscaler"
	"proa/internal/controllers/legacytokencleaner"
	"proa/internal/controllers/nodelifecycle"
	"proa/internal/manager"
)

// ControllerManager is kube-controller-manager: the controllers, over the API of
// a server elsewhere. They write as the kubeconfig's user, or each as a service
// account of its own.
func ControllerManager(args []string) int {
	return execute(command("kube-controller-manager", "The controllers of a cluster", &controllerManager{}), args[1:])
}

type controllerManager struct {
	status
	remote
	controllers    []string
	syncs          concurrency
	migration      leaderMigration
	ownAccounts    bool
	tokenPeriod    time.Duration
	keepMounted    bool
	rootCAFile     string
	accountKeyFile string
	signing        struct{ cert, key string }
	terminatedPods int
	nodes          nodelifecycle.Periods
	allocateCIDRs  bool
	clusterCIDR    string
	cloud          string
}

func (m *controllerManager) add(fs *pflag.FlagSet) {
	m.status.add(fs, "kube-controller-manager", 10257)
	m.remote.add(fs, "kube-controller-manager")
	all, off := manager.Names()
	fs.StringSliceVar(&m.controllers, "controllers", []string{"*"}, fmt.Sprintf(
		"controllers that run: '*' is all that are on by default, 'foo' and '-foo' are one. All: %s. Off by default: %s", strings.Join(all, ", "), strings.Join(off, ", ")))
	m.syncs = defaultSyncs()
	m.syncs.add(fs)
	m.migration.add(fs)
	fs.BoolVar(&m.ownAccounts, "use-service-account-credentials", false, "let each controller write as a service account of its own")
	fs.DurationVar(&m.tokenPeriod, "legacy-service-account-token-clean-up-period", legacytokencleaner.DefaultPeriod, "how long a token in a Secret may lie unused before it becomes invalid, and then before it goes")
	fs.BoolVar(&m.keepMounted, "disable-force-detach-on-timeout", false, "never detach by force what an unhealthy node has mounted, unless it is marked as out of service")
	fs.StringVar(&m.rootCAFile, "root-ca-file", "", "certificate authorities that service accounts are told to trust")
	fs.StringVar(&m.accountKeyFile, "service-account-private-key-file", "", "PEM key that signs the tokens of Secrets")
	fs.StringVar(&m.signing.cert, "cluster-signing-cert-file", "", "certificate of the authority that signs certificate requests")
	fs.StringVar(&m.signing.key, "cluster-signing-key-file", "", "key of the authority that signs certificate requests")
	fs.IntVar(&m.terminatedPods, "terminated-pod-gc-threshold", 12500, "ended pods that are kept before the oldest go; 0 or less: all are kept")
	fs.DurationVar(&m.nodes.Monitor, "node-monitor-period", 5*time.Second, "how often nodes that are waited for are looked at again")
	fs.DurationVar(&m.nodes.Grace, "node-monitor-grace-period", 50*time.Second, "how long a node may be silent")
	fs.DurationVar(&m.nodes.Startup, "node-startup-grace-period", time.Minute, "how long a new node may be silent")
	fs.StringVar(&m.cloud, "cloud-provider", "", "'external' when a cloud-controller-manager of its own sees to a cloud, or nothing: no cloud is known here")
	fs.BoolVar(&m.allocateCIDRs, "allocate-node-cidrs", false, "give nodes ranges of pod addresses")
	fs.StringVar(&m.clusterCIDR, "cluster-cidr", "", "range of pod addresses, at most one per IP family; needs --allocate-node-cidrs")
}

// run keeps the controllers going until ctx ends.
func (m *controllerManager) run(ctx context.Context) error {
	config, err := m.config()
	if err != nil {
		return err
	}
	migration, err := m.migration.read()
	if err != nil {
		return err
	}
	access, err := m.access()
	if err != nil {
		return err
	}
	catalogue, err := m.catalogue()
	if err != nil {
		return err
	}
	if m.reviewer, err = client.NewHTTP(access, catalogue); err != nil {
		return err
	}
	config.Catalogue = catalogue
	config.As = func(string) client.API { return m.reviewer }
	config.Registry = m.metrics
	if config.Metrics, err = horizontalpodautoscaler.NewRaw(access); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.status.run(ctx) })
	g.Go(func() error {
		return m.whileLeading(ctx, access, func(ctx context.Context) error { return m.control(ctx, access, config, migration) })
	})
	return g.Wait()
}

// control runs the controllers that belong to this process.
func (m *controllerManager) control(ctx context.Context, access *rest.Config, config manager.Config, migration *migration.LeaderMigrationConfiguration) error {
	config.Cache = client.NewCache(m.reviewer)
	managing, err := m.manager(ctx, access, config)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	discovery := &client.Discovery{Config: access, Catalogue: config.Catalogue}
	g.Go(func() error { return discovery.Run(ctx) })
	g.Go(func() error { return config.Cache.Run(ctx) })
	g.Go(func() error {
		if migration == nil || !m.leader.LeaderElect {
			return managing.Run(ctx)
		}
		g.Go(func() error {
			return m.whileHolding(ctx, access, migration.ResourceLock, migration.LeaderName, managing.Part(underLease(migration, m.component, true)).Run)
		})
		return managing.Part(underLease(migration, m.component, false)).Run(ctx)
	})
	return g.Wait()
}

// manager makes the controllers, with their accounts where they have their own.
func (m *controllerManager) manager(ctx context.Context, access *rest.Config, config manager.Config) (*manager.Manager, error) {
	if !m.ownAccounts {
		return manager.New(ctx, config)
	}
	accounts, err := newAccounts(access, config.Catalogue)
	if err != nil {
		return nil, err
	}
	config.As = accounts.as
	managing, err := manager.New(ctx, config)
	if err = errors.Join(accounts.err, err); err != nil {
		return nil, err
	}
	return managing, nil
}

// config is what the flags say, but for the way to the API.
func (m *controllerManager) config() (c manager.Config, err error) {
	c = manager.Config{Controllers: m.controllers, TerminatedPods: m.terminatedPods, NodePeriods: m.nodes, Workers: m.syncs.workers(), LegacyTokenPeriod: m.tokenPeriod, KeepMounted: m.keepMounted}
	if err := m.syncs.validate(); err != nil {
		return c, err
	}
	if m.cloud != "" && m.cloud != "external" {
		return c, fmt.Errorf("cloud provider %q was specified, but built-in cloud providers are disabled. Please set --cloud-provider=external and migrate to an external cloud provider", m.cloud)
	}
	if c.TerminatedPods <= 0 {
		c.TerminatedPods = -1
	}
	if m.rootCAFile != "" {
		if c.RootCA, err = os.ReadFile(m.rootCAFile); err != nil {
			return c, fmt.Errorf("--root-ca-file: %w", err)
		}
		if _, err := certutil.ParseCertsPEM(c.RootCA); err != nil {
			return c, fmt.Errorf("error parsing root-ca-file at %s: %w", m.rootCAFile, err)
		}
	}
	if m.accountKeyFile != "" {
		key, err := keyutil.PrivateKeyFromFile(m.accountKeyFile)
		if err != nil {
			return c, fmt.Errorf("error reading key for service account token controller: %w", err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return c, fmt.Errorf("--service-account-private-key-file: a %T cannot sign", key)
		}
		if c.Token, err = token.LegacyIssuer(signer); err != nil {
			return c, err
		}
	}
	if m.signing.cert != "" || m.signing.key != "" {
		authority, err := pki.ReadCA(m.signing.cert, m.signing.key, clock.RealClock{})
		if err != nil {
			return c, fmt.Errorf("--cluster-signing-cert-file: %w", err)
		}
		c.Sign = authority.Sign
	}
	c.PodCIDRs, err = m.podCIDRs()
	return c, err
}

func (m *controllerManager) podCIDRs() ([]netip.Prefix, error) {
	switch {
	case !m.allocateCIDRs && m.clusterCIDR != "":
		return nil, errors.New("--cluster-cidr needs --allocate-node-cidrs")
	case !m.allocateCIDRs:
		return nil, nil
	case m.clusterCIDR == "":
		return nil, errors.New("--allocate-node-cidrs needs --cluster-cidr")
	}
	return prefixes("--cluster-cidr", m.clusterCIDR)
}
