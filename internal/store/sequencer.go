package store

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
)

// Bounds of one batch. A larger one would only make its transactions wait.
const (
	maxBatchTxns  = 1024
	maxBatchBytes = 8 << 20
)

// pending is a transaction in the queue. Its caller may withdraw it until the
// sequencer has claimed it.
type pending struct {
	txn     Txn
	tx      *Tx
	bytes   int
	claimed atomic.Bool
	done    chan struct{} // closed when txn's Revision or Err is final
}

func newPending(tx *Tx) *pending {
	p := &pending{tx: tx, done: make(chan struct{})}
	p.txn.Checks = make([]Check, len(tx.reads.entries))
	for i, r := range tx.reads.entries {
		p.txn.Checks[i].Key = r.key
		if r.value != nil {
			p.txn.Checks[i].Revision = r.value.Revision
		} else if u := tx.snapshot.unreadable[r.key]; u != nil {
			p.txn.Checks[i].Revision = u.Revision
		}
	}
	p.txn.Ops = make([]Op, 0, len(tx.writes.entries))
	for i := range tx.writes.entries {
		w := &tx.writes.entries[i].value
		op := Op{Key: w.item.Key, Value: w.value, Delete: w.kind == Deleted}
		if w.prev != nil {
			op.Prev = w.prev.Revision
		} else if w.unreadable != nil {
			op.Prev = w.unreadable.Revision
		}
		p.txn.Ops = append(p.txn.Ops, op)
		p.bytes += len(w.value)
	}
	return p
}

func (p *pending) withdraw() bool { return p.claimed.CompareAndSwap(false, true) }
func (p *pending) claim() bool    { return p.claimed.CompareAndSwap(false, true) }

func (p *pending) fail(err error) {
	p.txn.Err = err
	close(p.done)
}

// queue is the transactions that wait for the sequencer.
type queue struct {
	mu     sync.Mutex // guards the rest
	ready  *sync.Cond
	txns   []*pending
	closed bool
}

func (q *queue) init() { q.ready = sync.NewCond(&q.mu) }

func (q *queue) add(p *pending) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	q.txns = append(q.txns, p)
	q.ready.Signal()
	return nil
}

// take waits for transactions and returns a batch of those that were not
// withdrawn, nil once the queue is closed.
func (q *queue) take() []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.txns) == 0 && !q.closed {
		q.ready.Wait()
	}
	if q.closed {
		return nil
	}
	batch := make([]*pending, 0, min(len(q.txns), maxBatchTxns))
	bytes, n := 0, 0
	for n < len(q.txns) && len(batch) < maxBatchTxns && bytes < maxBatchBytes {
		if p := q.txns[n]; p.claim() {
			batch = append(batch, p)
			bytes += p.bytes
		}
		n++
	}
	rest := copy(q.txns, q.txns[n:])
	clear(q.txns[rest:])
	q.txns = q.txns[:rest]
	return batch
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, p := range q.txns {
		if p.claim() {
			p.fail(ErrClosed)
		}
	}
	q.txns = nil
	q.ready.Broadcast()
}

// sequence is the one goroutine that decides the order of transactions. While
// the engine syncs a batch, the next one gathers in the queue.
func (s *Store) sequence() {
	for batch := s.queue.take(); batch != nil; batch = s.queue.take() {
		valid := s.check(batch)
		if len(valid) == 0 {
			continue
		}
		txns := make([]*Txn, len(valid))
		for i, p := range valid {
			txns[i] = &p.txn
		}
		if s.follows {
			s.expect(valid)
		}
		if err := s.engine.Commit(txns); err != nil {
			err = fmt.Errorf("write to the store: %w", err)
			for _, p := range valid {
				p.fail(err)
			}
			continue
		}
		if !s.follows {
			s.publishOwn(valid)
		}
		for _, p := range valid {
			close(p.done)
		}
	}
}

// check returns the transactions whose reads still hold, none of which touches
// what an earlier one writes, and fails the others with ErrConflict.
func (s *Store) check(batch []*pending) []*pending {
	newest := s.history.newest.Load()
	written := map[Key]struct{}{}
	valid := batch[:0]
	for _, p := range batch {
		if !holds(p.tx, newest, written) {
			p.fail(ErrConflict)
			continue
		}
		if len(batch) > 1 {
			for i := range p.tx.writes.entries {
				written[p.tx.writes.entries[i].key] = struct{}{}
			}
		}
		valid = append(valid, p)
	}
	return valid
}

func holds(tx *Tx, newest *state, written map[Key]struct{}) bool {
	for _, r := range tx.reads.entries {
		if len(written) > 0 {
			if _, ok := written[r.key]; ok {
				return false
			}
		}
		if tx.snapshot != newest && (newest.get(r.key) != r.value || newest.unreadable[r.key] != tx.snapshot.unreadable[r.key]) {
			return false
		}
	}
	return true
}

// publishOwn makes committed transactions visible.
func (s *Store) publishOwn(batch []*pending) {
	var events []Event
	s.publishing.Lock()
	defer s.publishing.Unlock()
	for _, p := range batch {
		if p.txn.Err != nil {
			continue
		}
		for i := range p.tx.writes.entries {
			events = s.apply(events, p.tx.writes.entries[i].value, p.txn.Revision)
		}
		s.draft.revision = p.txn.Revision
	}
	s.publish(events)
}

// apply changes the draft and adds the event.
func (s *Store) apply(events []Event, w write, revision int64) []Event {
	if w.unreadable != nil {
		if w.kind == Deleted {
			s.draft.forget(w.item.Key)
		} else {
			s.draft.lose(w.unreadable)
		}
		return events
	}
	w.item.Revision = revision
	w.item.Object.SetResourceVersion(strconv.FormatInt(revision, 10))
	if w.kind == Deleted {
		s.draft.remove(w.item.Key)
	} else {
		s.draft.set(w.item)
	}
	return append(events, Event{Type: w.kind, Item: w.item, Prev: w.prev})
}

// publish shows the draft to everybody. The caller holds publishing.
func (s *Store) publish(events []Event) {
	broken := s.draft.broken
	s.draft.broken = nil
	s.history.publish(s.draft.freeze(s.history.newest.Load()), events, broken)
	select {
	case s.awake <- struct{}{}:
	default:
	}
}

// wake runs the wake-ups that publishing asks for.
func (s *Store) wake() {
	for {
		select {
		case <-s.awake:
			s.history.wake()
		case <-s.closed:
			return
		}
	}
}
