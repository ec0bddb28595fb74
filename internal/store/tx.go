package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"proa/internal/store/sharing"
	"proa/internal/tracing"
)

// MaxTxnKeys is how many keys a transaction may read and write on any engine:
// etcd takes 128.
const MaxTxnKeys = 100

// Tx is a transaction being computed: it reads one snapshot and its own writes.
// It belongs to the goroutine that runs it and ends with the closure.
type Tx struct {
	store    *Store
	snapshot *state
	reads    keyed[*Item] // what the snapshot held, nil for nothing
	writes   keyed[write]

	sequenced bool     // the transaction has been handed to the sequencer
	committed []func() // called when it has been written
}

// keyed is a small map that keeps its order: most transactions touch one key.
type keyed[V any] struct {
	entries []keyedEntry[V]
	index   map[Key]int // of entries, once there are many
}

type keyedEntry[V any] struct {
	key   Key
	value V
}

// manyKeys is how many keys are found by looking at each.
const manyKeys = 8

// get returns the place of a key's value, nil when there is none.
func (k *keyed[V]) get(key Key) *V {
	if k.index != nil {
		if i, ok := k.index[key]; ok {
			return &k.entries[i].value
		}
		return nil
	}
	for i := range k.entries {
		if k.entries[i].key == key {
			return &k.entries[i].value
		}
	}
	return nil
}

// add appends a key that is not there yet.
func (k *keyed[V]) add(key Key, v V) {
	k.entries = append(k.entries, keyedEntry[V]{key, v})
	switch n := len(k.entries); {
	case k.index != nil:
		k.index[key] = n - 1
	case n > manyKeys:
		k.index = make(map[Key]int, 2*n)
		for i := range k.entries {
			k.index[k.entries[i].key] = i
		}
	}
}

// write is one changed key.
type write struct {
	kind  EventType
	item  *Item // after the change; for a deletion what its event shows
	prev  *Item
	value []byte

	unreadable *Unreadable // what is there now, or for a deletion was there
}

// Update runs fn as a transaction and commits what it wrote atomically and
// durably. Every key that fn read must still be as fn saw it when the
// transaction is sequenced, else fn runs again on newer state until ctx ends.
// An error from fn is returned as it is and nothing is written. Update returns
// the commit's revision; for a transaction that changed nothing, the revision
// that it read.
//
// When ctx ends before an engine elsewhere has answered, it is in doubt whether the
// transaction is written, and the error is that of ctx.
//
// With other writers, what fn saw may be out of date. A commit finds that out by
// itself; an error from fn, or that there is nothing to write, stands only when
// it also holds for the state after a Sync.
func (s *Store) Update(ctx context.Context, fn func(tx *Tx) error) (int64, error) {
	for current := !s.follows; ; {
		tx := &Tx{store: s, snapshot: s.history.newest.Load()}
		revision, err := s.attempt(ctx, tx, fn)
		if errors.Is(err, errRerun) {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			continue
		}
		if current || tx.sequenced {
			return revision, err
		}
		if err := s.Sync(ctx); err != nil {
			return 0, err
		}
		if current = true; s.Revision() == tx.snapshot.revision {
			return revision, err
		}
	}
}

// errRerun is that a transaction was computed from state that has changed.
var errRerun = errors.New("run the transaction again")

// attempt runs a transaction once.
func (s *Store) attempt(ctx context.Context, tx *Tx, fn func(tx *Tx) error) (int64, error) {
	if err := fn(tx); err != nil {
		return 0, err
	}
	revision, err := s.commit(ctx, tx)
	if errors.Is(err, ErrConflict) {
		return 0, errRerun
	}
	return revision, err
}

// commit encodes the transaction's writes, hands it to the sequencer and waits
// for the outcome.
func (s *Store) commit(ctx context.Context, tx *Tx) (int64, error) {
	if err := tx.encode(); err != nil {
		return 0, err
	}
	if len(tx.writes.entries) == 0 {
		return tx.snapshot.revision, nil
	}
	tx.sequenced = true
	p := newPending(tx)
	p.txn.Span = tracing.Of(ctx)
	if err := s.queue.add(p); err != nil {
		return 0, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		if p.withdraw() {
			return 0, ctx.Err()
		}
		if s.follows { // the engine's server may take its time, and may have written it
			go tx.settle(p)
			return 0, fmt.Errorf("whether it is written is in doubt: %w", ctx.Err())
		}
		// already on its way to the disk
	}
	return tx.settle(p)
}

// settle waits for the outcome of a transaction that was handed over.
func (tx *Tx) settle(p *pending) (int64, error) {
	<-p.done
	if p.txn.Err == nil {
		for _, fn := range tx.committed {
			fn()
		}
	}
	return p.txn.Revision, p.txn.Err
}

// Committed lets fn be called once this run of the transaction has been written, and
// not when it runs again or fails.
func (tx *Tx) Committed(fn func()) { tx.committed = append(tx.committed, fn) }

// Snapshot is the state that the transaction reads. What is read through it is
// not checked when the transaction commits.
func (tx *Tx) Snapshot() *Snapshot { return &Snapshot{tx.snapshot} }

// Get returns the item at key, the transaction's own write included, ErrNotFound,
// or an *Unreadable.
func (tx *Tx) Get(key Key) (*Item, error) {
	item := tx.read(key)
	if item == nil {
		return nil, tx.missing(key)
	}
	return item, nil
}

// Create adds an object, which belongs to the transaction from then on. The item
// gets its revision, and the object its resourceVersion, when the transaction
// commits. ErrExists when there is one.
func (tx *Tx) Create(key Key, obj Object) (*Item, error) {
	if tx.read(key) != nil || tx.unreadable(key) != nil {
		return nil, fmt.Errorf("create %s: %w", key, ErrExists)
	}
	return tx.put(key, obj), nil
}

// Put replaces an object, as Create adds one. ErrNotFound when there is none.
// An object whose encoding equals that of the current one is not written: the
// item then shows the current object and revision.
func (tx *Tx) Put(key Key, obj Object) (*Item, error) {
	if tx.read(key) == nil {
		return nil, fmt.Errorf("put %s: %w", key, tx.missing(key))
	}
	return tx.put(key, obj), nil
}

// Delete removes an object. The event's item holds a copy of it with the
// deletion's resourceVersion. ErrNotFound when there is none.
func (tx *Tx) Delete(key Key) error {
	item := tx.read(key)
	if item == nil {
		return fmt.Errorf("delete %s: %w", key, tx.missing(key))
	}
	_, err := tx.DeleteAs(key, copyMeta(item.Object))
	return err
}

// DeleteAs removes an object and says what its event shows as the last state;
// last belongs to the transaction from then on.
func (tx *Tx) DeleteAs(key Key, last Object) (*Item, error) {
	if tx.read(key) == nil {
		return nil, fmt.Errorf("delete %s: %w", key, tx.missing(key))
	}
	item := tx.store.newItem(key, 0, last, 0)
	tx.write(write{kind: Deleted, item: item, prev: *tx.reads.get(key)})
	return item, nil
}

// read returns what the transaction sees at key and notes that it looked.
func (tx *Tx) read(key Key) *Item {
	if w := tx.writes.get(key); w != nil {
		if w.kind != Deleted {
			return w.item
		}
		return nil
	}
	if item := tx.reads.get(key); item != nil {
		return *item
	}
	item := tx.snapshot.get(key)
	tx.reads.add(key, item)
	return item
}

func (tx *Tx) put(key Key, obj Object) *Item {
	prev := *tx.reads.get(key)
	kind := Updated
	if prev == nil {
		kind = Created
	}
	if prev != nil && prev.Object == obj {
		obj = copyMeta(obj) // a shared object cannot get a new resourceVersion
	}
	obj.SetResourceVersion("")
	item := tx.store.newItem(key, 0, obj, 0)
	tx.write(write{kind: kind, item: item, prev: prev})
	return item
}

// write records the last word on a key.
func (tx *Tx) write(w write) {
	if earlier := tx.writes.get(w.item.Key); earlier != nil {
		*earlier = w
		return
	}
	tx.writes.add(w.item.Key, w)
}

// encode fills in the values and drops the writes that change nothing.
func (tx *Tx) encode() error {
	kept := tx.writes.entries[:0]
	for _, e := range tx.writes.entries {
		w := &e.value
		if w.kind == Deleted {
			if w.prev != nil || w.unreadable != nil { // else created and deleted in one transaction
				kept = append(kept, e)
			}
			continue
		}
		value, err := tx.store.codec.Encode(w.item.Key, w.item.Object)
		if err != nil {
			return fmt.Errorf("encode %s: %w", w.item.Key, err)
		}
		w.item.sum = maphash.Bytes(sums, value)
		same, err := tx.unchanged(w, value)
		if err != nil {
			return err
		}
		if same && tx.store.sealedNow(w.prev) {
			w.item.Object, w.item.Revision = w.prev.Object, w.prev.Revision
			w.item.size, w.item.seal = w.prev.size, w.prev.seal
			continue
		}
		w.item.size = int32(len(value))
		if w.value, w.item.seal, err = tx.store.seal(w.item.Key, value); err != nil {
			return fmt.Errorf("encrypt %s: %w", w.item.Key, err)
		}
		tx.share(w)
		kept = append(kept, e)
	}
	tx.writes = keyed[write]{entries: kept} // it is not asked again
	return nil
}

var sums = maphash.MakeSeed()

// unchanged reports whether what a write replaces has the same encoding. The engine's
// values are not kept in memory, so one of equal length is encoded again, unless its
// sum tells that it is another.
func (tx *Tx) unchanged(w *write, value []byte) (bool, error) {
	item := w.prev
	if item == nil || int(item.size) != len(value) || item.sum != 0 && item.sum != w.item.sum {
		return false, nil
	}
	obj := copyMeta(item.Object)
	obj.SetResourceVersion("")
	old, err := tx.store.codec.Encode(item.Key, obj)
	if err != nil {
		return false, fmt.Errorf("encode %s: %w", item.Key, err)
	}
	return bytes.Equal(old, value), nil
}

// share gives a written object its parts in common with the version before it, or
// with the object before it in the order of keys: names of one template's objects
// begin alike.
func (tx *Tx) share(w *write) {
	sibling := w.prev
	if sibling == nil {
		sibling = before(tx.snapshot.tree(w.item.Key.Resource), w.item.Key)
	}
	if sibling != nil {
		sharing.Parts(w.item.Object, sibling.Object)
	}
}
