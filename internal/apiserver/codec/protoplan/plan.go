// Package protoplan writes Kubernetes messages as protobuf, byte for byte as their
// generated methods do. It is for lists: what values have in common in memory, as the
// objects of a template in the store have, is encoded once and copied from then on.
//
// As the generated code does, it writes from the end to the beginning, so that the
// length of what is nested is known when its turn comes. A type is compiled once into
// a plan. Types that are not all generated (times, quantities, raw extensions) write
// themselves.
package protoplan

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Message is what generated Kubernetes types offer.
type Message interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error) // fills it from the end
}

// A Memo remembers where in a buffer the parts of values stand that were written to it
// last. What is remembered is known by its place in memory, so none of the values may
// change, nor anything that is in the buffer, until Reset. The zero value is ready for
// use.
type Memo struct{ last []span } // by place

// span is what was written last at a place: of which memory, and to where.
type span struct {
	of         unsafe.Pointer
	length     int // of a list
	start, end int
}

// Reset forgets everything.
func (m *Memo) Reset() { clear(m.last) }

var places atomic.Int64

func newPlace() int { return int(places.Add(1)) - 1 }

var errSize = errors.New("a message is not as long as it says")

// Append appends a message of size bytes to b, the buffer that m is about.
func (m *Memo) Append(b []byte, v Message, size int) ([]byte, error) {
	start := len(b)
	b = slices.Grow(b, size)[:start+size]
	w := writer{b: b, at: len(b), least: start, memo: m}
	r := reflect.ValueOf(v)
	if err := planOf(r.Type().Elem())(&w, r.UnsafePointer()); err != nil {
		return b[:start], err
	}
	if w.at != start {
		return b[:start], errSize
	}
	return b, nil
}

// writer is a place in a buffer in front of which is written, down to least.
type writer struct {
	b         []byte
	at, least int
	memo      *Memo
}

// take makes room for n bytes and returns it.
func (w *writer) take(n int) ([]byte, error) {
	if w.at-n < w.least {
		return nil, errSize
	}
	w.at -= n
	return w.b[w.at : w.at+n], nil
}

func (w *writer) text(s string) error {
	room, err := w.take(len(s))
	copy(room, s)
	return err
}

func (w *writer) varint(v uint64) error {
	room, err := w.take((bits.Len64(v|1) + 6) / 7)
	if err == nil {
		binary.PutUvarint(room, v)
	}
	return err
}

// delimit writes in front of what lies between here and end its length and a tag.
func (w *writer) delimit(tag string, end int) error {
	if err := w.varint(uint64(end - w.at)); err != nil {
		return err
	}
	return w.text(tag)
}

// copied writes again what was written last at a place, if that was of the same memory.
func (w *writer) copied(place int, of unsafe.Pointer, length int) bool {
	if place >= len(w.memo.last) {
		return false
	}
	s := w.memo.last[place]
	n := s.end - s.start
	if s.of != of || s.length != length || n == 0 || w.at-n < w.least {
		return false
	}
	w.at -= n
	copy(w.b[w.at:], w.b[s.start:s.end])
	return true
}

func (w *writer) keep(place int, of unsafe.Pointer, length, end int) {
	m := w.memo
	if place >= len(m.last) {
		m.last = append(m.last, make([]span, max(int(places.Load()), place+1)-len(m.last))...)
	}
	m.last[place] = span{of, length, w.at, end}
}

// plan writes the value at p in front of what is written: of a message its content,
// of a field all there is of it, tags included.
type plan func(w *writer, p unsafe.Pointer) error

var plans sync.Map // reflect.Type -> plan

func planOf(t reflect.Type) plan {
	if known, ok := plans.Load(t); ok {
		return known.(plan)
	}
	return (&compiler{open: map[reflect.Type]*plan{}}).message(t)
}

// compiler makes the plan of a message and of all below it. Open holds those being
// made, so that a recursive type refers to itself.
type compiler struct{ open map[reflect.Type]*plan }

func (c *compiler) message(t reflect.Type) plan {
	if known, ok := plans.Load(t); ok {
		return known.(plan)
	}
	if self, ok := c.open[t]; ok {
		return func(w *writer, p unsafe.Pointer) error { return (*self)(w, p) }
	}
	self := new(plan)
	c.open[t] = self
	if fields, err := c.fields(t); err == nil {
		*self = all(fields)
	} else {
		*self = own(t)
	}
	plans.Store(t, *self)
	return *self
}

// own lets a type write itself.
func own(t reflect.Type) plan {
	return func(w *writer, p unsafe.Pointer) error {
		m, ok := reflect.NewAt(t, p).Interface().(Message)
		if !ok {
			return fmt.Errorf("%s has no protobuf form", t)
		}
		n := m.Size()
		room, err := w.take(n)
		if err != nil {
			return err
		}
		if written, err := m.MarshalToSizedBuffer(room); err != nil || written != n {
			return cmp.Or(err, errSize)
		}
		return nil
	}
}

func all(fields []field) plan {
	return func(w *writer, p unsafe.Pointer) error {
		for i := len(fields) - 1; i >= 0; i-- {
			if err := fields[i].write(w, unsafe.Add(p, fields[i].offset)); err != nil {
				return err
			}
		}
		return nil
	}
}

// field is one field of a message.
type field struct {
	number int
	offset uintptr
	write  plan
}

var (
	errUnusual  = errors.New("the type is not written as generated code does")
	messageType = reflect.TypeFor[Message]()
)

// fields lists the fields of a generated message in the order of their numbers.
func (c *compiler) fields(t reflect.Type) ([]field, error) {
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[metav1.FieldsV1]() || !reflect.PointerTo(t).Implements(messageType) {
		return nil, errUnusual
	}
	var list []field
	for i := range t.NumField() {
		f := t.Field(i)
		text := f.Tag.Get("protobuf")
		if f.Type == reflect.TypeFor[metav1.TypeMeta]() && text == "" {
			continue
		}
		parts := strings.Split(text, ",")
		if !f.IsExported() || len(parts) < 3 {
			return nil, errUnusual
		}
		number, err := strconv.Atoi(parts[1])
		if err != nil {
			return nil, errUnusual
		}
		write, err := c.field(f.Type, number, parts[0])
		if err != nil {
			return nil, err
		}
		list = append(list, field{number, f.Offset, write})
	}
	slices.SortFunc(list, func(a, b field) int { return a.number - b.number })
	return list, nil
}

const (
	varintWire = 0
	bytesWire  = 2
)

func tagOf(number, wire int) string {
	return string(binary.AppendUvarint(nil, uint64(number)<<3|uint64(wire)))
}

func (c *compiler) field(t reflect.Type, number int, encoding string) (plan, error) {
	if encoding != "bytes" && encoding != "varint" {
		return nil, errUnusual
	}
	if t.Kind() == reflect.Pointer {
		value, err := c.single(t.Elem(), number)
		return optional(value), err
	}
	writesItself := t.Kind() != reflect.Struct && reflect.PointerTo(t).Implements(messageType)
	switch {
	case writesItself:
		return nil, errUnusual
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return raw(tagOf(number, bytesWire)), nil
	case t.Kind() == reflect.Slice:
		return c.repeated(t, number)
	case t.Kind() == reflect.Map:
		return c.mapping(t, number)
	}
	return c.single(t, number)
}

// single is a field that holds one value.
func (c *compiler) single(t reflect.Type, number int) (plan, error) {
	number2, number0 := tagOf(number, bytesWire), tagOf(number, varintWire)
	switch t.Kind() {
	case reflect.String:
		return func(w *writer, p unsafe.Pointer) error {
			end := w.at
			if err := w.text(*(*string)(p)); err != nil {
				return err
			}
			return w.delimit(number2, end)
		}, nil
	case reflect.Bool:
		return func(w *writer, p unsafe.Pointer) error { return w.number(number0, uint64(*(*byte)(p))) }, nil
	case reflect.Int32:
		return func(w *writer, p unsafe.Pointer) error { return w.number(number0, uint64(*(*int32)(p))) }, nil
	case reflect.Int64:
		return func(w *writer, p unsafe.Pointer) error { return w.number(number0, uint64(*(*int64)(p))) }, nil
	case reflect.Struct:
		content := c.message(t)
		return func(w *writer, p unsafe.Pointer) error {
			end := w.at
			if err := content(w, p); err != nil {
				return err
			}
			return w.delimit(number2, end)
		}, nil
	}
	return nil, errUnusual
}

func (w *writer) number(tag string, v uint64) error {
	if err := w.varint(v); err != nil {
		return err
	}
	return w.text(tag)
}

// optional is a field that refers to its value, or is left out.
func optional(value plan) plan {
	place := newPlace()
	return func(w *writer, p unsafe.Pointer) error {
		to := *(*unsafe.Pointer)(p)
		if to == nil || w.copied(place, to, 1) {
			return nil
		}
		end := w.at
		if err := value(w, to); err != nil {
			return err
		}
		w.keep(place, to, 1, end)
		return nil
	}
}

func raw(tag string) plan {
	return func(w *writer, p unsafe.Pointer) error {
		b := *(*[]byte)(p)
		if b == nil {
			return nil
		}
		end, room := w.at, []byte(nil)
		room, err := w.take(len(b))
		if err != nil {
			return err
		}
		copy(room, b)
		return w.delimit(tag, end)
	}
}

func (c *compiler) repeated(t reflect.Type, number int) (plan, error) {
	if k := t.Elem().Kind(); k != reflect.String && k != reflect.Struct && k != reflect.Int32 && k != reflect.Int64 {
		return nil, errUnusual
	}
	item, err := c.single(t.Elem(), number)
	if err != nil {
		return nil, err
	}
	size, place := t.Elem().Size(), newPlace()
	return func(w *writer, p unsafe.Pointer) error {
		// Every slice begins with its data pointer and length.
		header := *(*[]byte)(p)
		data, n := unsafe.Pointer(unsafe.SliceData(header)), len(header)
		if n == 0 || w.copied(place, data, n) {
			return nil
		}
		end := w.at
		for i := n - 1; i >= 0; i-- {
			if err := item(w, unsafe.Add(data, uintptr(i)*size)); err != nil {
				return err
			}
		}
		w.keep(place, data, n, end)
		return nil
	}, nil
}

// mapping is a field of entries, each with its key as field 1 and its value as field
// 2, sorted by their keys.
func (c *compiler) mapping(t reflect.Type, number int) (plan, error) {
	value := t.Elem()
	if t.Key().Kind() != reflect.String || value.Kind() != reflect.String && value.Kind() != reflect.Struct ||
		value.Kind() == reflect.String && reflect.PointerTo(value).Implements(messageType) {
		return nil, errUnusual
	}
	content, err := c.single(value, 2)
	if err != nil {
		return nil, err
	}
	entry, key, place := tagOf(number, bytesWire), tagOf(1, bytesWire), newPlace()
	write := func(w *writer, name string, v unsafe.Pointer) error {
		end := w.at
		if err := content(w, v); err != nil {
			return err
		}
		middle := w.at
		if err := w.text(name); err != nil {
			return err
		}
		if err := w.delimit(key, middle); err != nil {
			return err
		}
		return w.delimit(entry, end)
	}
	each := eachEntry(t, write)
	return func(w *writer, p unsafe.Pointer) error {
		m := *(*unsafe.Pointer)(p)
		if m == nil || w.copied(place, m, 1) {
			return nil
		}
		end := w.at
		if err := each(w, p); err != nil {
			return err
		}
		w.keep(place, m, 1, end)
		return nil
	}, nil
}

// eachEntry calls write for the entries of a map from the last to the first.
func eachEntry(t reflect.Type, write func(w *writer, name string, v unsafe.Pointer) error) plan {
	if t.Elem().Kind() == reflect.String { // all maps of strings look the same
		return func(w *writer, p unsafe.Pointer) error {
			m := *(*map[string]string)(p)
			var few [16]string
			names := few[:0]
			for name := range m {
				names = append(names, name)
			}
			slices.Sort(names)
			for _, name := range slices.Backward(names) {
				v := m[name]
				if err := write(w, name, unsafe.Pointer(&v)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return func(w *writer, p unsafe.Pointer) error {
		m := reflect.NewAt(t, p).Elem()
		keys := m.MapKeys()
		slices.SortFunc(keys, func(x, y reflect.Value) int { return strings.Compare(x.String(), y.String()) })
		for _, key := range slices.Backward(keys) {
			value := reflect.New(t.Elem())
			value.Elem().Set(m.MapIndex(key))
			if err := write(w, key.String(), value.UnsafePointer()); err != nil {
				return err
			}
		}
		return nil
	}
}
