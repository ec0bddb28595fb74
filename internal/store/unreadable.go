package store

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Unreadable is an object that the engine holds but that cannot be decrypted or
// decoded (KEP-3926). It is an error: what reading, listing or changing the object
// fails with. It stays in its place, so that nothing is created there, until
// DeleteUnreadable removes it or Reread finds that it can be read after all.
//
// No event tells of an object that becomes unreadable or goes: watches of its
// resource end with ErrCompacted, and their clients list again.
type Unreadable struct {
	Key      Key
	Revision int64
	Place    string // where upstream keeps it

	value []byte
	err   error
}

// Error is in upstream's words.
func (u *Unreadable) Error() string {
	return fmt.Sprintf("StorageError: corrupt object, Code: 7, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %v", u.Place, u.err)
}

func (u *Unreadable) Unwrap() error { return u.err }

func (s *Store) unreadable(key Key, revision int64, value []byte, err error) *Unreadable {
	return &Unreadable{Key: key, Revision: revision, Place: s.place(key), value: bytes.Clone(value), err: err}
}

// Unreadable returns what cannot be read of a resource in one namespace, or in all
// of them if namespace is empty, strictly after a key, in key order.
func (sn *Snapshot) Unreadable(gr schema.GroupResource, namespace string, after Key) []*Unreadable {
	var found []*Unreadable
	for key, u := range sn.state.unreadable {
		if key.Resource == gr && (namespace == "" || key.Namespace == namespace) && compareKeys(key, after) > 0 {
			found = append(found, u)
		}
	}
	slices.SortFunc(found, func(a, b *Unreadable) int { return compareKeys(a.Key, b.Key) })
	return found
}

// Reread tries again what could not be read of a resource: keys may have come
// back. It reports whether something can be read now.
func (s *Store) Reread(gr schema.GroupResource) bool {
	mended := map[*Unreadable]*Item{}
	for _, u := range s.Snapshot().Unreadable(gr, "", Key{}) {
		if item, err := s.decode(u.Key, u.Revision, u.value); err == nil {
			mended[u] = item
		}
	}
	if len(mended) == 0 {
		return false
	}
	s.publishing.Lock()
	defer s.publishing.Unlock()
	for u, item := range mended {
		if s.draft.unreadable[u.Key] == u {
			s.draft.set(item)
		}
	}
	s.publish(nil)
	return true
}

// DeleteUnreadable removes an object that cannot be read; nothing takes its place
// in the same transaction. ErrNotFound when there is none, ErrReadable when it can
// be read.
func (tx *Tx) DeleteUnreadable(key Key) error {
	switch u := tx.unreadable(key); {
	case tx.read(key) != nil:
		return fmt.Errorf("delete %s: %w", key, ErrReadable)
	case u == nil:
		return fmt.Errorf("delete %s: %w", key, ErrNotFound)
	default:
		tx.write(write{kind: Deleted, item: &Item{Key: key}, unreadable: u})
		return nil
	}
}

// unreadable returns what the transaction cannot read at key, nil when it can.
func (tx *Tx) unreadable(key Key) *Unreadable { return tx.snapshot.unreadable[key] }

// missing is why a transaction sees nothing at key.
func (tx *Tx) missing(key Key) error {
	if u := tx.unreadable(key); u != nil {
		return u
	}
	return ErrNotFound
}

// lose notes that nothing at a key can be read from now on.
func (d *draft) lose(u *Unreadable) {
	d.remove(u.Key)
	d.unreadable = maps.Clone(d.unreadable)
	if d.unreadable == nil {
		d.unreadable = map[Key]*Unreadable{}
	}
	d.unreadable[u.Key] = u
	d.broken = append(d.broken, u.Key.Resource)
}

// forget takes away what could not be read at a key.
func (d *draft) forget(key Key) {
	d.unreadable = maps.Clone(d.unreadable)
	delete(d.unreadable, key)
	d.broken = append(d.broken, key.Resource)
}

// breakOffLocked ends the history of a resource: whoever watches it has to list
// again. One sequence number is left out, so that even who has seen every event
// is behind.
func (h *history) breakOffLocked(gr schema.GroupResource) {
	t := h.topicLocked(gr)
	h.events -= t.len()
	h.bytes -= t.drop(t.len())
	for _, s := range t.series {
		s.seqs, s.dropped, s.start = nil, t.end(), t.end()+1
		if s.waiting.CompareAndSwap(true, false) {
			h.stale = append(h.stale, s.changed)
			s.changed = make(chan struct{})
		}
	}
	t.base++
	t.floor = max(t.floor, h.revision())
	t.dirty, h.whole = true, false
	h.forgetSnapshotsLocked()
}

// restart begins with a state that no events lead to. Its revision may be lower than
// those of the past.
func (h *history) restart(newest *state) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.newest.Store(newest)
	h.floor = newest.revision
	for gr, t := range h.topics {
		h.breakOffLocked(gr)
		t.floor = newest.revision
	}
	clear(h.rewound)
	h.rewound, h.whole = h.rewound[:0], false
}

// Place says where upstream keeps an object.
func (s *Store) Place(key Key) string { return s.place(key) }
