package jsonplan

import (
	"encoding/json"
	"reflect"
	"strings"
	"unsafe"
)

// field is one property of an object.
type field struct {
	name   string
	key    []byte // "name":
	offset uintptr
	skip   func(p unsafe.Pointer) bool // omitempty, omitzero; nil: always there
	write  plan
}

func (c *compiler) structure(t reflect.Type) plan {
	fields, ok := c.fields(t, 0, nil)
	if !ok {
		return standard(t)
	}
	return func(b []byte, p unsafe.Pointer, m *Memo) ([]byte, error) {
		b = append(b, '{')
		start := len(b)
		for i := range fields {
			f := &fields[i]
			at := unsafe.Add(p, f.offset)
			if f.skip != nil && f.skip(at) {
				continue
			}
			if len(b) > start {
				b = append(b, ',')
			}
			b = append(b, f.key...)
			var err error
			if b, err = f.write(b, at, m); err != nil {
				return b, err
			}
		}
		return append(b, '}'), nil
	}
}

// fields lists the properties of a struct and of those embedded in it. It
// reports false for a struct whose rules are encoding/json's alone.
func (c *compiler) fields(t reflect.Type, base uintptr, list []field) ([]field, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Tag.Get("json") == "-" {
			continue
		}
		if f.Anonymous && name == "" {
			if f.Type.Kind() != reflect.Struct || implements(f.Type, marshalerType) || implements(f.Type, textType) {
				return nil, false
			}
			var ok bool
			if list, ok = c.fields(f.Type, base+f.Offset, list); !ok {
				return nil, false
			}
			continue
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if hasOption(options, "string") || !usual(name) || taken(list, name) {
			return nil, false
		}
		key, _ := json.Marshal(name) // a string: cannot fail
		list = append(list, field{name: name, key: append(key, ':'), offset: base + f.Offset, skip: skipper(f.Type, options), write: c.compile(f.Type)})
	}
	return list, true
}

func taken(list []field, name string) bool {
	for i := range list {
		if list[i].name == name {
			return true
		}
	}
	return false
}

// usual names are those that need no thought about quoting.
func usual(name string) bool {
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '$' {
			return false
		}
	}
	return true
}

func hasOption(options, want string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == want {
			return true
		}
	}
	return false
}

// skipper tells when a field is left out. Nil: never.
func skipper(t reflect.Type, options string) func(unsafe.Pointer) bool {
	zero := hasOption(options, "omitzero")
	empty := emptiness(t)
	switch {
	case zero && hasOption(options, "omitempty") && empty != nil:
		isZero := zeroness(t)
		return func(p unsafe.Pointer) bool { return isZero(p) || empty(p) }
	case zero:
		return zeroness(t)
	case hasOption(options, "omitempty"):
		return empty
	}
	return nil
}

type isZeroer interface{ IsZero() bool }

func zeroness(t reflect.Type) func(unsafe.Pointer) bool {
	if t.Implements(reflect.TypeFor[isZeroer]()) && t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface ||
		!t.Implements(reflect.TypeFor[isZeroer]()) && reflect.PointerTo(t).Implements(reflect.TypeFor[isZeroer]()) {
		return func(p unsafe.Pointer) bool { return reflect.NewAt(t, p).Interface().(isZeroer).IsZero() }
	}
	if t.Implements(reflect.TypeFor[isZeroer]()) {
		return func(p unsafe.Pointer) bool {
			v := reflect.NewAt(t, p).Elem()
			return v.IsNil() || v.Interface().(isZeroer).IsZero()
		}
	}
	return func(p unsafe.Pointer) bool { return reflect.NewAt(t, p).Elem().IsZero() }
}

// emptiness is what omitempty means for a type. Nil: structs are never empty.
func emptiness(t reflect.Type) func(unsafe.Pointer) bool {
	switch t.Kind() {
	case reflect.Struct:
		return nil
	case reflect.Bool:
		return func(p unsafe.Pointer) bool { return !*(*bool)(p) }
	case reflect.Int32:
		return func(p unsafe.Pointer) bool { return *(*int32)(p) == 0 }
	case reflect.Int64:
		return func(p unsafe.Pointer) bool { return *(*int64)(p) == 0 }
	case reflect.String:
		return func(p unsafe.Pointer) bool { return *(*string)(p) == "" }
	case reflect.Pointer:
		return func(p unsafe.Pointer) bool { return *(*unsafe.Pointer)(p) == nil }
	case reflect.Slice:
		return func(p unsafe.Pointer) bool { return len(*(*[]byte)(p)) == 0 }
	case reflect.Map:
		return func(p unsafe.Pointer) bool { return reflect.NewAt(t, p).Elem().Len() == 0 }
	case reflect.Array:
		return func(unsafe.Pointer) bool { return t.Len() == 0 }
	}
	return func(p unsafe.Pointer) bool { return reflect.NewAt(t, p).Elem().IsZero() }
}
