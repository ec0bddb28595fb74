package etcd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// compactKey is where upstream's servers agree on who compacts. Its version is
// their logical time, its value the revision of the last compaction.
const compactKey = "compact_rev_key"

// Compactor has etcd forget revisions that are older than one to two intervals.
// Of all servers on one etcd, upstream's included, one does it each time.
type Compactor struct {
	Engine   *Engine
	Interval time.Duration // 0 means 5 minutes

	version  int64 // of compactKey, as this server last saw it
	revision int64 // etcd's, at the last round
}

// Run compacts until ctx ends.
func (c *Compactor) Run(ctx context.Context) error {
	ticker := c.Engine.clock.NewTicker(cmp.Or(c.Interval, 5*time.Minute))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return nil
		}
		if _, err := c.Compact(ctx); err != nil && ctx.Err() == nil {
			slog.Error("Compact etcd", "err", err)
		}
	}
}

// Compact does one round: when nobody else has done one since this server's
// last, it forgets what came before that. It returns the revision of the
// compaction, 0 when there was none.
func (c *Compactor) Compact(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Engine.timeout)
	defer cancel()
	client, before := c.Engine.client, c.revision
	answer, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactKey), "=", c.version)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(before, 10))).
		Else(clientv3.OpGet(compactKey)).
		Commit()
	if err != nil {
		return 0, fmt.Errorf("take the turn: %w", err)
	}
	c.revision = answer.Header.Revision
	if !answer.Succeeded {
		c.version = 0
		if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			c.version = kvs[0].Version
		}
		return 0, nil
	}
	c.version++
	if before == 0 {
		return 0, nil
	}
	if _, err := client.Compact(ctx, before); err != nil {
		return 0, fmt.Errorf("compact to %d: %w", before, err)
	}
	return before, nil
}
