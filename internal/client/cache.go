package client

import (
	"context"
	"slices"
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
	api    API    // of this view: what its informers write through
	parent *Cache // nil: none
	reads  []runner
	*informers
}

// informers are what all views of a cache share.
type informers struct {
	source API
	clock  clock.Clock

	mu     sync.Mutex // guards what follows, and what the views read
	shared map[schema.GroupVersionResource]runner
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
// each component writes as its own user and waits for what it reads itself.
func (c *Cache) As(api API) *Cache { return &Cache{api: api, parent: c, informers: c.informers} }

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
	}
	c.noteLocked(r)
	return &Informer[T]{Resource: Of[T](c.api), reflected: r}
}

// Filtered returns an informer of its own over the objects that opts' selectors match.
func Filtered[T Object](c *Cache, opts metav1.ListOptions) *Informer[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := newReflected[T](c.source, c.clock, opts)
	c.noteLocked(r)
	return &Informer[T]{Resource: Of[T](c.api), reflected: r}
}

// noteLocked adds an informer to what this view reads, and those that it was made from.
func (c *Cache) noteLocked(r runner) {
	for ; c != nil; c = c.parent {
		if !slices.Contains(c.reads, r) {
			c.reads = append(c.reads, r)
		}
	}
}

// Run keeps the informers of this view, and of those made from it, current until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range c.asked() {
		g.Go(func() error { return r.run(ctx) })
	}
	return g.Wait()
}

// WaitForSync blocks until every informer of this view, and of those made from it, has
// delivered its initial list to its handlers.
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
	return slices.Clone(c.reads)
}
