package jsonplan

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	unmarshalerType     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// parseCompiler is compiler for reading. The plan of a type that it does not
// cover is nil, and so is that of every type which holds one.
type parseCompiler struct{ open map[reflect.Type]*parsePlan }

func (c *parseCompiler) compile(t reflect.Type) parsePlan {
	if known, ok := parsePlans.Load(t); ok {
		return known.(parsePlan)
	}
	if self, ok := c.open[t]; ok { // nil for a recursive type that turns out not to be covered
		return func(d *decoder, p unsafe.Pointer) bool { return *self != nil && (*self)(d, p) }
	}
	self := new(parsePlan)
	c.open[t] = self
	*self = c.make(t)
	parsePlans.Store(t, *self)
	return *self
}

func (c *parseCompiler) make(t reflect.Type) parsePlan {
	switch t {
	case reflect.TypeFor[metav1.Time]():
		return parseTime
	case reflect.TypeFor[metav1.FieldsV1]():
		return parseFields
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return c.pointer(t)
	case t.Kind() == reflect.Interface, implements(t, textUnmarshalerType):
		return nil
	case implements(t, unmarshalerType):
		return parseOwn(t)
	}
	switch t.Kind() {
	case reflect.Bool:
		return parseBool
	case reflect.Int:
		return parseInt[int](64)
	case reflect.Int32:
		return parseInt[int32](32)
	case reflect.Int64:
		return parseInt[int64](64)
	case reflect.Float32, reflect.Float64, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return parseStandard(t)
	case reflect.String:
		return parseString
	case reflect.Struct:
		return c.structure(t)
	case reflect.Slice:
		return c.slice(t)
	case reflect.Map:
		return c.mapping(t)
	}
	return nil
}

func (c *parseCompiler) pointer(t reflect.Type) parsePlan {
	to, elem := c.compile(t.Elem()), t.Elem()
	if to == nil {
		return nil
	}
	return func(d *decoder, p unsafe.Pointer) bool {
		if d.null() {
			return true
		}
		fresh := reflect.New(elem).UnsafePointer()
		*(*unsafe.Pointer)(p) = fresh
		return to(d, fresh)
	}
}

func (c *parseCompiler) slice(t reflect.Type) parsePlan {
	if t.Elem().Kind() == reflect.Uint8 {
		return parseStandard(t)
	}
	item := c.compile(t.Elem())
	if item == nil {
		return nil
	}
	return func(d *decoder, p unsafe.Pointer) bool {
		if d.null() {
			return true
		}
		if !d.next('[') || d.depth == maxDepth {
			return false
		}
		list := reflect.NewAt(t, p).Elem()
		if d.next(']') {
			list.Set(reflect.MakeSlice(t, 0, 0))
			return true
		}
		d.depth++
		defer func() { d.depth-- }()
		for n := 0; ; n++ {
			if n == list.Cap() {
				list.Grow(max(1, min(n, 1<<10))) // lists are short: no room to spare
			}
			list.SetLen(n + 1)
			d.space()
			if !item(d, list.Index(n).Addr().UnsafePointer()) {
				return false
			}
			if d.next(']') {
				return true
			}
			if !d.next(',') {
				return false
			}
		}
	}
}

func (c *parseCompiler) mapping(t reflect.Type) parsePlan {
	if t.Key().Kind() != reflect.String || implements(t.Key(), textUnmarshalerType) {
		return nil
	}
	if t == reflect.TypeFor[map[string]string]() {
		return parseStringMap
	}
	elem := c.compile(t.Elem())
	if elem == nil {
		return nil
	}
	return func(d *decoder, p unsafe.Pointer) bool {
		if d.null() {
			return true
		}
		if d.depth == maxDepth {
			return false
		}
		d.depth++
		defer func() { d.depth-- }()
		m := reflect.MakeMap(t)
		reflect.NewAt(t, p).Elem().Set(m)
		return d.members(func(name []byte) bool {
			key := reflect.ValueOf(share(name)).Convert(t.Key())
			if m.MapIndex(key).IsValid() {
				return false
			}
			value := reflect.New(t.Elem())
			if !elem(d, value.UnsafePointer()) {
				return false
			}
			m.SetMapIndex(key, value.Elem())
			return true
		})
	}
}

// parseField is one property of an object that is read.
type parseField struct {
	offset uintptr
	read   parsePlan
	bit    uint64
}

func (c *parseCompiler) structure(t reflect.Type) parsePlan {
	fields := map[string]parseField{}
	if !c.fields(t, 0, fields) {
		return nil
	}
	return func(d *decoder, p unsafe.Pointer) bool {
		if d.null() {
			return true
		}
		if d.depth == maxDepth {
			return false
		}
		d.depth++
		defer func() { d.depth-- }()
		var seen uint64
		return d.members(func(name []byte) bool {
			f, ok := fields[string(name)]
			if !ok || seen&f.bit != 0 {
				return false
			}
			seen |= f.bit
			return f.read(d, unsafe.Add(p, f.offset))
		})
	}
}

// fields lists the properties of a struct and of those embedded in it; false for
// a struct that is read by rules of encoding/json's alone, or has too many.
func (c *parseCompiler) fields(t reflect.Type, base uintptr, into map[string]parseField) bool {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case tag == "-":
			continue
		case f.Anonymous && name == "":
			if f.Type.Kind() != reflect.Struct || implements(f.Type, unmarshalerType) || implements(f.Type, textUnmarshalerType) ||
				!c.fields(f.Type, base+f.Offset, into) {
				return false
			}
			continue
		case !f.IsExported():
			continue
		case name == "":
			name = f.Name
		}
		read := c.compile(f.Type)
		if _, taken := into[name]; taken || read == nil || hasOption(options, "string") || len(into) == 64 {
			return false
		}
		into[name] = parseField{offset: base + f.Offset, read: read, bit: 1 << len(into)}
	}
	return true
}

// parseFields reads a set of fields as servers write it, which needs no second look.
// It is kept as it is, once for all that were read lately: objects of one template
// have the same.
func parseFields(d *decoder, p unsafe.Pointer) bool {
	end, ok := fieldSet(d.data, d.at, 0)
	if !ok {
		return parseOwn(reflect.TypeFor[metav1.FieldsV1]())(d, p)
	}
	(*metav1.FieldsV1)(p).Raw = shareFields(d.data[d.at:end])
	d.at = end
	return true
}

// parseTime reads the usual form of a time quickly.
func parseTime(d *decoder, p unsafe.Pointer) bool {
	raw, ok := d.raw()
	if !ok {
		return false
	}
	t := (*metav1.Time)(p)
	if isTime(raw) {
		if at, err := time.Parse(time.RFC3339, string(raw[1:len(raw)-1])); err == nil {
			t.Time = at.Local()
			return true
		}
	}
	return t.UnmarshalJSON(raw) == nil
}
