package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"proa/internal/store"
)

// askAgain is how long a request for progress may go unanswered, which is what
// etcd does while it still has events to send.
const askAgain = 100 * time.Millisecond

// retryWatch is how long a watch that etcd ended is not started again.
const retryWatch = 100 * time.Millisecond

// Follow watches the whole prefix and hands over what changed, until ctx ends.
// It survives lost connections and leaders, and compactions of what it missed.
func (e *Engine) Follow(ctx context.Context, after int64, publish func([]*store.Txn) error) error {
	f := &follower{engine: e, revision: after, publish: publish}
	select {
	case <-e.setBack: // known by now
	default:
	}
	e.move(func() { e.revision = after })
	err := f.run(ctx)
	e.move(func() {
		if errors.Is(err, store.ErrReplaced) {
			e.known, e.revision = nil, 0
		} else {
			e.ended = fmt.Errorf("follow etcd: %w", err)
		}
	})
	return err
}

// move changes how far the engine has come, and wakes those who wait for that.
func (e *Engine) move(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
	close(e.moved)
	e.moved = make(chan struct{})
}

// reached is the revision up to which everything was handed over.
func (e *Engine) reached() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.revision
}

// mistrust compares what etcd answered with a revision that was handed over before it
// was asked. It cannot be lower, unless etcd was restored from a backup.
func (e *Engine) mistrust(before, answered int64) error {
	if answered >= before {
		return nil
	}
	select {
	case e.setBack <- struct{}{}:
	default:
	}
	return fmt.Errorf("etcd answers at revision %d, and has been at %d: %w", answered, before, store.ErrReplaced)
}

// follower is one run of Follow.
type follower struct {
	engine   *Engine
	revision int64 // everything up to it was handed over
	publish  func([]*store.Txn) error
}

func (f *follower) run(ctx context.Context) error {
	for {
		err := f.watch(ctx)
		if errors.Is(err, store.ErrCompacted) {
			err = f.catchUp(ctx)
		}
		var lost *lostError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &lost):
			slog.Warn("Watch of etcd ended", "err", err)
		case err != nil:
			return err
		}
		select {
		case <-f.engine.clock.After(retryWatch):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lostError is one that another attempt may overcome.
type lostError struct{ cause error }

func (l *lostError) Error() string { return l.cause.Error() }
func (l *lostError) Unwrap() error { return l.cause }

// watch hands over what etcd sends until that ends. Connections that break are
// replaced below, without a gap.
func (f *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	e := f.engine
	answers := e.client.Watch(ctx, e.layout.root, clientv3.WithPrefix(),
		clientv3.WithRev(f.revision+1), clientv3.WithProgressNotify())
	e.setAsking(ctx)
	defer e.setAsking(nil)
	idle := e.clock.NewTicker(e.progress)
	defer idle.Stop()
	for {
		select {
		case answer, ok := <-answers:
			if !ok {
				return &lostError{errors.New("etcd closed the watch")}
			}
			if err := watchError(answer); err != nil {
				return err
			}
			if err := f.handle(ctx, answer); err != nil {
				return err
			}
		case <-idle.C():
			e.ask()
		case <-e.setBack:
			return store.ErrReplaced
		}
	}
}

func watchError(answer clientv3.WatchResponse) error {
	err := answer.Err()
	switch {
	case err == nil:
		return nil
	case answer.CompactRevision > 0 || errors.Is(err, rpctypes.ErrCompacted):
		return store.ErrCompacted
	}
	return &lostError{err}
}

// change is what happened to a key at a revision. A guessed one is a deletion
// that is known to have happened, not when.
type change struct {
	store.Op
	revision int64
	guessed  bool
}

// compareChanges orders by revision, the guessed ones first: they share a
// transaction with nothing that really happened at theirs.
func compareChanges(a, b change) int {
	switch {
	case a.revision != b.revision:
		return cmp.Compare(a.revision, b.revision)
	case a.guessed == b.guessed:
		return 0
	case a.guessed:
		return -1
	}
	return 1
}

// handle hands over the events of an answer, or how far the watch has come.
func (f *follower) handle(ctx context.Context, answer clientv3.WatchResponse) error {
	var changes []change
	for _, event := range answer.Events {
		if key, ok := f.engine.layout.key(event.Kv.Key); ok {
			op := store.Op{Key: key, Value: event.Kv.Value, Delete: event.Type == clientv3.EventTypeDelete}
			changes = append(changes, change{Op: op, revision: event.Kv.ModRevision})
		}
	}
	reached := f.revision
	if n := len(answer.Events); n > 0 {
		reached = answer.Events[n-1].Kv.ModRevision
	} else if answer.IsProgressNotify() {
		if answer.Header.Revision < reached { // of a member that lags, or of an etcd that was restored
			go func() { _, _ = f.engine.newest(ctx) }()
		}
		reached = max(reached, answer.Header.Revision)
	}
	return f.handOver(ctx, changes, reached)
}

// handOver publishes changes, which are in the order of their revisions, and
// that nothing else happened up to a revision.
func (f *follower) handOver(ctx context.Context, changes []change, reached int64) error {
	var txns []*store.Txn
	for len(changes) > 0 {
		n := 1
		for n < len(changes) && changes[n].revision == changes[0].revision && changes[n].guessed == changes[0].guessed {
			n++
		}
		txns = append(txns, f.engine.claim(ctx, changes[:n]))
		changes = changes[n:]
	}
	if n := len(txns); reached > f.revision && (n == 0 || txns[n-1].Revision < reached) {
		txns = append(txns, &store.Txn{Revision: reached})
	}
	if len(txns) == 0 {
		return nil
	}
	if err := f.publish(txns); err != nil {
		return err
	}
	f.revision = reached
	f.engine.handedOver(txns, reached)
	return nil
}

// claim returns the own transaction that made the changes of one revision, or
// one that stands for somebody else's.
func (e *Engine) claim(ctx context.Context, changes []change) *store.Txn {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.flights[changes[0].Key]; f != nil && !changes[0].guessed {
		e.mu.Unlock()
		select {
		case <-f.answered:
		case <-ctx.Done():
		}
		e.mu.Lock()
		if e.flights[changes[0].Key] == f && ctx.Err() == nil && f.txn.Revision == changes[0].revision {
			f.claimed = true
			return f.txn
		}
	}
	t := &store.Txn{Revision: changes[0].revision, Ops: make([]store.Op, len(changes))}
	for i, c := range changes {
		t.Ops[i] = c.Op
	}
	return t
}

// handedOver notes what was published and wakes those that wait for it.
func (e *Engine) handedOver(txns []*store.Txn, reached int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range txns {
		for _, op := range t.Ops {
			if op.Delete {
				delete(e.known, op.Key)
			} else {
				e.known[op.Key] = t.Revision
			}
		}
	}
	e.revision = reached
	close(e.moved)
	e.moved = make(chan struct{})
}

// catchUp hands over the difference between what is known and what etcd holds.
// Updates in between are gone, and a deletion shows at the newest revision it
// can have had.
func (f *follower) catchUp(ctx context.Context) error {
	e := f.engine
	e.mu.Lock()
	gone := make(map[store.Key]int64, len(e.known))
	for key, revision := range e.known {
		gone[key] = revision
	}
	e.mu.Unlock()
	var changes []change
	restored := false
	reached, err := e.list(ctx, e.layout.root, 0, func(records []listed) {
		for _, r := range records {
			was, ok := gone[r.Key]
			delete(gone, r.Key)
			restored = restored || r.Revision < was || !ok && r.Revision <= f.revision
			if ok && r.created > was {
				changes = append(changes, change{store.Op{Key: r.Key, Delete: true}, r.created - 1, true})
			}
			if r.Revision > was {
				changes = append(changes, change{store.Op{Key: r.Key, Value: r.Value}, r.Revision, false})
			}
		}
	})
	if err != nil {
		return &lostError{err}
	}
	if restored || reached < f.revision {
		return store.ErrReplaced
	}
	for key := range gone {
		changes = append(changes, change{store.Op{Key: key, Delete: true}, reached, true})
	}
	slices.SortFunc(changes, compareChanges)
	slog.Warn("etcd was compacted beyond the watch; listed instead", "after", f.revision, "revision", reached, "changes", len(changes))
	return f.handOver(ctx, changes, reached)
}

func (e *Engine) setAsking(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asking = ctx
}

// ask has the watch say how far it has come.
func (e *Engine) ask() {
	e.mu.Lock()
	ctx := e.asking
	e.mu.Unlock()
	if ctx != nil {
		_ = e.client.RequestProgress(ctx) // a lost connection shows in the watch
	}
}

// waitFor returns when everything up to a revision was handed over.
func (e *Engine) waitFor(ctx context.Context, revision int64) error {
	for {
		e.mu.Lock()
		reached, moved, ended := e.revision, e.moved, e.ended
		e.mu.Unlock()
		switch {
		case reached >= revision:
			return nil
		case ended != nil:
			return ended
		}
		timer := e.clock.NewTimer(askAgain)
		select {
		case <-moved:
		case <-timer.C():
			e.ask()
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}
