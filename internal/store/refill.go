package store

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// refillStep is how many events are read from the engine at least, once it has to
// be asked: clients that resume after a restart come from about the same time.
const refillStep = 4096

// refill completes the history of a store that was opened a moment ago with what
// its engine still knows, back to a revision or as far as it and the budgets
// reach. It tells whether the history starts earlier than it did. Opening costs
// nothing extra this way, and the first one who resumes pays for all.
func (s *Store) refill(from int64) bool {
	log, ok := s.engine.(Historian)
	if !ok {
		return false
	}
	s.refilling.Lock()
	defer s.refilling.Unlock()
	p, ok := s.history.past(from)
	if !ok || s.isClosed() {
		return false
	}
	if p.from >= p.upTo {
		return true // somebody else was here
	}
	p.store = s
	err := p.read(log)
	if err == nil {
		err = p.complete(log)
	}
	if err != nil {
		if !errors.Is(err, ErrCompacted) {
			slog.Error("Read the store's history", "err", err)
		}
		return false
	}
	return s.history.prepend(p)
}

func (s *Store) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// past is the part of the history before what is held, on its way from the engine.
type past struct {
	store  *Store
	newest *state
	from   int64 // wanted: what came after it
	upTo   int64 // where what is held begins
	events int   // budgets
	bytes  int64

	held  map[itemID]*Item // superseded items that later events hold
	found []pastEvent      // newest first
	open  map[Key]int      // the last found event of a key, whose Prev is still to come
	after int64            // what is found is complete above it
	err   error
}

type pastEvent struct {
	Event
	revision, prev int64
}

// itemID names one revision of one key.
type itemID struct {
	key      Key
	revision int64
}

// past describes what is missing between a revision and the oldest event; false
// when events were dropped since the store was opened, which leaves a gap.
func (h *history) past(from int64) (*past, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if !h.whole {
		return nil, false
	}
	p := &past{
		newest: h.newest.Load(), from: from, upTo: h.floor, after: h.floor,
		events: h.maxEvents - h.events, bytes: h.maxBytes - h.bytes,
		held: map[itemID]*Item{}, open: map[Key]int{},
	}
	for _, t := range h.topics {
		for _, e := range t.events[t.head:] {
			if e.Prev != nil {
				p.held[itemID{e.Prev.Key, e.Prev.Revision}] = e.Prev
			}
		}
	}
	return p, true
}

func (p *past) read(log Historian) error {
	after, err := log.History(p.upTo, func(c Change) bool {
		if p.store.isClosed() || len(p.found) >= p.events || p.bytes < 0 ||
			c.Revision <= p.from && len(p.found) >= refillStep {
			return false
		}
		p.err = p.add(c)
		return p.err == nil
	})
	for n := len(p.found); n > 0 && p.found[n-1].revision <= after; n-- {
		p.found = p.found[:n-1] // the rest of its transaction was left out
	}
	p.after = after
	return errors.Join(p.err, err)
}

// add takes one change. A value is decoded unless the item is known, which the
// newest revision of every object is.
func (p *past) add(c Change) error {
	e := pastEvent{revision: c.Revision, prev: c.Prev}
	switch {
	case c.Delete:
		e.Type = Deleted
	case c.Prev == 0:
		e.Type = Created
	default:
		e.Type = Updated
	}
	if !c.Delete {
		item, err := p.item(c.Key, c.Revision, func() ([]byte, error) { return c.Value, nil })
		if err != nil {
			return err
		}
		e.Item = item
		if later, ok := p.open[c.Key]; ok {
			p.found[later].Prev = item
		}
	}
	delete(p.open, c.Key)
	if c.Prev != 0 {
		p.open[c.Key] = len(p.found)
	}
	p.found = append(p.found, e)
	return nil
}

func (p *past) item(key Key, revision int64, value func() ([]byte, error)) (*Item, error) {
	if item := p.newest.get(key); item != nil && item.Revision == revision {
		return item, nil
	}
	if item := p.held[itemID{key, revision}]; item != nil {
		return item, nil
	}
	v, err := value()
	if err != nil {
		return nil, fmt.Errorf("%s at revision %d: %w", key, revision, err)
	}
	p.bytes -= int64(len(v))
	return p.store.decode(key, revision, v)
}

// complete finds what the oldest event of each key replaced, and what deletions removed.
func (p *past) complete(log Historian) error {
	for key, i := range p.open {
		if i >= len(p.found) {
			continue
		}
		e := &p.found[i]
		prev, err := p.item(key, e.prev, func() ([]byte, error) { return log.ValueAt(key, e.prev) })
		if err != nil {
			return err
		}
		e.Prev = prev
	}
	for i := range p.found {
		if e := &p.found[i]; e.Type == Deleted {
			e.Item = p.store.deletion(e.Prev, e.revision)
		}
	}
	return nil
}

// prepend puts what was found before the events that are held.
func (h *history) prepend(p *past) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.whole || p.after >= h.floor {
		return false
	}
	older := map[schema.GroupResource][]Event{}
	for _, e := range slices.Backward(p.found) {
		gr := e.Item.Key.Resource
		older[gr] = append(older[gr], e.Event)
		h.bytes += retained(e.Event)
	}
	for gr, events := range older {
		t := h.topicLocked(gr)
		t.events, t.head = append(events, t.events[t.head:]...), 0
		t.base -= int64(len(events))
		h.events += len(events)
	}
	h.floor = p.after
	for _, t := range h.topics {
		t.floor = p.after
	}
	h.trimLocked()
	return true
}
