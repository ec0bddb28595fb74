package jsonplan

import (
	"encoding/json"
	"slices"
	"strconv"
)

// AppendValue appends a JSON value as it lies in a custom resource: of maps, lists,
// strings, numbers, booleans and nil. Anything else is left to encoding/json.
func AppendValue(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case string:
		return appendString(b, v), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case map[string]any:
		return appendObject(b, v)
	case []any:
		return appendList(b, v)
	}
	text, err := json.Marshal(v)
	return append(b, text...), err
}

func appendObject(b []byte, m map[string]any) (_ []byte, err error) {
	if m == nil {
		return append(b, "null"...), nil
	}
	var few [24]string // mostly enough, and on the stack
	names := few[:0]
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	b = append(b, '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = AppendValue(append(appendString(b, name), ':'), m[name]); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

func appendList(b []byte, list []any) (_ []byte, err error) {
	if list == nil {
		return append(b, "null"...), nil
	}
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = AppendValue(b, v); err != nil {
			return b, err
		}
	}
	return append(b, ']'), nil
}

// DecodeObject reads a JSON object as sigs.k8s.io/json's strict decoding does, with
// integers as int64. It answers false for what that complains about, and for other
// numbers: the caller decodes again by a reader that can say what is wrong.
func DecodeObject(data []byte) (map[string]any, bool) {
	d := decoder{data: data}
	object, ok := d.object()
	d.space()
	return object, ok && d.at == len(d.data)
}

// value reads what comes behind any space.
func (d *decoder) value() (v any, ok bool) {
	if d.at == len(d.data) || d.depth == maxDepth {
		return nil, false
	}
	switch d.data[d.at] {
	case '{':
		return d.object()
	case '[':
		return d.list()
	case '"':
		b, ok := d.text()
		return string(b), ok
	case 't':
		return true, d.word("true")
	case 'f':
		return false, d.word("false")
	case 'n':
		return nil, d.word("null")
	}
	digits, ok := d.number()
	if !ok {
		return nil, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil
}

func (d *decoder) object() (map[string]any, bool) {
	m := map[string]any{}
	d.depth++
	ok := d.members(func(name []byte) bool {
		if _, twice := m[string(name)]; twice {
			return false
		}
		key := string(name)
		v, ok := d.value()
		m[key] = v
		return ok
	})
	d.depth--
	return m, ok
}

func (d *decoder) list() (list []any, ok bool) {
	list = []any{}
	d.at++
	if d.next(']') {
		return list, true
	}
	d.depth++
	for {
		d.space()
		v, ok := d.value()
		if !ok {
			return nil, false
		}
		list = append(list, v)
		if d.next(']') {
			d.depth--
			return list, true
		}
		if !d.next(',') {
			return nil, false
		}
	}
}
