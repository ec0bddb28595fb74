// Package sharing lets objects that nobody changes any more have their equal
// parts in common: the pods of a template their containers, the versions of an
// object whatever an update has left alone.
package sharing

import (
	"reflect"
	"sync"
	"unsafe"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Parts makes obj refer to the parts of other that equal its own: the strings,
// maps, slices and pointers in its fields and in those of the structs inside it.
// It writes to no other memory than that of obj's own struct. Both are pointers to
// structs; objects of different types have nothing in common. Afterwards obj
// equals what it was before, and no part of either may be changed in place.
func Parts(obj, other any) {
	t := reflect.TypeOf(obj)
	if obj == other || t != reflect.TypeOf(other) || t.Kind() != reflect.Pointer {
		return
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		branches(u.Object, other.(*unstructured.Unstructured).Object)
		return
	}
	plan(t.Elem())(reflect.ValueOf(obj).UnsafePointer(), reflect.ValueOf(other).UnsafePointer())
}

// sharer makes the struct at is refer to the parts of the one at was.
type sharer func(is, was unsafe.Pointer)

var (
	plans  sync.Map // reflect.Type to sharer
	making sync.Mutex
)

// plan returns the sharer of an object's struct, which is made once.
func plan(t reflect.Type) sharer {
	if s, ok := plans.Load(t); ok {
		return s.(sharer)
	}
	making.Lock()
	defer making.Unlock()
	s := within(t, compiler{})
	plans.Store(t, s)
	return s
}

// within is the sharer of a struct that lies inside the object.
func within(t reflect.Type, c compiler) sharer {
	var fields []sharer
	for n := range t.NumField() {
		f := t.Field(n)
		if share := part(f, c); share != nil {
			fields = append(fields, func(is, was unsafe.Pointer) {
				share(unsafe.Add(is, f.Offset), unsafe.Add(was, f.Offset))
			})
		}
	}
	return func(is, was unsafe.Pointer) {
		for _, share := range fields {
			share(is, was)
		}
	}
}

// part is the sharer of a field, nil for one that refers to nothing.
func part(f reflect.StructField, c compiler) sharer {
	if !f.IsExported() {
		return nil
	}
	same := c.compile(f.Type)
	switch f.Type.Kind() {
	case reflect.Struct:
		return within(f.Type, c)
	case reflect.String:
		return shared[string](same)
	case reflect.Pointer, reflect.Map:
		return shared[unsafe.Pointer](same)
	case reflect.Slice:
		return func(is, was unsafe.Pointer) {
			if same(is, was) { // without the spare room, which somebody may fill
				*(*header)(is) = (*header)(was).clipped()
			}
		}
	}
	return nil
}

func shared[T any](same equality) sharer {
	return func(is, was unsafe.Pointer) {
		if same(is, was) {
			*(*T)(is) = *(*T)(was)
		}
	}
}

// branches shares the values of an object without a Go type: whole fields of the
// object, and of its metadata, which are maps of its own.
func branches(is, was map[string]any) {
	for k, v := range is {
		w, ok := was[k]
		if !ok {
			continue
		}
		if k == "metadata" {
			mine, ok1 := v.(map[string]any)
			others, ok2 := w.(map[string]any)
			if ok1 && ok2 {
				branches(mine, others)
			}
		} else if sameTree(v, w) {
			is[k] = w
		}
	}
}
