package jsonplan

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"sync"
	"unicode/utf8"
	"unsafe"
)

// Decode reads one JSON value into what into points at, which has to be zero. It
// reads what well-formed clients send, with the outcome of sigs.k8s.io/json's
// strict decoding, and answers false for everything else: syntax errors, unknown
// and duplicate fields, numbers out of range, types it has no plan for. What into
// holds is of no use then, and the caller decodes again by a reader that can
// say what is wrong.
func Decode(data []byte, into any) bool {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return false
	}
	p := parsePlanOf(v.Type().Elem())
	if p == nil {
		return false
	}
	d := decoder{data: data}
	d.space()
	if !p(&d, v.UnsafePointer()) {
		return false
	}
	d.space()
	return d.at == len(d.data)
}

// parsePlan reads a value into the zero value at p and moves on behind it.
type parsePlan func(d *decoder, p unsafe.Pointer) bool

var parsePlans sync.Map // reflect.Type -> parsePlan

func parsePlanOf(t reflect.Type) parsePlan {
	if known, ok := parsePlans.Load(t); ok {
		return known.(parsePlan)
	}
	return (&parseCompiler{open: map[reflect.Type]*parsePlan{}}).compile(t)
}

// decoder is a position in a document.
type decoder struct {
	data  []byte
	at    int
	depth int
}

// maxDepth bounds how deep values are nested; deeper ones are read elsewhere.
const maxDepth = 200

func (d *decoder) space() {
	for d.at < len(d.data) {
		switch d.data[d.at] {
		case ' ', '\n', '\t', '\r':
			d.at++
		default:
			return
		}
	}
}

// next skips space and takes a byte if it is the next one.
func (d *decoder) next(c byte) bool {
	d.space()
	if d.at < len(d.data) && d.data[d.at] == c {
		d.at++
		return true
	}
	return false
}

func (d *decoder) word(w string) bool {
	if len(d.data)-d.at < len(w) || string(d.data[d.at:d.at+len(w)]) != w {
		return false
	}
	d.at += len(w)
	return true
}

func (d *decoder) null() bool { return d.at < len(d.data) && d.data[d.at] == 'n' && d.word("null") }

// text takes a string and returns its bytes, which refer to the document unless
// they had to be unquoted.
func (d *decoder) text() ([]byte, bool) {
	if !d.next('"') {
		return nil, false
	}
	start, ascii := d.at, true
	for i := start; i < len(d.data); i++ {
		switch c := d.data[i]; {
		case plain[c]:
		case c == '"':
			if !ascii && !utf8.Valid(d.data[start:i]) {
				return d.unquote(start) // replaces what is invalid
			}
			d.at = i + 1
			return d.data[start:i], true
		case c == '\\':
			return d.unquote(start)
		case c < ' ':
			return nil, false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, false
}

// unquote takes a string with escapes in it.
func (d *decoder) unquote(start int) ([]byte, bool) {
	for i := start; i < len(d.data); i++ {
		switch d.data[i] {
		case '\\':
			i++
		case '"':
			var s string
			if json.Unmarshal(d.data[start-1:i+1], &s) != nil {
				return nil, false
			}
			d.at = i + 1
			return []byte(s), true
		}
	}
	return nil, false
}

// number takes the digits of an integer.
func (d *decoder) number() (string, bool) {
	start := d.at
	if d.at < len(d.data) && d.data[d.at] == '-' {
		d.at++
	}
	first := d.at
	for d.at < len(d.data) && d.data[d.at] >= '0' && d.data[d.at] <= '9' {
		d.at++
	}
	digits := d.at - first
	if digits == 0 || digits > 1 && d.data[first] == '0' {
		return "", false
	}
	if d.at < len(d.data) && (d.data[d.at] == '.' || d.data[d.at]|0x20 == 'e') {
		return "", false
	}
	return unsafe.String(&d.data[start], d.at-start), true
}

// raw takes any value and returns its text, the way a type's own method gets it.
func (d *decoder) raw() ([]byte, bool) {
	start := d.at
	if !d.skip() || !json.Valid(d.data[start:d.at]) {
		return nil, false
	}
	return d.data[start:d.at], true
}

// skip moves behind a value by its brackets and quotes alone.
func (d *decoder) skip() bool {
	depth := 0
	for d.at < len(d.data) {
		switch c := d.data[d.at]; c {
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return true // the end of what a bare word is in
			}
			depth--
			if depth == 0 {
				d.at++
				return true
			}
		case '"':
			if !d.skipText() {
				return false
			}
			if depth == 0 {
				return true
			}
			continue
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return true
			}
		}
		d.at++
	}
	return depth == 0
}

func (d *decoder) skipText() bool {
	for d.at++; d.at < len(d.data); d.at++ {
		switch d.data[d.at] {
		case '\\':
			d.at++
		case '"':
			d.at++
			return true
		}
	}
	return false
}

// members reads an object, calling fn behind each name's colon.
func (d *decoder) members(fn func(name []byte) bool) bool {
	if !d.next('{') {
		return false
	}
	if d.next('}') {
		return true
	}
	for {
		name, ok := d.text()
		if !ok || !d.next(':') {
			return false
		}
		d.space()
		if !fn(name) {
			return false
		}
		if d.next('}') {
			return true
		}
		if !d.next(',') {
			return false
		}
	}
}

func parseString(d *decoder, p unsafe.Pointer) bool {
	if d.null() {
		return true
	}
	b, ok := d.text()
	if ok {
		*(*string)(p) = share(b)
	}
	return ok
}

func parseBool(d *decoder, p unsafe.Pointer) bool {
	switch {
	case d.word("true"):
		*(*bool)(p) = true
		return true
	case d.word("false"):
		return true
	}
	return d.null()
}

func parseInt[T int | int32 | int64](bits int) parsePlan {
	return func(d *decoder, p unsafe.Pointer) bool {
		if d.null() {
			return true
		}
		digits, ok := d.number()
		if !ok {
			return false
		}
		n, err := strconv.ParseInt(digits, 10, bits)
		*(*T)(p) = T(n)
		return err == nil
	}
}

// parseOwn leaves a value to its type's own UnmarshalJSON.
func parseOwn(t reflect.Type) parsePlan {
	return func(d *decoder, p unsafe.Pointer) bool {
		raw, ok := d.raw()
		return ok && reflect.NewAt(t, p).Interface().(json.Unmarshaler).UnmarshalJSON(raw) == nil
	}
}

// parseStandard leaves a value without names in it to encoding/json.
func parseStandard(t reflect.Type) parsePlan {
	return func(d *decoder, p unsafe.Pointer) bool {
		raw, ok := d.raw()
		return ok && json.Unmarshal(raw, reflect.NewAt(t, p).Interface()) == nil
	}
}

// parseStringMap reads the commonest kind of map. A name that comes twice is for
// the strict reader to complain about.
func parseStringMap(d *decoder, p unsafe.Pointer) bool {
	if d.null() {
		return true
	}
	m := map[string]string{}
	*(*map[string]string)(p) = m
	return d.members(func(name []byte) bool {
		if _, twice := m[string(name)]; twice {
			return false
		}
		key := share(name)
		if d.null() {
			m[key] = ""
			return true
		}
		value, ok := d.text()
		if ok {
			m[key] = share(value)
		}
		return ok
	})
}

// isTime says whether a value is a string of the form that times have in
// Kubernetes: without a fraction of a second, in UTC.
func isTime(raw []byte) bool {
	return len(raw) == len(`"2006-01-02T15:04:05Z"`) && bytes.HasSuffix(raw, []byte(`Z"`))
}

// Member is one member of an object as it stands in the document.
type Member struct {
	Name  string
	Value []byte
}

// Members takes an object apart that is known to be well formed, because it was
// written here; of anything else it makes nothing useful, or answers false.
func Members(object []byte) ([]Member, bool) {
	d := decoder{data: object}
	var all []Member
	ok := d.members(func(name []byte) bool {
		start := d.at
		if !d.skip() || d.at == start {
			return false
		}
		all = append(all, Member{string(name), d.data[start:d.at]})
		return true
	})
	return all, ok && d.at == len(object)
}
