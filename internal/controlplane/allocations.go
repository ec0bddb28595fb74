package controlplane

import (
	"context"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apiserver/allocate"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/ipaddress"
)

// allocations keeps what Services were given to what they say. Its informers are
// its own: a Service that cannot be read stops nothing else of the server.
type allocations struct{ *ControlPlane }

// Run works until ctx ends.
func (a allocations) Run(ctx context.Context) error {
	api := a.As(user.APIServerUser, user.SystemPrivilegedGroup)
	cache := client.NewCache(api)
	addresses := ipaddress.New(controllers.Config{
		Cache: cache, Clock: a.config.Clock, Metrics: a.config.Server.Metrics,
		Recorder: func(component string) controllers.EventRecorder { return client.NewRecorder(ctx, api, component, "") },
	})
	ports := allocate.NewPortRepair(allocate.PortRepairConfig{
		Services: a.Registry.Allocations(), Clock: a.config.Clock, Metrics: a.config.Server.Metrics,
		Events: client.NewRecorder(ctx, api, "portallocator-repair-controller", ""),
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return cache.Run(ctx) })
	g.Go(func() error {
		_ = cache.WaitForSync(ctx) // when ctx ends first, the loops only end
		return addresses.Run(ctx)
	})
	g.Go(func() error { return ports.Run(ctx) })
	return g.Wait()
}
