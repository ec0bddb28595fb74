// Package emptied makes empty lists and maps of objects absent where JSON shows the
// difference: fields that are written even when empty read null, not [], for the
// protobuf that upstream stores knows no empty list.
package emptied

import (
	"reflect"
	"strings"
	"sync"
)

// Fields are the places in a Go type at which an empty list or map may be.
type Fields struct {
	here  []int     // fields of a struct that are shown when empty
	below []*inside // fields of a struct that hold such fields
}

// inside is a field with what is to be looked at in it.
type inside struct {
	index int
	*Fields
}

var (
	mu    sync.Mutex // guards known
	known = map[reflect.Type]*Fields{}
)

// For returns the places in the type that obj points to.
func For(obj any) *Fields {
	mu.Lock()
	defer mu.Unlock()
	return of(reflect.TypeOf(obj).Elem())
}

// of is called with mu held. A type inside itself (JSONSchemaProps) is seen once.
func of(t reflect.Type) *Fields {
	if f, ok := known[t]; ok {
		return f
	}
	f := &Fields{}
	known[t] = f
	if t.Kind() != reflect.Struct {
		return f
	}
	for i := range t.NumField() {
		m := t.Field(i)
		if !m.IsExported() || m.Name == "ObjectMeta" || m.Name == "TypeMeta" {
			continue
		}
		kind := m.Type.Kind()
		if (kind == reflect.Slice || kind == reflect.Map) && !strings.Contains(m.Tag.Get("json"), ",") && m.Type.Elem().Kind() != reflect.Uint8 {
			f.here = append(f.here, i)
		}
		if child := of(element(m.Type)); len(child.here)+len(child.below) > 0 {
			f.below = append(f.below, &inside{i, child})
		}
	}
	return f
}

// element is what lists and pointers of a type lead to.
func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// Clear makes what is empty in obj absent.
func (f *Fields) Clear(obj any) {
	if len(f.here)+len(f.below) > 0 {
		f.clear(reflect.ValueOf(obj).Elem())
	}
}

func (f *Fields) clear(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			f.clear(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			f.clear(v.Index(i))
		}
	case reflect.Struct:
		for _, i := range f.here {
			if field := v.Field(i); !field.IsNil() && field.Len() == 0 {
				field.SetZero()
			}
		}
		for _, child := range f.below {
			child.clear(v.Field(child.index))
		}
	}
}
