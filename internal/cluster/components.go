package cluster

import (
	"context"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/endpointslice"
	"proa/internal/controllers/rootca"
	saccounts "proa/internal/controllers/serviceaccount"
)

// component is anything that works on the shared state until its context ends.
type component interface {
	Run(ctx context.Context) error
}

// components returns what runs beside the API server in its process, on one
// shared cache. Each writes as a user of its own, with the roles that upstream
// gives that user and no more. They are made before the cache runs, so that it
// knows every informer and index they need.
func (cp *controlPlane) components(ctx context.Context) (*client.Cache, []component) {
	cache := client.NewCache(cp.as(user.KubeControllerManager))
	config := func(controller string) controllers.Config {
		api := cp.asController(controller)
		return controllers.Config{
			Cache: cache.As(api),
			Clock: clock.RealClock{},
			Recorder: func(component string) record.EventRecorder {
				return client.NewRecorder(ctx, api, component, "")
			},
		}
	}
	return cache, []component{
		saccounts.New(config("service-account-controller")),
		rootca.New(config("root-ca-cert-publisher"), cp.authority.CAPEM()),
		endpointslice.New(config("endpointslice-controller")),
	}
}

// asController is the API as the service account of one controller.
func (cp *controlPlane) asController(name string) client.API {
	return cp.as(serviceaccount.MakeUsername("kube-system", name), serviceaccount.MakeGroupNames("kube-system")...)
}

// run serves the API and runs components until ctx ends.
func (cp *controlPlane) run(ctx context.Context, cache *client.Cache, components []component) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return cp.server.Run(ctx, cp.listener) })
	g.Go(func() error { return cache.Run(ctx) })
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
