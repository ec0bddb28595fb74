package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
)

// Pruning deletes replaced entries and deletions that are older than the history
// to keep. It looks at each entry once, when it becomes too old: the entry names
// what it replaced. The floor moves in the same batch as the deletions.

const (
	pruneEvery = 4096 // entries between two runs
	pruneStep  = 4096 // entries per batch of deletions
)

var errStopped = errors.New("engine is closing")

func (e *Engine) pruneAfter(entries int64) {
	if e.unpruned += entries; e.unpruned < pruneEvery {
		return
	}
	e.unpruned = 0
	select {
	case e.prune <- struct{}{}:
	default:
	}
}

func (e *Engine) pruneLoop() {
	for {
		select {
		case <-e.prune:
		case <-e.stop:
			return
		}
		if err := e.failure.guard(e.Prune); err != nil && e.failure.get() == nil && !errors.Is(err, errStopped) {
			slog.Error("Prune store", "err", err)
		}
	}
}

// Prune deletes what is older than the history to keep. The engine calls it
// by itself once in a while.
func (e *Engine) Prune() error {
	e.pruning.Lock()
	defer e.pruning.Unlock()
	upTo := e.newest.Load()
	if e.history > 0 {
		var err error
		if upTo, err = e.RevisionAt(e.clock.Now().Add(-e.history)); err != nil {
			return err
		}
	}
	upTo = min(upTo, e.newest.Load()-1) // the last entry says what the newest revision is
	floor, err := readFloor(e.db)
	if err != nil {
		return err
	}
	for floor < upTo {
		select {
		case <-e.stop:
			return errStopped
		default:
		}
		if floor, err = e.pruneSome(floor, upTo); err != nil {
			return fmt.Errorf("above revision %d: %w", floor, err)
		}
	}
	return nil
}

// pruneSome handles the next entries above the floor and returns the new floor.
// Losing its batch in a crash loses nothing, so it is not synced.
func (e *Engine) pruneSome(floor, upTo int64) (int64, error) {
	upTo = min(upTo, floor+pruneStep)
	it, err := e.db.NewIter(entryBounds(floor, upTo))
	if err != nil {
		return floor, err
	}
	defer it.Close()
	b := e.db.NewBatch()
	defer b.Close()
	err = scanEntries(context.Background(), it, func(_ int64, key []byte, en entry) error {
		if en.prev != 0 {
			if err := b.Delete(append(revisionKey(en.prev), key...), nil); err != nil {
				return err
			}
		}
		if en.deleted {
			return b.Delete(it.Key(), nil)
		}
		return nil
	})
	if err != nil {
		return floor, err
	}
	if err := b.Set(floorKey, binary.BigEndian.AppendUint64(nil, uint64(upTo)), nil); err != nil {
		return floor, err
	}
	return upTo, e.db.Apply(b, pebble.NoSync)
}
