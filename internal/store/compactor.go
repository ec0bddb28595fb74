package store

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/utils/clock"
)

// Compactor keeps the history of a store short: once in an interval it forgets
// what is older than that, as upstream does.
type Compactor struct {
	Store    *Store
	Interval time.Duration    // 0 means 5 minutes
	Clock    clock.WithTicker // nil: the real one
}

// Run compacts until ctx ends.
func (c *Compactor) Run(ctx context.Context) error {
	var clk clock.WithTicker = clock.RealClock{}
	if c.Clock != nil {
		clk = c.Clock
	}
	ticker := clk.NewTicker(cmp.Or(c.Interval, 5*time.Minute))
	defer ticker.Stop()
	before := c.Store.Revision() // at the last tick
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return nil
		}
		if err := c.Store.Compact(ctx, before); err != nil && !errors.Is(err, ErrCompacted) {
			slog.Error("Compact store", "err", err)
		}
		before = c.Store.Revision()
	}
}
