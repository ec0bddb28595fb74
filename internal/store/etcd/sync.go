package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"proa/internal/store"
)

// Sync returns after everything that etcd has committed before the call was
// published, and says up to which revision. Reads of the store are then as
// fresh as reads of etcd. When etcd answers while its watch does not, it fails
// with store.ErrBehind.
func (e *Engine) Sync(ctx context.Context) (int64, error) {
	revision, err := e.newest(ctx)
	if errors.Is(err, store.ErrReplaced) {
		err = errors.Join(err, store.ErrBehind) // until all of it has been read again
	}
	if err != nil {
		return 0, err
	}
	patient, cancel := context.WithTimeout(ctx, e.behind)
	defer cancel()
	err = e.waitFor(patient, revision)
	if err != nil && patient.Err() != nil && ctx.Err() == nil {
		return 0, fmt.Errorf("etcd is at revision %d: %w", revision, store.ErrBehind)
	}
	return revision, err
}

// asks gathers those who want to know etcd's revision: one question at a time is
// on its way, and all who come meanwhile share the one after it.
type asks struct {
	mu     sync.Mutex // guards the rest
	next   *ask       // not sent yet, nil for none
	asking bool
}

// ask is one question. The rest is set when done is closed.
type ask struct {
	done     chan struct{}
	revision int64
	err      error
}

// newest is etcd's revision at some moment after the call.
func (e *Engine) newest(ctx context.Context) (int64, error) {
	e.asks.mu.Lock()
	if e.asks.next == nil {
		e.asks.next = &ask{done: make(chan struct{})}
	}
	a := e.asks.next
	if !e.asks.asking {
		e.asks.asking = true
		go e.askAll()
	}
	e.asks.mu.Unlock()
	select {
	case <-a.done:
		return a.revision, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// askAll sends questions until nobody has one.
func (e *Engine) askAll() {
	for {
		e.asks.mu.Lock()
		a := e.asks.next
		e.asks.next, e.asks.asking = nil, a != nil
		e.asks.mu.Unlock()
		if a == nil {
			return
		}
		a.revision, a.err = e.askOnce()
		close(a.done)
	}
}

func (e *Engine) askOnce() (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), e.timeout)
	defer cancel()
	before := e.reached()
	answer, err := e.client.Get(ctx, e.layout.root, clientv3.WithKeysOnly())
	if err != nil {
		return 0, storeError(err)
	}
	return answer.Header.Revision, e.mistrust(before, answer.Header.Revision)
}

// Health asks etcd to read one key, as upstream's health checks do.
func (e *Engine) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if _, err := e.client.Get(ctx, e.layout.root+"health"); err != nil {
		return fmt.Errorf("error getting data from etcd: %w", err)
	}
	return nil
}
