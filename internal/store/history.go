package store

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// history holds the recent events, per resource in the order of revisions, and
// the newest state. Watches read it by position, so a slow one costs nothing;
// old states are computed from it by taking events back.
//
// Two budgets bound all topics together: the number of events, and the encoded
// size of the superseded objects that only history keeps alive. The oldest
// events go first, whichever topic they are in.
type history struct {
	maxEvents int
	maxBytes  int64
	indexes   *indexes

	newest atomic.Pointer[state] // written under mu, read by anyone

	mu        sync.RWMutex // guards the rest
	topics    map[schema.GroupResource]*topic
	floor     int64 // of topics that do not exist yet; events up to it are gone
	events    int
	bytes     int64
	whole     bool            // nothing was dropped since the store was opened
	stale     []chan struct{} // to be closed by wake
	published chan struct{}   // closed and replaced after newest changed
	waiting   atomic.Bool     // somebody waits for published
	rewound   []*state        // recently computed, most recent last

	rewinding sync.Mutex // serialises computing states; held before mu
}

// topic is the events of one resource. Sequence numbers count its events from
// the start of the store.
type topic struct {
	floor  int64 // events up to this revision may be gone
	events []Event
	head   int   // events[head] is the oldest kept one
	base   int64 // its sequence number

	indexes *indexes
	series  map[seriesKey]*series // those that are watched

	changed chan struct{} // closed and replaced after events were added
	waiting atomic.Bool   // somebody waits for changed
	dirty   bool          // events were added since changed was last closed
}

// keptSnapshots is how many states of the past are remembered after they were
// asked for. A client that reads a list in pages asks for the same one again.
const keptSnapshots = 8

func newHistory(newest *state, x *indexes, maxEvents int, maxBytes int64) *history {
	h := &history{
		maxEvents: maxEvents,
		maxBytes:  maxBytes,
		indexes:   x,
		whole:     true,
		topics:    map[schema.GroupResource]*topic{},
		floor:     newest.revision,
		published: make(chan struct{}),
	}
	h.newest.Store(newest)
	return h
}

func (h *history) revision() int64 { return h.newest.Load().revision }

func (t *topic) len() int              { return len(t.events) - t.head }
func (t *topic) end() int64            { return t.base + int64(t.len()) }
func (t *topic) since(s int64) []Event { return t.events[t.head+int(s-t.base):] }

// after returns the sequence number of the first event above a revision.
func (t *topic) after(revision int64) int64 {
	kept := t.events[t.head:]
	return t.base + int64(sort.Search(len(kept), func(i int) bool {
		return kept[i].Item.Revision > revision
	}))
}

// drop forgets the n oldest events.
func (t *topic) drop(n int) (bytes int64) {
	for i := t.head; i < t.head+n; i++ {
		bytes += retained(t.events[i])
		seq := t.base + int64(i-t.head)
		t.concerned(&t.events[i], func(s *series) { s.drop(seq) })
		t.floor = max(t.floor, t.events[i].Item.Revision)
		t.events[i] = Event{}
	}
	t.head += n
	t.base += int64(n)
	if t.head > len(t.events)/2 {
		kept := copy(t.events, t.events[t.head:])
		clear(t.events[kept:])
		t.events, t.head = t.events[:kept], 0
	}
	return bytes
}

// retained is what an event keeps alive that the newest state does not.
func retained(e Event) int64 {
	if e.Prev == nil {
		return 0
	}
	return int64(e.Prev.size)
}

func (h *history) topicLocked(gr schema.GroupResource) *topic {
	t, ok := h.topics[gr]
	if !ok {
		t = &topic{floor: h.floor, indexes: h.indexes, changed: make(chan struct{})}
		h.topics[gr] = t
	}
	return t
}

// publish makes a state and the events that led to it visible at once. Resources
// are broken when no events tell all that led to it.
func (h *history) publish(newest *state, events []Event, broken []schema.GroupResource) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		t := h.topicLocked(e.Item.Key.Resource)
		seq := t.end()
		t.events = append(t.events, e)
		t.dirty = true
		t.concerned(&e, func(s *series) { h.growLocked(s, seq) })
		h.events++
		h.bytes += retained(e)
	}
	h.newest.Store(newest)
	for _, gr := range broken {
		h.breakOffLocked(gr)
	}
	h.trimLocked()
}

// growLocked adds an event to a series and has its watches woken.
func (h *history) growLocked(s *series, seq int64) {
	s.seqs = append(s.seqs, seq)
	if s.waiting.CompareAndSwap(true, false) {
		h.stale = append(h.stale, s.changed)
		s.changed = make(chan struct{})
	}
}

// trimLocked drops the oldest events while a budget is exceeded, a few at a time.
func (h *history) trimLocked() {
	const step = 32 // events dropped between two looks for the oldest
	trimmed := false
	for h.events > h.maxEvents || h.bytes > h.maxBytes {
		oldest := h.oldestLocked()
		if oldest == nil {
			break
		}
		for n := 0; n < step && oldest.len() > 0 && (h.events > h.maxEvents || h.bytes > h.maxBytes); n++ {
			h.events--
			h.bytes -= oldest.drop(1)
		}
		trimmed = true
	}
	if trimmed {
		h.whole = false
		h.forgetSnapshotsLocked()
	}
}

func (h *history) oldestLocked() (oldest *topic) {
	var revision int64
	for _, t := range h.topics {
		if t.len() == 0 {
			continue
		}
		if r := t.events[t.head].Item.Revision; oldest == nil || r < revision {
			oldest, revision = t, r
		}
	}
	return oldest
}

// compact drops every event up to a revision.
func (h *history) compact(revision int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case revision > h.revision():
		return ErrFuture
	case revision < h.floor:
		return ErrCompacted
	}
	h.floor, h.whole = revision, false
	for _, t := range h.topics {
		n := int(t.after(revision) - t.base)
		h.events -= n
		h.bytes -= t.drop(n)
		t.floor = max(t.floor, revision)
	}
	h.forgetSnapshotsLocked()
	return nil
}

// oldestStateLocked is the oldest revision whose whole state can be computed.
func (h *history) oldestStateLocked() int64 {
	oldest := h.floor
	for _, t := range h.topics {
		oldest = max(oldest, t.floor)
	}
	return oldest
}

func (h *history) forgetSnapshotsLocked() {
	oldest := h.oldestStateLocked()
	kept := h.rewound[:0]
	for _, s := range h.rewound {
		if s.revision >= oldest {
			kept = append(kept, s)
		}
	}
	clear(h.rewound[len(kept):])
	h.rewound = kept
}

// at returns the state at a revision.
func (h *history) at(revision int64) (*state, error) {
	h.rewinding.Lock()
	defer h.rewinding.Unlock()
	near, undo, err := h.pathTo(revision)
	if err != nil || near.revision == revision {
		return near, err
	}
	s := rewind(near, revision, undo)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.rewound) == keptSnapshots {
		h.rewound = append(h.rewound[:0], h.rewound[1:]...)
	}
	h.rewound = append(h.rewound, s)
	h.forgetSnapshotsLocked()
	return s, nil
}

// pathTo returns the nearest known state at or above a revision, and the events
// of each resource that lie between them.
func (h *history) pathTo(revision int64) (*state, map[schema.GroupResource][]Event, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	switch {
	case revision > h.revision():
		return nil, nil, ErrFuture
	case revision < h.oldestStateLocked():
		return nil, nil, ErrCompacted
	}
	near := h.newest.Load()
	for _, s := range h.rewound {
		if s.revision >= revision && s.revision < near.revision {
			near = s
		}
	}
	undo := map[schema.GroupResource][]Event{}
	for gr, t := range h.topics {
		first, last := t.after(revision), t.after(near.revision)
		if first < last {
			undo[gr] = slices.Clone(t.since(first)[:last-first])
		}
	}
	return near, undo, nil
}

// rewind returns the state at an earlier revision.
func rewind(from *state, revision int64, undo map[schema.GroupResource][]Event) *state {
	out := &state{
		revision: revision, index: from.index, trees: slices.Clone(from.trees),
		indexes: from.indexes, fields: slices.Clone(from.fields), unreadable: from.unreadable,
	}
	for gr, events := range undo {
		past := out.tree(gr).Copy()
		for _, i := range out.indexes.of[gr] {
			out.fields[i] = out.fields[i].Copy()
		}
		for _, e := range slices.Backward(events) {
			was := e.Item
			if e.Type == Deleted {
				was = nil
			}
			out.indexes.move(out.fields, gr, was, e.Prev)
			if e.Prev != nil {
				past.Set(e.Prev)
			} else {
				past.Delete(e.Item)
			}
		}
		out.trees[out.index[gr]] = past
	}
	return out
}

// wait returns a channel that is closed when the newest state changes.
func (h *history) wait() <-chan struct{} {
	h.mu.RLock()
	defer h.mu.RUnlock()
	h.waiting.Store(true)
	return h.published
}

// wake wakes the watches of topics that changed, and whoever waits for a
// revision. It runs outside the sequencer: closing a channel takes time in
// proportion to those who wait for it.
func (h *history) wake() {
	h.mu.Lock()
	stale := h.stale
	h.stale = nil
	for _, t := range h.topics {
		if t.dirty && t.waiting.CompareAndSwap(true, false) {
			stale = append(stale, t.changed)
			t.changed = make(chan struct{})
		}
		t.dirty = false
	}
	if h.waiting.CompareAndSwap(true, false) {
		stale = append(stale, h.published)
		h.published = make(chan struct{})
	}
	h.mu.Unlock()
	for _, c := range stale {
		close(c)
	}
}
