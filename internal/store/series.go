package store

import (
	"math"
	"slices"
	"sort"
	"sync/atomic"
)

// series is where the events lie in a topic that concern one value of an indexed
// field. It exists while somebody watches for the value, so that a watch neither
// looks at nor wakes up for what does not concern it.
type series struct {
	watches int
	start   int64   // sequence number from which on seqs is complete
	seqs    []int64 // sequence numbers, ascending
	dropped int64   // the newest of them that is gone

	changed chan struct{} // closed and replaced after seqs grew
	waiting atomic.Bool   // somebody waits for changed
}

// seriesKey names an index by its position and one value of its field.
type seriesKey struct {
	index int
	value string
}

// join returns the series of a value, complete from a sequence number on, for
// one more watch.
func (t *topic) join(key seriesKey, next int64) *series {
	s, ok := t.series[key]
	if !ok {
		s = &series{start: t.end(), dropped: math.MinInt64, changed: make(chan struct{})}
		if t.series == nil {
			t.series = map[seriesKey]*series{}
		}
		t.series[key] = s
	}
	if next < s.start {
		index := &t.indexes.all[key.index]
		var older []int64
		for i, e := range t.since(next)[:s.start-next] {
			if index.touches(&e, key.value) {
				older = append(older, next+int64(i))
			}
		}
		s.seqs, s.start = append(older, s.seqs...), next
	}
	s.watches++
	return s
}

// leave takes a watch from a series.
func (t *topic) leave(key seriesKey) {
	s := t.series[key]
	if s.watches--; s.watches == 0 {
		delete(t.series, key)
	}
}

// concerned calls fn for the series that an event belongs to.
func (t *topic) concerned(e *Event, fn func(*series)) {
	if len(t.series) == 0 {
		return
	}
	for _, i := range t.indexes.of[e.Item.Key.Resource] {
		value := t.indexes.all[i].Value
		now := value(e.Item.Object)
		if s := t.series[seriesKey{i, now}]; s != nil {
			fn(s)
		}
		if e.Prev == nil {
			continue
		}
		if before := value(e.Prev.Object); before != now {
			if s := t.series[seriesKey{i, before}]; s != nil {
				fn(s)
			}
		}
	}
}

// drop forgets the events up to a sequence number.
func (s *series) drop(seq int64) {
	n := s.from(seq + 1)
	if n == 0 {
		return
	}
	s.dropped = s.seqs[n-1]
	s.seqs = slices.Delete(s.seqs, 0, n)
}

// from is the position in seqs of the first one at or after a sequence number.
func (s *series) from(seq int64) int {
	return sort.Search(len(s.seqs), func(i int) bool { return s.seqs[i] >= seq })
}
