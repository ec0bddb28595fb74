package store

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// watchBatch bounds what one call of Next returns.
const watchBatch = 256

// Watch is a position in the events of one resource, in one namespace or all.
// It has no buffer: events wait in the store's history, and a watch that falls
// behind it gets ErrCompacted. Next, Revision and Stop may be called from
// different goroutines, Next from one at a time.
type Watch struct {
	store     *Store
	topic     *topic
	series    *series // of the value that is watched for; nil: every event
	key       seriesKey
	namespace string
	stopped   chan struct{}

	mu        sync.Mutex // guards what follows; taken after the history's
	next      int64      // sequence number of the next event to return
	revision  int64      // every event up to it was returned
	isStopped bool

	batch []Event // Next's own
}

// Watch starts after a revision; from <= 0 means from now. ErrCompacted when the
// events after it are no longer held, ErrFuture when it has not been reached.
func (s *Store) Watch(gr schema.GroupResource, namespace string, from int64) (*Watch, error) {
	w, err := s.watch(gr, namespace, from, seriesKey{index: -1})
	if errors.Is(err, ErrCompacted) && s.refill(from) {
		return s.watch(gr, namespace, from, seriesKey{index: -1})
	}
	return w, err
}

// WatchField is Watch for the items whose indexed field has a value, had it
// before an event, or both. Without such an index it is Watch.
func (s *Store) WatchField(gr schema.GroupResource, field, value, namespace string, from int64) (*Watch, error) {
	key := seriesKey{s.indexes.find(gr, field), value}
	w, err := s.watch(gr, namespace, from, key)
	if errors.Is(err, ErrCompacted) && s.refill(from) {
		return s.watch(gr, namespace, from, key)
	}
	return w, err
}

func (s *Store) watch(gr schema.GroupResource, namespace string, from int64, key seriesKey) (*Watch, error) {
	h := s.history
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topicLocked(gr)
	if from <= 0 {
		from = h.revision()
	}
	if from > h.revision() {
		return nil, fmt.Errorf("watch %s from %d: %w", gr, from, ErrFuture)
	}
	if from < t.floor {
		return nil, fmt.Errorf("watch %s from %d: %w", gr, from, ErrCompacted)
	}
	w := &Watch{
		store:     s,
		topic:     t,
		namespace: namespace,
		stopped:   make(chan struct{}),
		next:      t.after(from),
		revision:  from,
	}
	if key.index >= 0 {
		w.series, w.key = t.join(key, w.next), key
	}
	return w, nil
}

// Next blocks until there are events and returns those that wait, in order, up
// to a few hundred. It fails with ErrCompacted when this watch fell off the
// history, ErrClosed after Stop or Close, or the context's error. The slice is
// valid until the next call.
func (w *Watch) Next(ctx context.Context) ([]Event, error) {
	for {
		changed, err := w.read()
		if err != nil || len(w.batch) > 0 {
			return w.batch, err
		}
		if changed == nil {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.stopped:
			return nil, ErrClosed
		case <-w.store.closed:
			return nil, ErrClosed
		}
	}
}

// read fills the batch and moves on. The channel it returns is closed when there
// is more to look at; nil when there already is.
func (w *Watch) read() (<-chan struct{}, error) {
	clear(w.batch)
	w.batch = w.batch[:0]
	h := w.store.history
	h.mu.RLock()
	defer h.mu.RUnlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isStopped {
		return nil, ErrClosed
	}
	if w.series != nil {
		return w.readSeries()
	}
	if w.next < w.topic.base {
		return nil, ErrCompacted
	}
	for _, e := range w.topic.since(w.next) {
		if len(w.batch) == watchBatch {
			return nil, nil
		}
		w.next++
		if w.namespace == "" || e.Item.Key.Namespace == w.namespace {
			w.batch = append(w.batch, e)
		}
	}
	w.topic.waiting.Store(true)
	return w.topic.changed, nil
}

// readSeries is read for the events of a series. The locks are held.
func (w *Watch) readSeries() (<-chan struct{}, error) {
	s := w.series
	if w.next <= s.dropped {
		return nil, ErrCompacted
	}
	for _, seq := range s.seqs[s.from(w.next):] {
		if len(w.batch) == watchBatch {
			return nil, nil
		}
		w.next = seq + 1
		if e := w.topic.since(seq)[0]; w.namespace == "" || e.Item.Key.Namespace == w.namespace {
			w.batch = append(w.batch, e)
		}
	}
	w.next = w.topic.end()
	s.waiting.Store(true)
	return s.changed, nil
}

// Revision is how far this watch has come: every event up to it was returned by
// Next. It moves on while the resource is idle, which is what bookmarks are for.
func (w *Watch) Revision() int64 {
	h := w.store.history
	h.mu.RLock()
	defer h.mu.RUnlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	next, lost := w.next, w.next < w.topic.base
	if s := w.series; s != nil {
		next, lost = w.topic.end(), w.next <= s.dropped
		if i := s.from(w.next); i < len(s.seqs) {
			next = s.seqs[i]
		}
	}
	switch {
	case lost:
	case next == w.topic.end():
		w.revision = h.revision()
	default:
		w.revision = max(w.revision, w.topic.since(next)[0].Item.Revision-1)
	}
	return w.revision
}

// Stop ends the watch; Next then fails with ErrClosed.
func (w *Watch) Stop() {
	if w.series != nil {
		w.store.history.mu.Lock()
		defer w.store.history.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isStopped {
		w.isStopped = true
		close(w.stopped)
		if w.series != nil {
			w.topic.leave(w.key)
		}
	}
}
