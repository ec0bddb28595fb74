package store

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// Codec turns objects into what an engine keeps and back. It is used from many
// goroutines at once. Encode is given objects without metadata.resourceVersion
// and must be deterministic: equal bytes are taken for an unchanged object.
// Decode may keep no part of value.
type Codec interface {
	Encode(key Key, obj Object) ([]byte, error)
	Decode(key Key, value []byte) (Object, error)
}

// Record is one object as an engine keeps it. Value is valid until the call it
// was passed to returns.
type Record struct {
	Key      Key
	Revision int64
	Value    []byte
}

// Check says which revision of a key a transaction was computed from; 0 means
// that the key was absent.
type Check struct {
	Key      Key
	Revision int64
}

// Op is one change of one key. Prev is the revision it replaces, 0 for none.
type Op struct {
	Key    Key
	Prev   int64
	Value  []byte
	Delete bool
}

// Txn is one transaction on its way into an engine, which sets Revision, or Err
// when it refused this one alone.
type Txn struct {
	Checks []Check
	Ops    []Op
	Span   trace.Span // what it is traced as a part of, nil for nothing

	Revision int64
	Err      error
}

// Engine keeps transactions. It assigns their revisions: an embedded engine
// counts up by one; one with other writers passes on what its server answers.
//
// The checks of a transaction held in the store's newest state when Commit was
// called, and no two transactions of a batch touch a key that the other one
// writes. An engine that is the only writer therefore need not look at them; one
// that is not sends them along and reports those that failed with ErrConflict,
// upon which the store runs the transaction again.
type Engine interface {
	// Load calls visit for every object that existed at a revision, in any order
	// and from several goroutines at once, and returns that revision. Revision 0
	// means the newest. ErrCompacted and ErrFuture when the engine does not hold it.
	Load(ctx context.Context, revision int64, visit func(Record) error) (int64, error)

	// Commit makes a batch durable with one sync and sets every Revision in
	// ascending order. It is called by one goroutine. An error means that nothing
	// of the batch may be acknowledged; an engine that no longer knows what is on
	// its disk returns the same error from then on.
	Commit(batch []*Txn) error

	// Close releases the engine after the last call has returned.
	Close() error
}

// Change is one change of one key in an engine's log. Its Value is valid until
// the call it was passed to returns.
type Change struct {
	Op
	Revision int64
}

// Historian is an Engine that keeps what was replaced and deleted for a while,
// so that watches resume across a restart.
type Historian interface {
	Engine

	// History calls visit for the changes up to a revision, newest first, until
	// visit returns false or no more are kept whole. It returns the revision
	// above which none was left out.
	History(upTo int64, visit func(Change) bool) (after int64, err error)

	// ValueAt returns what a revision wrote at a key, ErrCompacted when that is
	// no longer kept.
	ValueAt(key Key, revision int64) ([]byte, error)
}

// Follower is an Engine with other writers. The store then publishes nothing
// by itself: Follow hands over every transaction after a revision in revision
// order, the store's own ones as the same pointers that Commit was given, and
// Commit returns only after they were handed over. Follow ends with ctx, or with
// ErrReplaced, upon which the store loads everything and follows from there.
type Follower interface {
	Engine
	Follow(ctx context.Context, after int64, publish func(batch []*Txn) error) error

	// Sync returns after everything that was committed before the call has been
	// handed over, and says up to which revision. ErrBehind when it has to wait longer
	// than a client should.
	Sync(ctx context.Context) (int64, error)

	// Read is Load of one place: a resource, in one namespace or in all of them; with
	// a name, that object alone.
	Read(ctx context.Context, place Key, revision int64, visit func(Record) error) (int64, error)
}
