// Package trustbundles keeps the cluster's ClusterTrustBundles at hand for the
// volumes that project them (KEP-3257). A node whose pods project none does not
// watch them.
package trustbundles

import (
	"context"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"golang.org/x/sync/errgroup"

	"proa/internal/client"
)

const (
	bySigner = "spec.signerName"
	// patience is how long a read waits for the first list.
	patience = 10 * time.Second
)

// Cache of all ClusterTrustBundles. It is safe for concurrent use.
type Cache struct {
	cache   *client.Cache
	bundles *client.Informer[*certificatesv1.ClusterTrustBundle]
	changed func()

	want   func()        // begins the watch, once
	wanted chan struct{} // closed by want
	dirty  chan struct{} // a bundle was added, changed or removed
}

// New returns a cache that reads through api from its first use on, while Run
// runs. It calls changed, from one goroutine, after bundles changed.
func New(api client.API, changed func()) *Cache {
	c := &Cache{cache: client.NewCache(api), changed: changed, wanted: make(chan struct{}), dirty: make(chan struct{}, 1)}
	c.want = sync.OnceFunc(func() { close(c.wanted) })
	c.bundles = client.Shared[*certificatesv1.ClusterTrustBundle](c.cache)
	c.bundles.AddIndex(bySigner, func(b *certificatesv1.ClusterTrustBundle) []string { return []string{b.Spec.SignerName} })
	c.bundles.OnChange(func(_, _ *certificatesv1.ClusterTrustBundle) {
		select {
		case c.dirty <- struct{}{}:
		default:
		}
	})
	return c
}

// Run keeps the cache current until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.wanted:
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.cache.Run(ctx) })
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-c.dirty:
				c.changed()
			}
		}
	})
	return g.Wait()
}

// Named returns one bundle, or the API's error for one that does not exist.
func (c *Cache) Named(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	if err := c.read(ctx); err != nil {
		return nil, err
	}
	b, ok := c.bundles.Cached("", name)
	if !ok {
		return nil, apierrors.NewNotFound(certificatesv1.Resource("clustertrustbundles"), name)
	}
	return b, nil
}

// Signed returns the bundles of a signer whose labels match.
func (c *Cache) Signed(ctx context.Context, signer string, selector labels.Selector) ([]*certificatesv1.ClusterTrustBundle, error) {
	if err := c.read(ctx); err != nil {
		return nil, err
	}
	var found []*certificatesv1.ClusterTrustBundle
	for _, b := range c.bundles.ByIndex(bySigner, signer) {
		if selector.Matches(labels.Set(b.Labels)) {
			found = append(found, b)
		}
	}
	return found, nil
}

func (c *Cache) read(ctx context.Context) error {
	c.want()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.cache.WaitForSync(ctx); err != nil {
		return fmt.Errorf("read clustertrustbundles: %w", err)
	}
	return nil
}
