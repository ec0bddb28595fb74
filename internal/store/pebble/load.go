package pebble

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

	"proa/internal/store"
)

const maxRevision = math.MaxInt64

// entryBounds covers the entries above one revision and up to another.
func entryBounds(above, upTo int64) *pebble.IterOptions {
	o := &pebble.IterOptions{LowerBound: revisionKey(above + 1), UpperBound: []byte{entryPrefix + 1}}
	if upTo < maxRevision {
		o.UpperBound = revisionKey(upTo + 1)
	}
	return o
}

// Load visits the state at a revision, by default the newest. It reads the log
// up to there twice: the part above the floor to learn what was replaced, then
// all of it, in as many parts as there are processors.
func (e *Engine) Load(ctx context.Context, revision int64, visit func(store.Record) error) (int64, error) {
	newest := e.newest.Load() // before the snapshot: the snapshot holds it
	if revision == 0 {
		revision = newest
	}
	if revision > newest {
		return 0, store.ErrFuture
	}
	sn := e.db.NewSnapshot()
	defer sn.Close()
	floor, err := readFloor(sn)
	if err != nil {
		return 0, err
	}
	if revision < floor {
		return 0, store.ErrCompacted
	}
	l := &loader{snapshot: sn, visit: visit, replaced: map[replacedEntry]struct{}{}, seed: maphash.MakeSeed()}
	if err := l.findReplaced(ctx, floor, revision); err != nil {
		return 0, err
	}
	return revision, l.visitAll(ctx, revision)
}

func readFloor(r pebble.Reader) (int64, error) {
	value, closer, err := r.Get(floorKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer closer.Close()
	return decodeRevision(value)
}

// loader is one Load.
type loader struct {
	snapshot *pebble.Snapshot
	visit    func(store.Record) error
	seed     maphash.Seed
	replaced map[replacedEntry]struct{}
}

// replacedEntry names an entry by its revision and a hash of its key: a history of
// a million entries would not fit with their keys. Two keys of one
// transaction would have to share a hash of 64 bits to be mistaken.
type replacedEntry struct {
	revision int64
	key      uint64
}

func (l *loader) findReplaced(ctx context.Context, floor, revision int64) error {
	var mu sync.Mutex
	return l.inParts(ctx, floor, revision, func() entryFunc {
		return func(_ int64, key []byte, en entry) error {
			if en.prev != 0 {
				mu.Lock()
				l.replaced[replacedEntry{en.prev, maphash.Bytes(l.seed, key)}] = struct{}{}
				mu.Unlock()
			}
			return nil
		}
	})
}

func (l *loader) visitAll(ctx context.Context, revision int64) error {
	return l.inParts(ctx, 0, revision, func() entryFunc {
		var keys keyDecoder
		return func(revision int64, key []byte, en entry) error {
			return l.visitEntry(&keys, revision, key, en)
		}
	})
}

// entryFunc is called for entries. What it is given is valid during the call.
type entryFunc func(revision int64, key []byte, en entry) error

// inParts scans the entries above one revision and up to another with one
// function per processor, each taking a small part after the other.
func (l *loader) inParts(ctx context.Context, above, upTo int64, newFunc func() entryFunc) error {
	const partsEach = 16
	workers := runtime.GOMAXPROCS(0)
	size := (upTo-above)/int64(workers*partsEach) + 1
	var taken atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		fn := newFunc()
		g.Go(func() error {
			for {
				start := above + (taken.Add(1)-1)*size
				if start >= upTo {
					return nil
				}
				if err := l.scan(ctx, start, min(start+size, upTo), fn); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

func (l *loader) visitEntry(keys *keyDecoder, revision int64, key []byte, en entry) error {
	if en.deleted {
		return nil
	}
	if len(l.replaced) > 0 {
		if _, ok := l.replaced[replacedEntry{revision, maphash.Bytes(l.seed, key)}]; ok {
			return nil
		}
	}
	k, err := keys.decode(key)
	if err != nil {
		return fmt.Errorf("key at revision %d: %w", revision, err)
	}
	return l.visit(store.Record{Key: k, Revision: revision, Value: en.value})
}

// scan calls fn for the entries above one revision and up to another.
func (l *loader) scan(ctx context.Context, above, upTo int64, fn entryFunc) error {
	it, err := l.snapshot.NewIterWithContext(ctx, entryBounds(above, upTo))
	if err != nil {
		return err
	}
	defer it.Close()
	return scanEntries(ctx, it, fn)
}

func scanEntries(ctx context.Context, it *pebble.Iterator, fn entryFunc) error {
	for ok := it.First(); ok; ok = it.Next() {
		revision, key, err := splitEntryKey(it.Key())
		if err != nil {
			return err
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		en, err := decodeEntry(value)
		if err != nil {
			return fmt.Errorf("revision %d: %w", revision, err)
		}
		if err := fn(revision, key, en); err != nil {
			return err
		}
	}
	return errors.Join(it.Error(), ctx.Err())
}

// RevisionAt returns the revision of the state at a time: that of the last
// transaction committed then or before. 0 means that there was none.
func (e *Engine) RevisionAt(at time.Time) (int64, error) {
	it, err := e.db.NewIter(entryBounds(0, maxRevision))
	if err != nil {
		return 0, err
	}
	defer it.Close()
	return revisionAt(it, e.newest.Load(), at)
}

// revisionAt searches the log by halves. Times never decrease along it; where
// entries were pruned the next one that is left decides.
func revisionAt(it *pebble.Iterator, newest int64, at time.Time) (int64, error) {
	var failed error
	millis := at.UnixMilli()
	later := sort.Search(int(newest), func(i int) bool {
		if failed != nil || !it.SeekGE(revisionKey(int64(i)+1)) {
			return true
		}
		en, err := decodeEntry(it.Value())
		failed = err
		return err == nil && en.millis > millis
	})
	return int64(later), errors.Join(failed, it.Error())
}
