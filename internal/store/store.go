// Package store says what is true: a revisioned map of API objects with
// optimistic transactions, O(1) snapshots and watches that resume from a
// revision.
//
// The whole current state is in memory in copy-on-write trees, one per
// resource. One sequencer goroutine takes all waiting transactions as a batch,
// checks what each of them read, gives each a revision, hands the batch to the
// engine as one durable write (one sync for all of them) and publishes it: every
// reader, watcher and cache then sees the same pointer. An engine keeps the
// batches; nothing is acknowledged before it has.
//
// The package knows no HTTP, no versions and no admission.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
)

// Object is what the store keeps, always in the hub version of its resource.
// A committed object is shared and must not be changed.
type Object = apis.Object

// Key names one object. It is built from typed parts, never from a path that a
// client sent; Namespace is empty for cluster-scoped resources.
type Key struct {
	Resource  schema.GroupResource
	Namespace string
	Name      string
}

func (k Key) String() string {
	if k.Namespace == "" {
		return fmt.Sprintf("%s %s", k.Resource, k.Name)
	}
	return fmt.Sprintf("%s %s/%s", k.Resource, k.Namespace, k.Name)
}

// Error classes. The API server turns them into statuses in one place.
var (
	ErrNotFound  = errors.New("not found")
	ErrExists    = errors.New("already exists")
	ErrCompacted = errors.New("revision has been compacted")
	ErrFuture    = errors.New("revision is in the future")
	ErrClosed    = errors.New("store is closed")
	ErrConflict  = errors.New("changed since it was read")
	ErrNoSpace   = errors.New("no space left for the store")
	ErrReadable  = errors.New("the object can be read")

	// ErrBehind is that the store does not show yet what its engine, which has other
	// writers, has committed.
	ErrBehind = errors.New("the store lags behind its server")

	// ErrReplaced is that the engine's server has lost what it had acknowledged: it was
	// restored from a backup.
	ErrReplaced = errors.New("the store's server was set back to an earlier state")

	// ErrUnavailable is that an engine elsewhere cannot be reached or refuses.
	ErrUnavailable = errors.New("the store's server is not available")
)

// EventType says how a revision changed a key.
type EventType int

const (
	Created EventType = iota + 1
	Updated
	Deleted
)

// Event is one change of one key. Item is the state after it; for a deletion it
// is the last state with the deletion's revision as its resourceVersion. Prev is
// the state before it, nil for a creation.
type Event struct {
	Type EventType
	Item *Item
	Prev *Item
}

// Config says what a store is made of.
type Config struct {
	Engine Engine // closed by Close
	Codec  Codec
	Cipher Cipher // nil: values are kept as the codec writes them

	// Place says where upstream keeps an object, for errors about those that cannot
	// be read. Nil: the key's text.
	Place func(Key) string

	// Events and EventBytes bound the history that watches and SnapshotAt read:
	// the number of events, and the encoded size of the superseded and deleted
	// objects that only history keeps. 0 means 100 000 and 16 MiB.
	Events     int
	EventBytes int64

	// Indexes are the fields by which items are found without a scan.
	Indexes []Index

	// EncodingBytes bounds the encodings that items keep. 0 means 32 MiB.
	EncodingBytes int64
}

// Store is the revisioned map. Its methods may be called from any goroutine.
type Store struct {
	engine    Engine
	codec     Codec
	cipher    Cipher
	place     func(Key) string
	follows   bool // the engine has other writers
	encodings *encodingCache
	history   *history
	indexes   *indexes

	queue  queue
	awake  chan struct{} // tells the waker that something was published
	closed chan struct{}
	stop   context.CancelFunc
	done   sync.WaitGroup
	once   sync.Once

	sequenced chan struct{} // closed when the sequencer has ended
	refilling sync.Mutex    // held while the engine's history is read

	publishing sync.Mutex // guards the rest; held while transactions become visible
	draft      *draft
	inflight   map[*Txn]*pending // own transactions that a Follower will hand over
}

// Open loads the newest state from the engine and starts the sequencer.
func Open(ctx context.Context, c Config) (*Store, error) {
	s := &Store{
		engine:    c.Engine,
		codec:     c.Codec,
		cipher:    c.Cipher,
		place:     c.Place,
		encodings: &encodingCache{budget: cmp.Or(c.EncodingBytes, 32<<20)},
		awake:     make(chan struct{}, 1),
		closed:    make(chan struct{}),
		sequenced: make(chan struct{}),
		indexes:   newIndexes(c.Indexes),
	}
	if s.place == nil {
		s.place = Key.String
	}
	s.draft = newDraft(s.indexes)
	s.queue.init()
	if err := s.load(ctx, s.draft, 0); err != nil {
		return nil, fmt.Errorf("load store: %w", err)
	}
	loaded := s.draft.freeze(nil)
	s.history = newHistory(loaded, s.indexes, cmp.Or(c.Events, 100_000), cmp.Or(c.EventBytes, 16<<20))

	running, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.done.Go(func() {
		defer close(s.sequenced)
		s.sequence()
	})
	s.done.Go(s.wake)
	if f, ok := c.Engine.(Follower); ok {
		s.follows = true
		s.done.Go(func() { s.follow(running, f, loaded.revision) })
	}
	return s, nil
}

// load fills a draft with the engine's content at a revision. What cannot be read
// is set apart: the rest is of use without it.
func (s *Store) load(ctx context.Context, d *draft, revision int64) error {
	return s.fill(d, func(visit func(Record) error) (int64, error) { return s.engine.Load(ctx, revision, visit) })
}

func (s *Store) fill(d *draft, read func(visit func(Record) error) (int64, error)) error {
	var mu sync.Mutex
	var items []*Item
	lost := map[Key]*Unreadable{}
	revision, err := read(func(r Record) error {
		item, err := s.decode(r.Key, r.Revision, r.Value)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			lost[r.Key] = s.unreadable(r.Key, r.Revision, r.Value, err)
			return nil
		}
		items = append(items, item)
		return nil
	})
	if err != nil {
		return err
	}
	d.revision = revision
	d.load(items)
	if len(lost) > 0 {
		d.unreadable = lost
		slog.Error("Objects in the store cannot be read", "count", len(lost))
	}
	return nil
}

// decode fails in upstream's words.
func (s *Store) decode(key Key, revision int64, value []byte) (*Item, error) {
	value, seal, err := s.open(key, value)
	if err != nil {
		return nil, fmt.Errorf("data from the storage is not transformable revision=0: %w", err)
	}
	obj, err := s.codec.Decode(key, value)
	if err != nil {
		return nil, fmt.Errorf("object not decodable revision=%d: %w", revision, err)
	}
	obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	item := s.newItem(key, revision, obj, len(value))
	item.seal = seal
	return item, nil
}

// newItem makes an item whose key shares its strings with the object.
func (s *Store) newItem(key Key, revision int64, obj Object, size int) *Item {
	if name := obj.GetName(); name == key.Name {
		key.Name = name
	}
	if namespace := obj.GetNamespace(); namespace == key.Namespace {
		key.Namespace = namespace
	}
	return &Item{Key: key, Revision: revision, Object: obj, size: int32(size), cache: s.encodings}
}

// Close ends the store: waiting transactions and watches fail with ErrClosed.
// Snapshots stay readable.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closed)
		s.queue.close()
		<-s.sequenced // a Follower must hand over what is being committed
		s.stop()
		s.done.Wait()
		s.refilling.Lock()
		defer s.refilling.Unlock()
		err = s.engine.Close()
	})
	return err
}

// Revision is the newest published revision.
func (s *Store) Revision() int64 { return s.history.newest.Load().revision }

// Get returns the newest item at key, ErrNotFound, or an *Unreadable.
func (s *Store) Get(key Key) (*Item, error) { return s.Snapshot().Get(key) }

// Snapshot returns the newest published state.
func (s *Store) Snapshot() *Snapshot { return &Snapshot{s.history.newest.Load()} }

// SnapshotAt returns the state at a recent revision. ErrCompacted when history
// does not reach back to it, ErrFuture when it has not been reached.
func (s *Store) SnapshotAt(revision int64) (*Snapshot, error) {
	st, err := s.history.at(revision)
	if errors.Is(err, ErrCompacted) && s.refill(revision) {
		st, err = s.history.at(revision)
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot at %d: %w", revision, err)
	}
	return &Snapshot{st}, nil
}

// LoadAt reads the state at a revision from the engine's history, which reaches
// back further than SnapshotAt and costs as much as opening the store.
func (s *Store) LoadAt(ctx context.Context, revision int64) (*Snapshot, error) {
	d := newDraft(s.indexes)
	if err := s.load(ctx, d, revision); err != nil {
		return nil, fmt.Errorf("load revision %d: %w", revision, err)
	}
	return &Snapshot{d.freeze(nil)}, nil
}

// ReadThrough reads from an engine that has other writers what it holds in one place
// at a revision, 0 for the newest: a resource, in one namespace or, where that is
// empty, in all of them; with a name, that object alone. The snapshot shows nothing
// else. It needs nothing of what the store has been told, for when that lags behind.
// ErrFuture when the engine has no other writers: the store has all there is.
func (s *Store) ReadThrough(ctx context.Context, place Key, revision int64) (*Snapshot, error) {
	f, ok := s.engine.(Follower)
	if !ok {
		return nil, ErrFuture
	}
	d := newDraft(s.indexes)
	err := s.fill(d, func(visit func(Record) error) (int64, error) { return f.Read(ctx, place, revision, visit) })
	if err != nil {
		return nil, fmt.Errorf("read %s from the store's server: %w", place, err)
	}
	return &Snapshot{d.freeze(nil)}, nil
}

// WaitFor returns when a revision has been published.
func (s *Store) WaitFor(ctx context.Context, revision int64) error {
	for {
		published := s.history.wait()
		if s.Revision() >= revision {
			return nil
		}
		select {
		case <-published:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.closed:
			return ErrClosed
		}
	}
}

// Sync returns when the store shows everything that was committed before the
// call, by whomever; ErrBehind when that takes too long. It costs nothing unless
// the engine has other writers.
func (s *Store) Sync(ctx context.Context) error {
	if f, ok := s.engine.(Follower); ok {
		_, err := f.Sync(ctx)
		return err
	}
	return nil
}

// Compact forgets the events up to a revision: watches and SnapshotAt can no
// longer start before it. ErrFuture or ErrCompacted when it is out of range.
func (s *Store) Compact(_ context.Context, revision int64) error {
	err := s.history.compact(revision)
	if errors.Is(err, ErrCompacted) && s.refill(revision) {
		err = s.history.compact(revision)
	}
	if err != nil {
		return fmt.Errorf("compact to %d: %w", revision, err)
	}
	return nil
}
