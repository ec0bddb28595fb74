// Package garbagecollector deletes objects whose owners are gone. It knows every
// object of every kind that can be listed, watched and deleted, kinds that are
// served later included, and holds the finalizers of deletions that wait for
// dependents (foreground) or leave them behind (orphan).
//
// It decides on its graph only where being late does no harm. Before anything is
// deleted, the object and each owner that the graph does not show are read anew.
package garbagecollector

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
)

// rememberedAbsent bounds the owners that need no second look because they are known to be gone.
const rememberedAbsent = 500

// Controller is the garbage collector.
type Controller struct {
	loop      *controllers.Loop
	api       client.API
	config    controllers.Config
	catalogue *apis.Catalogue
	elsewhere *apis.Catalogue // nil: there are no other servers
	graph     *graph
	absent    *lru.Cache // of reference
	unsure    sync.Map   // UIDs of objects with an owner of an unknown kind, until there are other kinds
	events    controllers.EventRecorder
	listing   atomic.Int32       // kinds whose first list is not complete
	patience  atomic.Int64       // until when, in Unix nanoseconds, to wait for them
	late      prometheus.Counter // changes of what is served after which lists took longer
}

// New returns a collector of the kinds in catalogue.
func New(c controllers.Config, catalogue *apis.Catalogue) *Controller {
	g := &Controller{
		api: c.Cache.API(), config: c, catalogue: catalogue, graph: newGraph(catalogue),
		absent: lru.New(rememberedAbsent), events: c.Events("garbage-collector-controller"),
	}
	g.late = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "garbagecollector_controller_resources_sync_error_total", Help: "[ALPHA] Number of garbage collector resources sync errors",
	})
	c.Register(g.late)
	g.loop = controllers.NewLoop("garbage_collector_attempt_to_delete", c, g.reconcile)
	return g
}

// Run works until ctx ends.
func (g *Controller) Run(ctx context.Context) error {
	var running sync.WaitGroup
	kinds := &kinds{collector: g, followers: map[schema.GroupResource]*follower{}}
	changed := kinds.update(ctx)
	running.Go(func() {
		patience := g.config.Clock.NewTimer(listPatience)
		defer func() { patience.Stop() }()
		update := func() {
			changed = kinds.update(ctx)
			patience.Stop()
			patience = g.config.Clock.NewTimer(listPatience)
		}
		for ctx.Err() == nil {
			select {
			case <-changed[0]:
				update()
			case <-changed[1]:
				update()
			case <-patience.C():
				if g.listing.Load() > 0 {
					g.late.Inc()
				}
			case <-ctx.Done():
			}
		}
		kinds.stop()
	})
	err := g.loop.Run(ctx)
	running.Wait()
	return err
}

// kinds are the followers of all collectable kinds that are served.
type kinds struct {
	collector *Controller
	followers map[schema.GroupResource]*follower
}

type follower struct {
	resource schema.GroupVersionResource
	stop     context.CancelFunc
	stopped  chan struct{}
}

// update starts and stops followers as the catalogues say, and returns what is
// closed when one of them says something new.
func (k *kinds) update(ctx context.Context) (changed [2]<-chan struct{}) {
	served, changed := k.collector.collectables()
	for gr, f := range k.followers {
		if r := served[gr]; r == nil || r.GroupVersionResource() != f.resource {
			f.stop()
			<-f.stopped
			delete(k.followers, gr)
		}
	}
	for gr, r := range served {
		if k.followers[gr] != nil {
			continue
		}
		following, stop := context.WithCancel(ctx)
		f := &follower{r.GroupVersionResource(), stop, make(chan struct{})}
		k.followers[gr] = f
		k.collector.listing.Add(1)
		go func() {
			defer close(f.stopped)
			k.collector.follow(following, r)
		}()
	}
	k.collector.lookAtUnsure()
	k.collector.patience.Store(k.collector.config.Clock.Now().Add(listPatience).UnixNano())
	return changed
}

func (k *kinds) stop() {
	for _, f := range k.followers {
		f.stop()
		<-f.stopped
	}
}

// ignored kinds neither own nor are owned.
var ignored = map[schema.GroupResource]bool{
	corev1.Resource("events"):                       true,
	{Group: eventsv1.GroupName, Resource: "events"}: true,
}

func collectable(r *apis.Resource) bool {
	if ignored[r.GroupResource()] {
		return false
	}
	if r.Verbs == nil {
		return true
	}
	return slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") && slices.Contains(r.Verbs, "delete")
}

// follow keeps the graph's objects of one kind current until ctx ends. When the
// kind is no longer served its objects are forgotten, which says nothing about
// whether they are gone.
func (g *Controller) follow(ctx context.Context, r *apis.Resource) {
	listed := sync.OnceFunc(func() { g.listing.Add(-1) })
	defer listed()
	f := client.Follower{
		API: g.api, Resource: r.GroupVersionResource(), Clock: g.config.Clock,
		Begin: func() { g.graph.begin(r) },
		Complete: func() {
			gone, look := g.graph.complete(r)
			for _, n := range gone {
				g.absent.Add(nameOf(n), nil)
			}
			g.look(look)
			listed()
		},
		Change: func(obj client.Object, removed bool) error {
			if removed {
				g.absent.Add(nameOf(&node{resource: r, obj: obj}), nil)
				g.look(g.graph.remove(obj))
			} else {
				g.look(g.graph.set(r, obj))
			}
			return nil
		},
	}
	_ = f.Run(ctx)
	g.graph.begin(r)
	_, look := g.graph.complete(r)
	g.look(look)
}

// lookAtUnsure has objects looked at again whose owners' kinds may be known now.
func (g *Controller) lookAtUnsure() {
	g.unsure.Range(func(uid, _ any) bool {
		g.unsure.Delete(uid)
		g.look([]types.UID{uid.(types.UID)})
		return true
	})
}

func (g *Controller) look(uids []types.UID) {
	for _, uid := range uids {
		g.loop.Enqueue(controllers.Key{Name: string(uid)})
	}
}

// reference is an owner reference in full: what it names, and the namespace that
// it is looked for in.
type reference struct {
	resource        schema.GroupResource
	namespace, name string
	uid             types.UID
}

func nameOf(n *node) reference {
	return reference{n.resource.GroupResource(), n.obj.GetNamespace(), n.obj.GetName(), n.obj.GetUID()}
}
