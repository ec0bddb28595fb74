// Package memory is a store engine without a disk, for tests and simulations.
// It promises what every engine does until the process ends.
package memory

import (
	"context"
	"sync"

	"proa/internal/store"
)

// Engine keeps the newest value of every key. Close leaves them in place, so
// that a store can be opened on the same engine again.
type Engine struct {
	forget bool

	mu       sync.Mutex // guards the rest
	revision int64
	records  map[store.Key]store.Record
}

// New returns an empty engine.
func New() *Engine { return &Engine{records: map[store.Key]store.Record{}} }

// Forgetful returns an engine that counts revisions and keeps nothing else. A
// simulation of many objects then holds each of them once.
func Forgetful() *Engine { return &Engine{forget: true} }

// Load visits the newest records. No other revision is held.
func (e *Engine) Load(ctx context.Context, revision int64, visit func(store.Record) error) (int64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case revision > e.revision:
		return 0, store.ErrFuture
	case revision > 0 && revision < e.revision:
		return 0, store.ErrCompacted
	}
	for _, r := range e.records {
		if err := visit(r); err != nil {
			return 0, err
		}
	}
	return e.revision, ctx.Err()
}

// Commit keeps a batch.
func (e *Engine) Commit(batch []*store.Txn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range batch {
		e.revision++
		t.Revision = e.revision
		if e.forget {
			continue
		}
		for _, op := range t.Ops {
			if op.Delete {
				delete(e.records, op.Key)
			} else {
				e.records[op.Key] = store.Record{Key: op.Key, Revision: e.revision, Value: op.Value}
			}
		}
	}
	return nil
}

// Close does nothing.
func (e *Engine) Close() error { return nil }
