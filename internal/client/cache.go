package client

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"
)

// Cache is the set of informers that the components of one process share: one
// watch per kind, however many readers. Over the in-process transport it holds
// the store's own pointers, not copies.
//
// Informers are asked for before Run.
type Cache struct {
	api API // of this view: what its informers write through
	*informers
}

// informers are what all views of a cache share.
type informers struct {
	source API
	clock  clock.Clock

	mu     sync.Mutex // guards what follows
	shared map[schema.GroupVersionResource]runner
	all    []runner
}

type runner interface {
	run(ctx context.Context) error
	synced() <-chan struct{}
}

// NewCache returns an empty cache that reads and writes through api.
func NewCache(api API) *Cache {
	return &Cache{api: api, informers: &informers{
		source: api, clock: clock.RealClock{}, shared: map[schema.GroupVersionResource]runner{},
	}}
}

// As returns a view of the same informers whose writes go through api, so that
// each component writes as its own user.
func (c *Cache) As(api API) *Cache { return &Cache{api: api, informers: c.informers} }

// API returns what this view writes through.
func (c *Cache) API() API { return c.api }

// Shared returns the process's informer over all objects of T's kind.
func Shared[T Object](c *Cache) *Informer[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	gvr := ResourceOf[T]().GroupVersionResource()
	r, ok := c.shared[gvr].(*reflected[T])
	if !ok {
		r = newReflected[T](c.source, c.clock, metav1.ListOptions{})
		c.shared[gvr] = r
		c.all = append(c.all, r)
	}
	return &Informer[T]{Resource: Of[T](c.api), reflected: r}
}

// Filtered returns an informer of its own over the objects that opts' selectors match.
func Filtered[T Object](c *Cache, opts metav1.ListOptions) *Informer[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := newReflected[T](c.source, c.clock, opts)
	c.all = append(c.all, r)
	return &Informer[T]{Resource: Of[T](c.api), reflected: r}
}

// Run keeps every informer current until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range c.asked() {
		g.Go(func() error { return r.run(ctx) })
	}
	return g.Wait()
}

// WaitForSync blocks until every informer has delivered its initial list to its handlers.
func (c *Cache) WaitForSync(ctx context.Context) error {
	for _, r := range c.asked() {
		select {
		case <-r.synced():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *Cache) asked() []runner {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]runner(nil), c.all...)
}
