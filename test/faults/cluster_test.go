package faults

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/internal/manager"
	"proa/internal/scheduler"
	"proa/internal/simulate"
)

// cluster is an API server that loses power now and then, simulated nodes, which
// nothing befalls, and the controllers and the scheduler, which live and die as
// their fate has it.
type cluster struct {
	server    *server
	access    *rest.Config
	user      kubernetes.Interface // who applies the workloads
	catalogue *apis.Catalogue
	calm      bool // nothing goes wrong
	clock     jumping
	writes    *fate
	reads     *fate
	lives     atomic.Int32
}

const nodes = 3

// messages are what the autoscaler's metric counts.
const messages = 40

// measure answers for external.metrics.k8s.io.
func measure(_ context.Context, path string, _ url.Values) ([]byte, error) {
	if !strings.HasSuffix(path, "/messages") {
		return nil, fmt.Errorf("%s is not measured", path)
	}
	return fmt.Appendf(nil, `{"items":[{"value":"%d"}]}`, messages), nil
}

// start runs a cluster until the test has ended.
func start(t *testing.T, seed uint64, troubles int) *cluster {
	c := &cluster{
		server: serve(t), catalogue: builtin.Catalogue(), calm: troubles == 0,
		writes: newFate(seed, troubles), reads: newFate(seed+1, troubles),
	}
	var err error
	if c.access, err = c.server.access(); err != nil {
		t.Fatal(err)
	}
	c.user = kubernetes.NewForConfigOrDie(c.access)
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.simulate(ctx) })
	g.Go(func() error { return c.control(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil && err != context.Canceled {
			t.Errorf("the cluster ended: %v", err)
		}
	})
	return c
}

// as is the API as somebody.
func (c *cluster) as(name string, groups ...string) client.API {
	access := rest.CopyConfig(c.access)
	access.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
	api, err := client.NewHTTP(access, c.catalogue)
	if err != nil {
		panic(fmt.Sprintf("a client of %s: %v", access.Host, err))
	}
	return api
}

// simulate runs the nodes.
func (c *cluster) simulate(ctx context.Context) error {
	api, err := client.NewHTTP(c.access, c.catalogue)
	if err != nil {
		return err
	}
	cache := client.NewCache(api)
	sim, err := simulate.New(simulate.Config{Cache: cache, Fleet: simulate.Fleet{Nodes: nodes}})
	if err != nil {
		return err
	}
	return together(ctx, cache, sim)
}

// control runs the programs under test, one life after another.
func (c *cluster) control(ctx context.Context) error {
	for ctx.Err() == nil {
		c.lives.Add(1)
		if err := c.live(ctx); err != nil {
			return err
		}
	}
	return nil
}

// live is one life.
func (c *cluster) live(ctx context.Context) error {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	p := &process{writes: c.writes, reads: c.reads, kill: kill}
	cache := client.NewCache(p.as(user.KubeControllerManager, c.as(user.KubeControllerManager)))
	controllers, err := manager.New(ctx, manager.Config{
		Cache: cache, Catalogue: c.catalogue, Clock: &c.clock, RootCA: c.access.CAData, Sign: c.server.authority.Cluster.Sign, Metrics: measure,
		As: func(account string) client.API {
			return p.as(account, c.as(serviceaccount.MakeUsername("kube-system", account), serviceaccount.MakeGroupNames("kube-system")...))
		},
	})
	if err != nil {
		return err
	}
	binder, err := scheduler.New(scheduler.Config{
		Cache: cache.As(p.as(user.KubeScheduler, c.as(user.KubeScheduler))), Clock: clock.RealClock{},
	})
	if err != nil {
		return err
	}
	return together(ctx, cache, controllers, binder)
}

// together runs a cache and what reads it until ctx ends.
func together(ctx context.Context, cache *client.Cache, parts ...interface{ Run(context.Context) error }) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return cache.Run(ctx) })
	for _, part := range parts {
		g.Go(func() error {
			_ = cache.WaitForSync(ctx) // when ctx ends first, a part only cleans up
			return part.Run(ctx)
		})
	}
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// jumping is the real time with a distance that changes at once.
type jumping struct {
	clock.RealClock
	ahead atomic.Int64
}

func (j *jumping) Now() time.Time                  { return time.Now().Add(time.Duration(j.ahead.Load())) }
func (j *jumping) Since(t time.Time) time.Duration { return j.Now().Sub(t) }

func (j *jumping) jump(d time.Duration) {
	j.ahead.Add(int64(d))
	slog.Debug("the clock jumps", "by", d)
}
