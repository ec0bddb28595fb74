package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/trace"

	"proa/internal/store"
)

// flight is an own transaction between its call and its publication.
type flight struct {
	txn      *store.Txn
	seen     int64         // etcd's revision when it refused the transaction
	answered chan struct{} // closed when txn's Revision or Err is set

	claimed bool // by Follow, which hands it over; under the engine's mu
}

// Commit sends the transactions of a batch to etcd side by side, for they do not
// touch each other, and returns when the watch has shown those that succeeded
// and what made others fail. Every transaction has its own outcome.
func (e *Engine) Commit(batch []*store.Txn) error {
	flights, err := e.depart(batch)
	if err != nil {
		return err
	}
	defer e.land(flights)
	var calls sync.WaitGroup
	free := make(chan struct{}, maxCalls)
	for _, f := range flights {
		free <- struct{}{}
		calls.Go(func() {
			e.send(f)
			close(f.answered)
			<-free
		})
	}
	calls.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), e.timeout)
	defer cancel()
	for _, f := range flights {
		e.settle(ctx, f)
	}
	return nil
}

func (e *Engine) depart(batch []*store.Txn) ([]*flight, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return nil, e.ended
	}
	flights := make([]*flight, len(batch))
	for i, t := range batch {
		flights[i] = &flight{txn: t, answered: make(chan struct{})}
		for _, op := range t.Ops {
			e.flights[op.Key] = flights[i]
		}
	}
	return flights, nil
}

func (e *Engine) land(flights []*flight) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range flights {
		for _, op := range f.txn.Ops {
			delete(e.flights, op.Key)
		}
	}
}

// send makes the call of one transaction.
func (e *Engine) send(f *flight) {
	checks := make([]clientv3.Cmp, len(f.txn.Checks))
	for i, c := range f.txn.Checks {
		checks[i] = clientv3.Compare(clientv3.ModRevision(e.layout.path(c.Key)), "=", c.Revision)
	}
	ops := make([]clientv3.Op, len(f.txn.Ops))
	for i, op := range f.txn.Ops {
		if op.Delete {
			ops[i] = clientv3.OpDelete(e.layout.path(op.Key))
		} else {
			ops[i] = clientv3.OpPut(e.layout.path(op.Key), string(op.Value))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.timeout)
	defer cancel()
	if f.txn.Span != nil {
		ctx = trace.ContextWithSpan(ctx, f.txn.Span)
	}
	before := e.reached()
	answer, err := e.client.Txn(ctx).If(checks...).Then(ops...).Commit()
	switch {
	case err != nil:
		f.txn.Err = storeError(err)
	case answer.Header.Revision < before:
		f.txn.Err = e.mistrust(before, answer.Header.Revision)
	case !answer.Succeeded:
		f.txn.Err, f.seen = store.ErrConflict, answer.Header.Revision
	default:
		f.txn.Revision = answer.Header.Revision
	}
}

// settle waits until what etcd answered is visible. A transaction that runs
// again after a conflict then sees what it collided with. One that only a list
// has shown, or nothing in time, is in doubt.
func (e *Engine) settle(ctx context.Context, f *flight) {
	switch {
	case f.seen > 0:
		if err := e.waitFor(ctx, f.seen); err != nil {
			f.txn.Err = fmt.Errorf("after a conflict: %w", err)
		}
	case f.txn.Err == nil:
		err := e.waitFor(ctx, f.txn.Revision)
		if e.abandon(f) {
			f.txn.Err = errors.Join(ErrLagging, err)
		} else if err := e.waitFor(context.Background(), f.txn.Revision); err != nil {
			f.txn.Err = err
		}
	}
}

// abandon leaves a transaction to the watch as if it were somebody else's;
// false when it was or is being handed over.
func (e *Engine) abandon(f *flight) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.claimed {
		return false
	}
	for _, op := range f.txn.Ops {
		delete(e.flights, op.Key)
	}
	return true
}
