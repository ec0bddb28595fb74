package jsonplan

import (
	"reflect"
	"sync/atomic"
	"unsafe"
)

// A Memo remembers where in a buffer the parts of values stand that were written to
// it last. Values that have parts in common, as the objects of a template in the store
// have, are then mostly copied: a list of such is written in a fraction of the time.
//
// What is remembered is known by its place in memory, so none of the values may change
// or be freed, nor anything that is in the buffer, until Reset. The zero value is ready
// for use; so is nil, which remembers nothing.
type Memo struct{ last []span } // by place

// span is what was written last at a place: of which memory, and to where.
type span struct {
	of         unsafe.Pointer
	length     int // of a list, or of raw bytes
	start, end int
}

// worthSize is the size of the smallest struct that is remembered, in bytes.
const worthSize = 64

// places counts those of all plans: the types of lists, maps and of what pointers refer to.
var places atomic.Int64

func newPlace(worth bool) int {
	if !worth {
		return -1
	}
	return int(places.Add(1)) - 1
}

// Append is the function Append, to the buffer that m is about.
func (m *Memo) Append(b []byte, v any) ([]byte, error) {
	r := reflect.ValueOf(v)
	return planOf(r.Type().Elem())(b, r.UnsafePointer(), m)
}

// Reset forgets everything.
func (m *Memo) Reset() {
	if m != nil {
		clear(m.last)
	}
}

func (m *Memo) find(place int, of unsafe.Pointer, length int) (span, bool) {
	if m == nil || place >= len(m.last) {
		return span{}, false
	}
	s := m.last[place]
	return s, s.of == of && s.length == length && s.end > s.start
}

func (m *Memo) keep(place int, s span) {
	if m == nil || s.length == 0 {
		return
	}
	if place >= len(m.last) {
		m.last = append(m.last, make([]span, max(int(places.Load()), place+1)-len(m.last))...)
	}
	m.last[place] = s
}
