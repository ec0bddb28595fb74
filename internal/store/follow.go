package store

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"proa/internal/store/sharing"
)

// follow publishes what an engine with other writers hands over, until ctx ends.
// When the engine gives up, the store stops taking transactions: what it shows
// would fall behind what is true.
func (s *Store) follow(ctx context.Context, f Follower, after int64) {
	err := f.Follow(ctx, after, s.publishFollowed)
	for errors.Is(err, ErrReplaced) {
		slog.Warn("The store begins anew", "err", err)
		if after, err = s.restart(ctx); err == nil {
			err = f.Follow(ctx, after, s.publishFollowed)
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("Store lost its engine", "err", err)
	}
	s.queue.close()
}

// restartAgain is how long a server that cannot be read is left alone.
const restartAgain = time.Second

// restart takes what the engine holds now for the whole state, and returns its
// revision. What led to it is not known: all watches end with ErrCompacted.
func (s *Store) restart(ctx context.Context) (int64, error) {
	d := newDraft(s.indexes)
	for err := s.load(ctx, d, 0); err != nil; err = s.load(ctx, d, 0) {
		slog.Error("Read the whole store again", "err", err)
		select {
		case <-time.After(restartAgain):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	s.publishing.Lock()
	defer s.publishing.Unlock()
	s.draft = d
	s.history.restart(d.freeze(nil))
	select {
	case s.awake <- struct{}{}:
	default:
	}
	return d.revision, nil
}

// publishFollowed makes a batch of an engine with other writers visible.
func (s *Store) publishFollowed(batch []*Txn) error {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	var events []Event
	for _, t := range batch {
		for _, w := range s.writesOf(t) {
			events = s.apply(events, w.value, t.Revision)
		}
		s.draft.revision = t.Revision
	}
	s.publish(events)
	return nil
}

// writesOf returns the changes of an own transaction, or decodes a foreign one.
func (s *Store) writesOf(t *Txn) []keyedEntry[write] {
	if p, ok := s.inflight[t]; ok {
		return p.tx.writes.entries
	}
	writes := make([]keyedEntry[write], 0, len(t.Ops))
	for _, op := range t.Ops {
		w := write{kind: Updated, prev: s.draft.get(op.Key)}
		switch {
		case op.Delete && w.prev == nil:
			if w.unreadable = s.draft.unreadable[op.Key]; w.unreadable == nil {
				continue
			}
			w.kind, w.item = Deleted, &Item{Key: op.Key}
		case op.Delete:
			w.kind = Deleted
			w.item = s.deletion(w.prev, t.Revision)
		default:
			item, err := s.decode(op.Key, t.Revision, op.Value)
			if err != nil {
				w.item, w.unreadable = &Item{Key: op.Key}, s.unreadable(op.Key, t.Revision, op.Value, err)
				break
			}
			w.item = item
			if w.prev == nil {
				w.kind = Created
			} else {
				sharing.Parts(item.Object, w.prev.Object)
			}
		}
		writes = append(writes, keyedEntry[write]{op.Key, w})
	}
	return writes
}

// expect tells publishFollowed which transactions are the store's own.
func (s *Store) expect(batch []*pending) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	s.inflight = make(map[*Txn]*pending, len(batch))
	for _, p := range batch {
		s.inflight[&p.txn] = p
	}
}

// deletion is what the event of a deletion shows of an item that its transaction says no more about.
func (s *Store) deletion(prev *Item, revision int64) *Item {
	last := copyMeta(prev.Object)
	last.SetResourceVersion(strconv.FormatInt(revision, 10))
	return s.newItem(prev.Key, revision, last, 0)
}
