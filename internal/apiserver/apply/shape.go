package apply

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"sync"
)

// A shape is what decides which fields the creator of an object owns: which of
// them are set, the keys of its maps and the identities of its lists' items,
// but no other value. Objects of one template have the same shape, so the record
// of it is made once and its bytes are shared by all of them.
//
// It is written as the nodes of a differ are walked: two bytes for a field of a
// record, a count and the keys for a map or a list, one byte for the outcome at
// each node.
type shapeWriter struct {
	buf    []byte
	keys   []string // scratch: of the maps that are being written
	ends   []int    // scratch: where the identities of lists end
	failed bool     // the object has no well-formed identity
}

// Outcomes of comparing a value with the one of an empty object.
const (
	outcomeSame = iota
	outcomeAdded
	outcomeRemoved
	outcomeModified
)

// walk writes what distinguishes obj from old, the part of an empty object at the
// same place. At least one of them exists.
func (w *shapeWriter) walk(n *node, old, obj reflect.Value) {
	if n.shape == leaf || length(n, old) == 0 && length(n, obj) == 0 {
		w.outcome(n, old, obj)
		return
	}
	lhs, rhs := deref(old), deref(obj)
	switch n.shape {
	case record:
		w.record(n, lhs, rhs)
	case mapping:
		w.mapping(n, lhs, rhs)
	case keyed, set:
		w.list(n, lhs, rhs)
	}
	w.presence(old, obj)
}

func (w *shapeWriter) record(n *node, old, obj reflect.Value) {
	for i := range n.fields {
		f := &n.fields[i]
		before, after := f.at(old), f.at(obj)
		if before.IsValid() || after.IsValid() {
			w.buf = binary.BigEndian.AppendUint16(w.buf, uint16(i+1))
			w.walk(f.node, before, after)
		}
	}
	w.buf = append(w.buf, 0, 0)
}

func (w *shapeWriter) mapping(n *node, old, obj reflect.Value) {
	if old.IsValid() && old.Len() > 0 || !obj.IsValid() {
		w.failed = true
		return
	}
	start := len(w.keys)
	for it := obj.MapRange(); it.Next(); {
		w.keys = append(w.keys, it.Key().String())
	}
	keys := w.keys[start:]
	slices.Sort(keys)
	w.buf = binary.AppendUvarint(w.buf, uint64(len(keys)))
	for _, key := range keys {
		w.text(key)
		if n.elem.shape == leaf {
			w.buf = append(w.buf, outcomeAdded)
			continue
		}
		w.walk(n.elem, reflect.Value{}, obj.MapIndex(reflect.ValueOf(key).Convert(obj.Type().Key())))
	}
	w.keys = w.keys[:start]
}

func (w *shapeWriter) list(n *node, old, obj reflect.Value) {
	if old.IsValid() && old.Len() > 0 || !obj.IsValid() {
		w.failed = true
		return
	}
	count, first := obj.Len(), len(w.ends)
	w.buf = binary.AppendUvarint(w.buf, uint64(count))
	w.ends = append(w.ends, len(w.buf))
	for i := range count { // identities come first, all together, to be compared
		w.identity(n, obj.Index(i))
		w.ends = append(w.ends, len(w.buf))
	}
	if w.failed || repeats(w.buf, w.ends[first:]) {
		w.failed = true
		return
	}
	w.ends = w.ends[:first]
	for i := range count {
		w.walk(n.elem, reflect.Value{}, obj.Index(i))
	}
}

// identity writes what makes an item of a list unique.
func (w *shapeWriter) identity(n *node, v reflect.Value) {
	if n.shape == set {
		w.text(v.String())
		return
	}
	if v = deref(v); !v.IsValid() {
		w.failed = true
		return
	}
	found := false
	for i := range n.keys {
		k := &n.keys[i]
		f := field(v, k.index)
		if key := deref(f); key.IsValid() && (!k.omit || !f.IsZero()) {
			found = w.scalar(key)
		} else if k.def != nil {
			found = w.scalar(reflect.ValueOf(k.def))
		} else {
			w.buf = append(w.buf, 0)
		}
	}
	w.failed = w.failed || !found
}

// scalar writes a value that is part of an identity.
func (w *shapeWriter) scalar(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		w.buf = append(w.buf, 's')
		w.text(v.String())
	case reflect.Int, reflect.Int32, reflect.Int64:
		w.buf = binary.BigEndian.AppendUint64(append(w.buf, 'i'), uint64(v.Int()))
	case reflect.Bool:
		w.buf = append(w.buf, 'f')
		if v.Bool() {
			w.buf[len(w.buf)-1] = 't'
		}
	default:
		w.failed = true
	}
	return true
}

// repeats says whether two of the pieces of b that lie between ends are the same.
func repeats(b []byte, ends []int) bool {
	pieces := len(ends) - 1
	if pieces <= shortList {
		for i := range pieces {
			for j := range i {
				if bytes.Equal(b[ends[i]:ends[i+1]], b[ends[j]:ends[j+1]]) {
					return true
				}
			}
		}
		return false
	}
	seen := make(map[string]struct{}, pieces)
	for i := range pieces {
		seen[string(b[ends[i]:ends[i+1]])] = struct{}{}
	}
	return len(seen) < pieces
}

func (w *shapeWriter) text(s string) {
	w.buf = append(binary.AppendUvarint(w.buf, uint64(len(s))), s...)
}

func (w *shapeWriter) presence(old, obj reflect.Value) bool {
	outcome := byte(outcomeSame)
	switch {
	case !old.IsValid():
		outcome = outcomeAdded
	case !obj.IsValid():
		outcome = outcomeRemoved
	}
	w.buf = append(w.buf, outcome)
	return outcome == outcomeSame
}

func (w *shapeWriter) outcome(n *node, old, obj reflect.Value) {
	if w.presence(old, obj) && !same(n, old, obj) {
		w.buf[len(w.buf)-1] = outcomeModified
	}
}

var shapeWriters = sync.Pool{New: func() any { return &shapeWriter{} }}

// shapes remembers the records of the shapes that were seen. A nil record means
// that nothing is owned.
type shapes struct {
	mu      sync.RWMutex
	records map[string][]byte
}

// maxShapes bounds the shapes of one kind. When there are more, all are forgotten.
const maxShapes = 1024

func (s *shapes) get(shape []byte) (record []byte, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	record, ok = s.records[string(shape)]
	return record, ok
}

func (s *shapes) put(shape, record []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records == nil || len(s.records) >= maxShapes {
		s.records = map[string][]byte{}
	}
	s.records[string(shape)] = record
}
