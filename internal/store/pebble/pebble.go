// Package pebble is the store engine that keeps everything in a directory of
// this machine. A batch is one append to a log and one sync; an acknowledged
// transaction survives a crash of the machine, and a transaction is there whole
// or not at all. The layout is described at the format constant.
package pebble

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"k8s.io/utils/clock"

	"proa/internal/store"
)

// Config says where an engine keeps its data.
type Config struct {
	Dir string // made if missing

	// History is how long replaced and deleted objects stay on disk, so that
	// LoadAt can show the state at an earlier revision. 0 means 5 minutes; less
	// than 0 means not at all.
	History time.Duration

	// Reserve is the free disk space in bytes below which transactions that
	// write objects are refused with ErrNoSpace; deletions go on. 0 means 64 MiB.
	Reserve uint64

	FS    vfs.FS             // nil: the machine's
	Clock clock.PassiveClock // nil: the machine's
}

// Engine is a store.Engine on a directory that no other process has open.
type Engine struct {
	dir     string
	fs      vfs.FS
	clock   clock.PassiveClock
	history time.Duration
	reserve uint64
	db      *pebble.DB
	lock    *pebble.Lock
	failure failure

	// Used by Commit alone.
	last   int64 // revision
	millis int64 // time of the last batch
	key    []byte

	newest   atomic.Int64 // last durable revision, for everyone
	unpruned int64        // entries since pruning was last asked for; Commit's
	prune    chan struct{}
	stop     chan struct{}
	pruner   sync.WaitGroup
	pruning  sync.Mutex // held by Prune
}

var _ store.Engine = (*Engine)(nil)

// Open opens or makes the store in a directory.
func Open(c Config) (*Engine, error) {
	e := &Engine{
		dir:     c.Dir,
		fs:      c.FS,
		clock:   c.Clock,
		history: cmp.Or(c.History, 5*time.Minute),
		reserve: cmp.Or(c.Reserve, 64<<20),
		prune:   make(chan struct{}, 1),
		stop:    make(chan struct{}),
	}
	if e.fs == nil {
		e.fs = vfs.Default
	}
	if e.clock == nil {
		e.clock = clock.RealClock{}
	}
	if err := e.open(); err != nil {
		return nil, fmt.Errorf("open store %s: %w", c.Dir, err)
	}
	e.pruner.Go(e.pruneLoop)
	return e, nil
}

func (e *Engine) open() error {
	if err := e.makeDir(); err != nil {
		return err
	}
	lock, err := pebble.LockDirectory(e.dir, e.fs)
	if err != nil {
		return fmt.Errorf("in use by another process: %w", err)
	}
	e.lock = lock
	e.db, err = pebble.Open(e.dir, e.options())
	if err != nil {
		lock.Close()
		return err
	}
	err = e.checkFormat()
	if err == nil {
		err = e.findLast()
	}
	if err != nil {
		return errors.Join(err, e.db.Close(), lock.Close())
	}
	return nil
}

// makeDir makes the directory, and its entry in the one above durable.
func (e *Engine) makeDir() error {
	if err := e.fs.MkdirAll(e.dir, 0o700); err != nil {
		return err
	}
	parent, err := e.fs.OpenDir(cmp.Or(e.fs.PathDir(e.dir), "."))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

// options keeps memory low: the store reads nothing but at start and when it
// prunes, so caches only need to serve those.
func (e *Engine) options() *pebble.Options {
	o := &pebble.Options{
		FS:                          e.fs,
		Lock:                        e.lock,
		Logger:                      logger{&e.failure},
		CacheSize:                   2 << 20,
		MemTableSize:                4 << 20,
		MemTableStopWritesThreshold: 4,
		L0StopWritesThreshold:       24,
		MaxOpenFiles:                256,
		FormatMajorVersion:          pebble.FormatTableFormatV6,
	}
	o.CompactionConcurrencyRange = func() (int, int) { return 1, max(1, runtime.GOMAXPROCS(0)/2) }
	return o
}

// checkFormat marks a new store and refuses one that a newer program made.
func (e *Engine) checkFormat() error {
	value, closer, err := e.db.Get(formatKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return e.db.Set(formatKey, strconv.AppendInt(nil, format, 10), pebble.Sync)
	}
	if err != nil {
		return err
	}
	defer closer.Close()
	found, err := strconv.Atoi(string(value))
	if err != nil {
		return fmt.Errorf("format %q is not a number: not a store of this program", value)
	}
	if found > format {
		return fmt.Errorf("made by a newer version of this program: its format is %d, this version reads up to %d", found, format)
	}
	return nil
}

// findLast reads the newest revision.
func (e *Engine) findLast() error {
	it, err := e.db.NewIter(entryBounds(0, maxRevision))
	if err != nil {
		return err
	}
	defer it.Close()
	if !it.Last() {
		return it.Error()
	}
	revision, _, err := splitEntryKey(it.Key())
	if err != nil {
		return err
	}
	en, err := decodeEntry(it.Value())
	if err != nil {
		return fmt.Errorf("revision %d: %w", revision, err)
	}
	e.last, e.millis = revision, en.millis
	e.newest.Store(revision)
	return nil
}

// Commit appends a batch and syncs it.
func (e *Engine) Commit(batch []*store.Txn) error {
	if err := e.failure.get(); err != nil {
		return err
	}
	e.refuseWithoutSpace(batch)
	b := e.db.NewBatchWithSize(batchSize(batch))
	defer b.Close()
	e.millis = max(e.millis, e.clock.Now().UnixMilli())
	last := e.last
	for _, t := range batch {
		if t.Err != nil {
			continue
		}
		last++
		t.Revision = last
		for _, op := range t.Ops {
			if err := e.append(b, last, op); err != nil {
				return err
			}
		}
	}
	if b.Empty() {
		return nil
	}
	if err := e.failure.guard(func() error { return e.db.Apply(b, pebble.Sync) }); err != nil {
		return err
	}
	e.last = last
	e.newest.Store(last)
	e.pruneAfter(int64(b.Count()))
	return nil
}

// append encodes a change straight into the batch.
func (e *Engine) append(b *pebble.Batch, revision int64, op store.Op) error {
	var head [maxEntryHead]byte
	h := appendEntryHead(head[:0], entry{deleted: op.Delete, millis: e.millis, prev: op.Prev})
	e.key = appendEntryKey(e.key[:0], revision, op.Key)
	d := b.SetDeferred(len(e.key), len(h)+len(op.Value))
	copy(d.Key, e.key)
	copy(d.Value[copy(d.Value, h):], op.Value)
	return d.Finish()
}

func batchSize(batch []*store.Txn) int {
	size := 64
	for _, t := range batch {
		for _, op := range t.Ops {
			size += len(op.Value) + len(op.Key.Name) + len(op.Key.Namespace) + 96
		}
	}
	return size
}

// refuseWithoutSpace refuses what would fill the disk. A log that cannot be
// extended would end all writing; refused in time, deletions can still make room.
func (e *Engine) refuseWithoutSpace(batch []*store.Txn) {
	usage, err := e.fs.GetDiskUsage(e.dir)
	if err != nil || usage.AvailBytes >= e.reserve {
		return
	}
	for _, t := range batch {
		for _, op := range t.Ops {
			if !op.Delete {
				t.Err = fmt.Errorf("%w: %d MiB left in %s, %d MiB are kept free",
					store.ErrNoSpace, usage.AvailBytes>>20, e.dir, e.reserve>>20)
				break
			}
		}
	}
}

// Close ends pruning and releases the directory. After a failure the database
// is left as it is, since it may never answer again.
func (e *Engine) Close() error {
	close(e.stop)
	e.pruner.Wait()
	if e.failure.get() != nil {
		return e.lock.Close()
	}
	return errors.Join(e.failure.guard(e.db.Close), e.lock.Close())
}

// failure remembers the first fatal error of the database, after which the
// engine refuses everything: what is on the disk is known only after a restart.
type failure struct{ err atomic.Pointer[error] }

func (f *failure) get() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *failure) set(err error) {
	err = fmt.Errorf("store is read-only until restarted: %w", err)
	if f.err.CompareAndSwap(nil, &err) {
		slog.Error("Store cannot write to its disk", "err", err)
	}
}

// guard runs fn in a goroutine of its own, which the database may end by a
// panic or through its logger's Fatalf, and turns both into the failure.
func (f *failure) guard(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("write was aborted")
		defer func() {
			if r := recover(); r != nil {
				f.set(fmt.Errorf("%v", r))
			}
			if failed := f.get(); failed != nil {
				err = failed
			}
			done <- err
		}()
		err = fn()
	}()
	return <-done
}

// logger passes on what an operator should see of the database's messages.
type logger struct{ failure *failure }

func (logger) Infof(string, ...any) {}

func (logger) Errorf(format string, args ...any) {
	slog.Error("Store database", "err", fmt.Sprintf(format, args...))
}

// Fatalf must not return. It ends the goroutine instead of the process.
func (l logger) Fatalf(format string, args ...any) {
	l.failure.set(fmt.Errorf(format, args...))
	runtime.Goexit()
}

var _ pebble.Logger = logger{}
