package store

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
)

// Bounds of the work of an Expiry: how often it looks, and how many objects it
// remembers at once.
const (
	minExpiryInterval = time.Second
	maxExpiryInterval = time.Minute
	expiryRound       = 1000
)

// Expiry removes the objects of one resource that nobody has written for a
// while, as deletions that watches see. No lease is kept for them.
//
// Age is told by revisions: what is no newer than the store was a TTL ago has
// expired, whatever times clients have written. What was written before this
// process started goes by the object's own times, so that a restart does not
// prolong its life; several servers on one engine may each run an Expiry.
type Expiry struct {
	Store    *Store
	Resource schema.GroupResource
	TTL      time.Duration // 0 means 1 hour

	// Written tells when an object was last written as far as it says so itself.
	Written func(Object) time.Time

	Clock clock.WithTicker // nil: the real one

	marks []mark // ascending; the first is a TTL old once one is
}

// mark says which revision the store had at a time.
type mark struct {
	at       time.Time
	revision int64
}

// Run removes what has expired until ctx ends.
func (e *Expiry) Run(ctx context.Context) error {
	var clk clock.WithTicker = clock.RealClock{}
	if e.Clock != nil {
		clk = e.Clock
	}
	interval := min(max(e.ttl()/60, minExpiryInterval), maxExpiryInterval)
	ticker := clk.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := e.Sweep(ctx, clk.Now()); err != nil && ctx.Err() == nil {
			slog.Error("Remove what has expired", "resource", e.Resource.String(), "err", err)
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return nil
		}
	}
}

func (e *Expiry) ttl() time.Duration { return cmp.Or(e.TTL, time.Hour) }

// Sweep removes what has expired by now.
func (e *Expiry) Sweep(ctx context.Context, now time.Time) error {
	horizon := now.Add(-e.ttl())
	aged := e.aged(now, horizon)
	for {
		expired := e.find(aged, horizon)
		for rest := expired; len(rest) > 0; {
			n := min(len(rest), MaxTxnKeys)
			if err := e.remove(ctx, rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		if len(expired) < expiryRound {
			return nil
		}
	}
}

// aged notes the store's revision and returns the one it had at the horizon, 0
// when this process does not reach back to it.
func (e *Expiry) aged(now, horizon time.Time) int64 {
	e.marks = append(e.marks, mark{now, e.Store.Revision()})
	for len(e.marks) > 1 && !e.marks[1].at.After(horizon) {
		e.marks = e.marks[1:]
	}
	if e.marks[0].at.After(horizon) {
		return 0
	}
	return e.marks[0].revision
}

// find returns some objects that have expired.
func (e *Expiry) find(aged int64, horizon time.Time) []*Item {
	var expired []*Item
	e.Store.Snapshot().Range(e.Resource, "", Key{}, func(item *Item) bool {
		if item.Revision <= aged || !e.Written(item.Object).After(horizon) {
			expired = append(expired, item)
		}
		return len(expired) < expiryRound
	})
	return expired
}

// remove deletes those of the items that are still as they were found.
func (e *Expiry) remove(ctx context.Context, items []*Item) error {
	_, err := e.Store.Update(ctx, func(tx *Tx) error {
		for _, item := range items {
			now, err := tx.Get(item.Key)
			if errors.Is(err, ErrNotFound) || err == nil && now.Revision != item.Revision {
				continue
			}
			if err != nil {
				return err
			}
			if err := tx.Delete(item.Key); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}
