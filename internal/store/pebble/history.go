package pebble

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"proa/internal/store"
)

var _ store.Historian = (*Engine)(nil)

// History reads the log backwards, down to the floor: what an entry above it
// replaced is still there.
func (e *Engine) History(upTo int64, visit func(store.Change) bool) (after int64, err error) {
	sn := e.db.NewSnapshot()
	defer sn.Close()
	floor, err := readFloor(sn)
	if err != nil {
		return 0, err
	}
	if floor >= upTo {
		return upTo, nil
	}
	it, err := sn.NewIter(entryBounds(floor, upTo))
	if err != nil {
		return 0, err
	}
	defer it.Close()
	var keys keyDecoder
	for ok := it.Last(); ok; ok = it.Prev() {
		c, err := readChange(&keys, it)
		if err != nil {
			return 0, err
		}
		if !visit(c) {
			return c.Revision, nil
		}
	}
	return floor, it.Error()
}

func readChange(keys *keyDecoder, it *pebble.Iterator) (store.Change, error) {
	revision, key, err := splitEntryKey(it.Key())
	if err != nil {
		return store.Change{}, err
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return store.Change{}, err
	}
	en, err := decodeEntry(value)
	if err != nil {
		return store.Change{}, fmt.Errorf("revision %d: %w", revision, err)
	}
	k, err := keys.decode(key)
	if err != nil {
		return store.Change{}, fmt.Errorf("key at revision %d: %w", revision, err)
	}
	return store.Change{Op: store.Op{Key: k, Prev: en.prev, Value: en.value, Delete: en.deleted}, Revision: revision}, nil
}

// ValueAt reads one entry.
func (e *Engine) ValueAt(key store.Key, revision int64) ([]byte, error) {
	value, closer, err := e.db.Get(appendEntryKey(nil, revision, key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, store.ErrCompacted
	}
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	en, err := decodeEntry(value)
	if err != nil {
		return nil, fmt.Errorf("revision %d: %w", revision, err)
	}
	return slices.Clone(en.value), nil
}
