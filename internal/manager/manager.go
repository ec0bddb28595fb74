// Package manager is the list of controllers: what a kube-controller-manager
// runs. All of them read one cache, in the process of the API server or over HTTP,
// and each writes as a user of its own.
package manager

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/apiserver/aggregator"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/csr"
	"proa/internal/controllers/horizontalpodautoscaler"
	"proa/internal/controllers/nodeipam"
	"proa/internal/controllers/nodelifecycle"
	"proa/internal/controllers/serviceaccounttoken"
	"proa/internal/volume"
)

// Config says what the controllers work on and with. Cache, As and Catalogue are
// required. A controller whose means are absent does not run.
type Config struct {
	// Cache is what the controllers read. Who made it runs it, after New. What
	// upstream writes as system:kube-controller-manager goes through its API.
	Cache *client.Cache
	// As is the API as the service account of one controller in kube-system.
	As        func(account string) client.API
	Catalogue *apis.Catalogue
	// Aggregator knows the kinds of other servers. Nil: there are none.
	Aggregator *aggregator.Aggregator
	Clock      clock.WithTicker // nil: the real one
	// Workers are those of a controller, by its name; unnamed ones have their default.
	Workers map[string]int
	// Registry gathers what controllers measure; nil: nobody asks.
	Registry prometheus.Registerer

	// Controllers are names as upstream's flag --controllers has them: "*" for all
	// that are on by default, "a" and "-a" for one. Empty: "*".
	Controllers []string

	RootCA  []byte                    // PEM, published in every namespace and in tokens; nil: neither
	Token   serviceaccounttoken.Issue // makes the tokens of Secrets; nil: nobody does
	Sign    csr.Sign                  // signs approved certificate requests; nil: nobody does
	Serving csr.Serving               // limits of serving certificates that are approved by themselves

	// LegacyTokenPeriod is how long a token in a Secret may lie unused before it
	// becomes invalid, and then before it goes; 0: a year.
	LegacyTokenPeriod time.Duration

	NodePeriods nodelifecycle.Periods // how long nodes may be silent
	KeepMounted bool                  // volumes of unhealthy nodes are never detached by force

	PodCIDRs []netip.Prefix // that nodes get their ranges from; none: they get none

	Metrics        horizontalpodautoscaler.Raw // custom and external metrics; nil: none are known
	TerminatedPods int                         // that are kept before the oldest go; 0: 12 500
	LocalPath      volume.LocalPath            // the class local-path; zero: none
}

// Manager is the controllers that are on.
type Manager struct {
	// Ranges gives nodes their pod addresses; nil when that is off.
	Ranges *nodeipam.Controller

	made    []named
	running *prometheus.GaugeVec // nil: nobody asks
}

// named is a controller under upstream's name.
type named struct {
	controller
	name  string
	reads []*client.Cache
}

type controller interface {
	Run(ctx context.Context) error
}

// New makes the controllers that c asks for, and with them the informers that
// the cache must run. An error is a user's mistake.
func New(ctx context.Context, c Config) (*Manager, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if len(c.Controllers) == 0 {
		c.Controllers = []string{"*"}
	}
	if err := checkNames(c.Controllers); err != nil {
		return nil, err
	}
	b := &builder{Config: c, ctx: ctx, manager: &Manager{}}
	b.measure()
	for _, e := range entries {
		if !e.on(c.Controllers) {
			continue
		}
		b.name, b.views = e.name, nil
		made, err := e.make(b)
		if err != nil {
			return nil, err
		}
		if made != nil {
			b.manager.made = append(b.manager.made, named{made, e.name, b.views})
		}
	}
	return b.manager, nil
}

// Part is those of the controllers that belong to it by their names. Every
// controller has to be run in one part.
func (m *Manager) Part(belongs func(name string) bool) *Manager {
	part := *m
	part.made = slices.DeleteFunc(slices.Clone(m.made), func(c named) bool { return !belongs(c.name) })
	return &part
}

// Run works until ctx ends. Each controller starts when what it reads itself is there,
// so that a kind that cannot be read stops none but those that need it. When ctx ends
// before, they only release what New has made.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range m.made {
		g.Go(func() error {
			for _, view := range c.reads {
				_ = view.WaitForSync(ctx)
			}
			m.runs(c.name, 1)
			defer m.runs(c.name, 0)
			return c.Run(ctx)
		})
	}
	return g.Wait()
}

func (m *Manager) runs(name string, instances float64) {
	if m.running != nil {
		m.running.WithLabelValues(name, "kube-controller-manager").Set(instances)
	}
}

// Names are the names that Config.Controllers may hold, sorted, and those among
// them that are off by default.
func Names() (all, off []string) {
	for _, e := range entries {
		all = append(all, e.name)
		if e.off {
			off = append(off, e.name)
		}
	}
	slices.Sort(all)
	slices.Sort(off)
	return all, off
}

// builder is what entries make their controllers from.
type builder struct {
	Config
	ctx     context.Context // of the recorders
	manager *Manager
	queues  *controllers.Queues
	name    string          // of the entry that is being made
	views   []*client.Cache // that it reads
}

// measure registers what is measured of every controller.
func (b *builder) measure() {
	if b.Registry == nil {
		return
	}
	b.queues = controllers.NewQueues(b.Registry)
	b.manager.running = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "running_managed_controllers", Help: "[BETA] Controllers that run here",
	}, []string{"name", "manager"})
	b.Registry.MustRegister(b.manager.running)
}

// as is what a controller is built from that writes as one service account.
func (b *builder) as(account string) controllers.Config { return b.with(b.As(account)) }

// itself is what a controller is built from that writes as the manager.
func (b *builder) itself() controllers.Config { return b.with(b.Cache.API()) }

func (b *builder) with(api client.API) controllers.Config {
	view := b.Cache.As(api)
	b.views = append(b.views, view)
	return controllers.Config{
		Cache: view, Clock: b.Clock, Metrics: b.Registry, Queues: b.queues, Workers: b.Workers[b.name],
		Recorder: func(component string) record.EventRecorder {
			return client.NewRecorder(b.ctx, api, component, "")
		},
	}
}
