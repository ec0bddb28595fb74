// Package fairness is API Priority and Fairness (KEP-1040): it sorts requests
// into flows by the FlowSchemas, gives each priority level a number of seats, and
// lets the flows of a level that is full wait in queues, so that no flow keeps the
// others from being served. A request that cannot wait is refused.
//
// A request that finds a seat free costs a match and two short locks and
// allocates nothing. Only where requests wait is time accounted: see level.
package fairness

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"proa/internal/apiserver/request"
	"proa/internal/client"
	"proa/internal/store"
)

// Config says how a Fairness is made.
type Config struct {
	// Store holds the FlowSchemas and PriorityLevelConfigurations, and counts the
	// objects that a list would read. Required.
	Store *store.Store

	// API writes the objects that every cluster has, and the status of flow
	// schemas. Nil: nothing is written.
	API client.API

	// Seats are those of the whole server; default 600.
	Seats int

	// Seed of the hash that deals queues to flows; 0: random.
	Seed uint64

	Clock clock.Clock // default: the real one
	Log   *slog.Logger
}

// Fairness decides when a request is served.
type Fairness struct {
	config  Config
	start   time.Time
	current atomic.Pointer[table]
	watches watchCounts
	server  server

	followed, ensured atomic.Bool // once, for health

	mu     sync.Mutex        // guards what follows: how levels are set up
	levels map[string]*level // by name, those that only drain included
	fair   float64           // seats given to each unit of demand, last time they were shared out
}

// DefaultSeats are upstream's: 400 requests that read and 200 that write.
const DefaultSeats = 600

// New returns a Fairness that has read its configuration from the store.
func New(c Config) (*Fairness, error) {
	if c.Store == nil {
		return nil, errors.New("fairness: a store is required")
	}
	if c.Seats == 0 {
		c.Seats = DefaultSeats
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	f := &Fairness{config: c, start: c.Clock.Now(), levels: map[string]*level{}}
	f.server.begin(f.now())
	f.reload()
	return f, nil
}

// now is the time since the start: monotonic, and cheaper to add up than a time.Time.
func (f *Fairness) now() time.Duration { return f.config.Clock.Since(f.start) }

// Class is what a request was found to be.
type Class struct {
	schema *flowSchema
	flow   uint64 // tells the flows of a schema apart
	by     string // what they are told apart by

	user user.Info // whose request it is; nil: nobody tells
	info *request.Info
}

// Classify finds the first FlowSchema, by precedence, that matches.
func (f *Fairness) Classify(u user.Info, info *request.Info) Class {
	t := f.current.Load()
	for _, s := range t.schemas {
		if s.matches(u, info) {
			return s.classOf(u, info)
		}
	}
	return t.catchAll.classOf(u, info)
}

func (s *flowSchema) classOf(u user.Info, info *request.Info) Class {
	c := s.class(u, info)
	c.user, c.info = u, info
	return c
}

// The headers that tell a response's class.
var (
	schemaHeader = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
	levelHeader  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
)

// Tell puts the UIDs of schema and level into a response's header. Names would
// show clients how they are ranked.
func (c Class) Tell(h http.Header) {
	h[schemaHeader], h[levelHeader] = c.schema.header[0], c.schema.header[1]
}

// FlowSchema and PriorityLevel are the names, for audit and logs.
func (c Class) FlowSchema() string { return c.schema.name }

// PriorityLevel is the level's name.
func (c Class) PriorityLevel() string { return c.schema.level.name }

// Exempt reports whether the request is served whatever else is.
func (c Class) Exempt() bool { return c.schema.level.exempt }

// Start takes seats for a request, after waiting for them no longer than limit
// where the level lets requests wait. ok is false when the request is to be
// refused; otherwise the seats are free again after Ticket.End.
func (f *Fairness) Start(ctx context.Context, c Class, w Width, limit time.Duration) (t Ticket, ok bool) {
	l := c.schema.level
	l.mu.Lock()
	now := f.now()
	t, waiting, why := l.arriveLocked(c, w, now)
	l.mu.Unlock()
	if why != "" {
		return Ticket{}, false
	}
	kind := kindOf(c.info.Verb)
	if waiting != nil {
		f.server.add(now, kind, phaseWaiting, 1)
		t, ok = l.wait(ctx, waiting, limit)
		now = f.now()
		f.server.add(now, kind, phaseWaiting, -1)
		if !ok {
			return t, false
		}
	}
	f.server.add(now, kind, phaseExecuting, 1)
	t.server, t.kind = &f.server, kind
	return t, true
}

// RetryAfter is in how many seconds a refused client may come again: the more are
// refused, the later.
func (f *Fairness) RetryAfter(c Class) int {
	return c.schema.level.refused.after(f.now())
}

// stored is how many objects a list of a resource reads, and the bytes of one of
// them as a few of them tell.
func (f *Fairness) stored(gr schema.GroupResource, namespace string) (n, each int) {
	sn := f.config.Store.Snapshot()
	n = sn.Len(gr, namespace)
	some, size := min(n, sampled), 0
	if some == 0 {
		return 0, 0
	}
	left := some
	sn.Range(gr, namespace, store.Key{}, func(item *store.Item) bool {
		size += item.Size()
		left--
		return left > 0
	})
	return n, size / some
}
