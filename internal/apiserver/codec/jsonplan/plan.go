// Package jsonplan writes Go values as JSON, byte for byte as encoding/json does,
// in a fraction of its time. A type is compiled once into a plan: a function per
// field with its name already quoted, working on memory instead of reflection.
//
// What Kubernetes types do not use (embedded pointers, the "string" option, text
// marshalers, ...) is left to encoding/json, so a plan is never wrong, only slow.
package jsonplan

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
	"unsafe"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// plan appends the JSON of the value at p. What m, which may be nil, remembers of b it copies.
type plan func(b []byte, p unsafe.Pointer, m *Memo) ([]byte, error)

var plans sync.Map // reflect.Type -> plan

// Append appends the JSON of what v, a non-nil pointer, points at.
func Append(b []byte, v any) ([]byte, error) { return (*Memo)(nil).Append(b, v) }

func planOf(t reflect.Type) plan {
	if known, ok := plans.Load(t); ok {
		return known.(plan)
	}
	return (&compiler{open: map[reflect.Type]*plan{}}).compile(t)
}

// compiler makes the plan of a type and of all types below it. Open holds those
// being made, so that a recursive type refers to itself.
type compiler struct{ open map[reflect.Type]*plan }

func (c *compiler) compile(t reflect.Type) plan {
	if known, ok := plans.Load(t); ok {
		return known.(plan)
	}
	if self, ok := c.open[t]; ok {
		return func(b []byte, p unsafe.Pointer, m *Memo) ([]byte, error) { return (*self)(b, p, m) }
	}
	self := new(plan)
	c.open[t] = self
	*self = c.make(t)
	plans.Store(t, *self)
	return *self
}

var (
	marshalerType = reflect.TypeFor[json.Marshaler]()
	textType      = reflect.TypeFor[encoding.TextMarshaler]()
)

func (c *compiler) make(t reflect.Type) plan {
	switch t {
	case reflect.TypeFor[metav1.Time]():
		return appendTime
	case reflect.TypeFor[resource.Quantity]():
		return appendQuantity
	case reflect.TypeFor[metav1.FieldsV1]():
		return appendFields
	case reflect.TypeFor[intstr.IntOrString]():
		return appendIntOrString
	}
	if t.Kind() == reflect.Pointer { // null when nil, whatever methods it has
		return pointer(t.Elem(), c.compile(t.Elem()))
	}
	if implements(t, marshalerType) || implements(t, textType) {
		return standard(t)
	}
	switch t.Kind() {
	case reflect.Bool:
		return func(b []byte, p unsafe.Pointer, _ *Memo) ([]byte, error) {
			return strconv.AppendBool(b, *(*bool)(p)), nil
		}
	case reflect.Int32:
		return func(b []byte, p unsafe.Pointer, _ *Memo) ([]byte, error) {
			return strconv.AppendInt(b, int64(*(*int32)(p)), 10), nil
		}
	case reflect.Int64:
		return func(b []byte, p unsafe.Pointer, _ *Memo) ([]byte, error) {
			return strconv.AppendInt(b, *(*int64)(p), 10), nil
		}
	case reflect.String:
		return func(b []byte, p unsafe.Pointer, _ *Memo) ([]byte, error) { return appendString(b, *(*string)(p)), nil }
	case reflect.Struct:
		return c.structure(t)
	case reflect.Slice:
		return c.slice(t)
	case reflect.Map:
		return c.mapping(t)
	}
	return standard(t)
}

func implements(t, of reflect.Type) bool {
	return t.Implements(of) || reflect.PointerTo(t).Implements(of)
}

// standard leaves a type to encoding/json. It works on the value's address, as
// encoding/json would have found it.
func standard(t reflect.Type) plan {
	return func(b []byte, p unsafe.Pointer, _ *Memo) ([]byte, error) {
		raw, err := json.Marshal(reflect.NewAt(t, p).Interface())
		return append(b, raw...), err
	}
}

func pointer(t reflect.Type, to plan) plan {
	worth := t.Kind() == reflect.Struct && t.Size() >= worthSize
	place := newPlace(worth)
	return func(b []byte, p unsafe.Pointer, m *Memo) ([]byte, error) {
		if p = *(*unsafe.Pointer)(p); p == nil {
			return append(b, "null"...), nil
		}
		if m == nil || !worth {
			return to(b, p, m)
		}
		if known, ok := m.find(place, p, 1); ok {
			return append(b, b[known.start:known.end]...), nil
		}
		start := len(b)
		b, err := to(b, p, m)
		m.keep(place, span{p, 1, start, len(b)})
		return b, err
	}
}

func (c *compiler) slice(t reflect.Type) plan {
	if t.Elem().Kind() == reflect.Uint8 {
		return standard(t)
	}
	item, size, place := c.compile(t.Elem()), t.Elem().Size(), newPlace(true)
	return func(b []byte, p unsafe.Pointer, m *Memo) ([]byte, error) {
		// Every slice begins with its data pointer and length.
		header := *(*[]byte)(p)
		data, n := unsafe.Pointer(unsafe.SliceData(header)), len(header)
		if data == nil {
			return append(b, "null"...), nil
		}
		if known, ok := m.find(place, data, n); ok {
			return append(b, b[known.start:known.end]...), nil
		}
		begin := len(b)
		b = append(b, '[')
		for i := range n {
			if i > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = item(b, unsafe.Add(data, uintptr(i)*size), m); err != nil {
				return b, err
			}
		}
		b = append(b, ']')
		m.keep(place, span{data, n, begin, len(b)})
		return b, nil
	}
}

func (c *compiler) mapping(t reflect.Type) plan {
	if t.Key().Kind() != reflect.String || implements(t.Key(), textType) {
		return standard(t)
	}
	if t.Elem().Kind() == reflect.String && !implements(t.Elem(), marshalerType) && !implements(t.Elem(), textType) {
		return remembered(appendStringMap)
	}
	if t.Elem().Kind() != reflect.Struct && t.Elem().Kind() != reflect.Pointer && t.Elem().Kind() != reflect.Slice {
		return standard(t)
	}
	if reflect.PointerTo(t.Elem()).Implements(marshalerType) && !t.Elem().Implements(marshalerType) {
		return standard(t) // the elements of a map have no address to call it on
	}
	elem := c.compile(t.Elem())
	return remembered(func(b []byte, p unsafe.Pointer, m *Memo) ([]byte, error) {
		return appendMap(b, reflect.NewAt(t, p).Elem(), elem, m)
	})
}

// remembered is the plan of a map, whose value is a pointer to what is in it.
func remembered(write plan) plan {
	place := newPlace(true)
	return func(b []byte, p unsafe.Pointer, m *Memo) ([]byte, error) {
		at := *(*unsafe.Pointer)(p)
		if m == nil || at == nil {
			return write(b, p, m)
		}
		if known, ok := m.find(place, at, 1); ok {
			return append(b, b[known.start:known.end]...), nil
		}
		start := len(b)
		b, err := write(b, p, m)
		m.keep(place, span{at, 1, start, len(b)})
		return b, err
	}
}

func appendMap(b []byte, m reflect.Value, elem plan, memo *Memo) ([]byte, error) {
	if m.IsNil() {
		return append(b, "null"...), nil
	}
	keys := m.MapKeys()
	slices.SortFunc(keys, func(x, y reflect.Value) int { return strings.Compare(x.String(), y.String()) })
	value := reflect.New(m.Type().Elem())
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, k.String()), ':')
		value.Elem().Set(m.MapIndex(k))
		var err error
		if b, err = elem(b, value.UnsafePointer(), memo); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

// appendStringMap serves every map of strings: named string types look the same.
func appendStringMap(b []byte, p unsafe.Pointer, _ *Memo) ([]byte, error) {
	m := *(*map[string]string)(p)
	if m == nil {
		return append(b, "null"...), nil
	}
	var few [16]string
	keys := few[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, k), ':')
		b = appendString(b, m[k])
	}
	return append(b, '}'), nil
}

const hex = "0123456789abcdef"

// appendString quotes s, escaping what HTML would misread as well.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		if plain[s[i]] {
			i++
			continue
		}
		if s[i] < utf8.RuneSelf {
			b = appendEscaped(append(b, s[start:i]...), s[i])
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(append(b, s[start:i]...), `\ufffd`...)
			start = i + size
		case r == '\u2028' || r == '\u2029':
			b = append(append(b, s[start:i]...), `\u202`...)
			b = append(b, hex[r&0xf])
			start = i + size
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func appendEscaped(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\b':
		return append(b, `\b`...)
	case '\f':
		return append(b, `\f`...)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
}

// plain are the bytes that stand for themselves in a JSON string.
var plain = func() (set [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		set[c] = !strings.ContainsRune(`"\<>&`, c)
	}
	return set
}()

func appendTime(b []byte, p unsafe.Pointer, _ *Memo) ([]byte, error) {
	t := (*metav1.Time)(p)
	if t.IsZero() {
		return append(b, "null"...), nil
	}
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, time.RFC3339)
	return append(b, '"'), nil
}

func appendQuantity(b []byte, p unsafe.Pointer, _ *Memo) ([]byte, error) {
	// String remembers its answer in the quantity, which others may be reading.
	q := *(*resource.Quantity)(p)
	return appendString(b, q.String()), nil
}

func appendIntOrString(b []byte, p unsafe.Pointer, _ *Memo) ([]byte, error) {
	switch v := (*intstr.IntOrString)(p); v.Type {
	case intstr.Int:
		return strconv.AppendInt(b, int64(v.IntVal), 10), nil
	case intstr.String:
		return appendString(b, v.StrVal), nil
	default:
		raw, err := json.Marshal(v)
		return append(b, raw...), err
	}
}

// appendFields passes on JSON that is compact already, as it nearly always is.
func appendFields(b []byte, p unsafe.Pointer, m *Memo) ([]byte, error) {
	raw := (*metav1.FieldsV1)(p).Raw
	if known, ok := m.find(fieldsPlace, unsafe.Pointer(unsafe.SliceData(raw)), len(raw)); ok {
		return append(b, b[known.start:known.end]...), nil
	}
	start := len(b)
	b, err := appendRecord(b, (*metav1.FieldsV1)(p))
	m.keep(fieldsPlace, span{unsafe.Pointer(unsafe.SliceData(raw)), len(raw), start, len(b)})
	return b, err
}

var fieldsPlace = newPlace(true)

func appendRecord(b []byte, f *metav1.FieldsV1) ([]byte, error) {
	raw, err := f.MarshalJSON()
	if err != nil {
		return b, err
	}
	if end, ok := fieldSet(raw, 0, 0); ok && end == len(raw) {
		return append(b, raw...), nil
	}
	raw, err = json.Marshal(f)
	return append(b, raw...), err
}

// fieldSet finds the end of a set of fields as servers write it: objects in
// objects, without space, and names without anything that needs care. It answers
// false for all else, well-formed or not.
func fieldSet(raw []byte, at, depth int) (end int, ok bool) {
	if at >= len(raw) || raw[at] != '{' || depth == maxDepth {
		return at, false
	}
	if at++; at < len(raw) && raw[at] == '}' {
		return at + 1, true
	}
	for {
		if at, ok = fieldName(raw, at); !ok || at >= len(raw) || raw[at] != ':' {
			return at, false
		}
		if at, ok = fieldSet(raw, at+1, depth+1); !ok || at >= len(raw) {
			return at, false
		}
		switch raw[at] {
		case '}':
			return at + 1, true
		case ',':
			at++
		default:
			return at, false
		}
	}
}

// fieldName finds the end of a quoted name.
func fieldName(raw []byte, at int) (end int, ok bool) {
	if at >= len(raw) || raw[at] != '"' {
		return at, false
	}
	for at++; at < len(raw); at++ {
		switch c := raw[at]; {
		case plain[c]:
		case c == '"':
			return at + 1, true
		case c == '\\' && at+1 < len(raw) && (raw[at+1] == '"' || raw[at+1] == '\\'):
			at++
		default:
			return at, false
		}
	}
	return at, false
}
