package marker

import (
	"reflect"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// findIn is find in a list that may not have been there.
func (m *member) findIn(list, item reflect.Value) reflect.Value {
	if !list.IsValid() {
		return reflect.Value{}
	}
	return m.find(list, item)
}

// find returns the item of list that stands for the same thing as item.
func (m *member) find(list, item reflect.Value) reflect.Value {
	for i := range list.Len() {
		if m.same(list.Index(i), item) {
			return list.Index(i)
		}
	}
	return reflect.Value{}
}

func (m *member) same(a, b reflect.Value) bool {
	if len(m.keys) == 0 {
		return equal(a, b)
	}
	for _, key := range m.keys {
		if !equal(byJSONName(a, key), byJSONName(b, key)) {
			return false
		}
	}
	return true
}

func byJSONName(v reflect.Value, name string) reflect.Value {
	v = indirect(v)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if jsonName(f) == name {
			return v.Field(i)
		}
		if f.Anonymous && jsonName(f) == "" {
			if inner := byJSONName(v.Field(i), name); inner.IsValid() {
				return inner
			}
		}
	}
	return reflect.Value{}
}

func indirect(v reflect.Value) reflect.Value {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		return v.Elem()
	}
	return v
}

func equal(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.String:
		return a.String() == b.String()
	case reflect.Bool:
		return a.Bool() == b.Bool()
	case reflect.Int, reflect.Int32, reflect.Int64:
		return a.Int() == b.Int()
	case reflect.Slice, reflect.Map:
		if a.Len() == 0 && b.Len() == 0 {
			return true
		}
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
	}
	return apiequality.Semantic.DeepEqual(a.Interface(), b.Interface())
}

// unset reports whether a field was left out: a struct never is.
func unset(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func sortedKeys(v reflect.Value) []reflect.Value {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	return keys
}
