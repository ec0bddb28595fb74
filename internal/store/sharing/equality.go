package sharing

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Equal reports whether what a and b point to, values of one type, is known to have
// the same content, so that both are written alike in every form: of times only the
// instant counts. It takes a fraction of the time of writing them, or of
// reflect.DeepEqual; that it says no means nothing.
func Equal(a, b any) bool {
	t := reflect.TypeOf(a)
	if t != reflect.TypeOf(b) || t.Kind() != reflect.Pointer {
		return false
	}
	same, ok := equalities.Load(t.Elem())
	if !ok {
		same, _ = equalities.LoadOrStore(t.Elem(), instants().compile(t.Elem()))
	}
	return same.(equality)(reflect.ValueOf(a).UnsafePointer(), reflect.ValueOf(b).UnsafePointer())
}

var equalities sync.Map // reflect.Type to equality

// instants is a compiler for which times are equal that are the same instant.
func instants() compiler {
	var same equality = func(a, b unsafe.Pointer) bool { return (*time.Time)(a).Equal(*(*time.Time)(b)) }
	return compiler{reflect.TypeFor[time.Time](): &same}
}

// equality says whether two values of a type, given by their addresses, have the
// same content, also in what they refer to. Nil differs from empty. It may say no
// of equal values of types that it does not look into.
type equality func(a, b unsafe.Pointer) bool

// compiler holds the equalities it has begun, so that types may contain themselves.
type compiler map[reflect.Type]*equality

func (c compiler) compile(t reflect.Type) equality {
	if begun, ok := c[t]; ok {
		if *begun != nil {
			return *begun
		}
		return func(a, b unsafe.Pointer) bool { return (*begun)(a, b) }
	}
	e := new(equality)
	c[t] = e
	*e = c.make(t)
	return *e
}

func (c compiler) make(t reflect.Type) equality {
	switch t {
	case reflect.TypeFor[time.Time]():
		return equal[time.Time]
	case reflect.TypeFor[resource.Quantity]():
		return equal[resource.Quantity]
	case reflect.TypeFor[corev1.ResourceList]():
		return sameMaps[corev1.ResourceName, resource.Quantity]
	case reflect.TypeFor[any]():
		return func(a, b unsafe.Pointer) bool { return sameTree(*(*any)(a), *(*any)(b)) }
	}
	switch t.Kind() {
	case reflect.String:
		return equal[string]
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		return equal[uint8]
	case reflect.Int32, reflect.Uint32:
		return equal[uint32]
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return equal[uint64]
	case reflect.Float64:
		return equal[float64]
	case reflect.Pointer:
		return c.pointer(t)
	case reflect.Slice:
		return c.slice(t)
	case reflect.Struct:
		return c.structure(t)
	case reflect.Map:
		return mapping(t)
	}
	return bothZero(t)
}

func equal[T comparable](a, b unsafe.Pointer) bool { return *(*T)(a) == *(*T)(b) }

func (c compiler) pointer(t reflect.Type) equality {
	element := c.compile(t.Elem())
	return func(a, b unsafe.Pointer) bool {
		x, y := *(*unsafe.Pointer)(a), *(*unsafe.Pointer)(b)
		return x == y || x != nil && y != nil && element(x, y)
	}
}

// header is a slice.
type header struct {
	array         unsafe.Pointer
	length, space int
}

func (h *header) clipped() header { return header{h.array, h.length, h.length} }

func (c compiler) slice(t reflect.Type) equality {
	if t.Elem().Kind() == reflect.Uint8 {
		return func(a, b unsafe.Pointer) bool {
			x, y := *(*[]byte)(a), *(*[]byte)(b)
			return (x == nil) == (y == nil) && bytes.Equal(x, y)
		}
	}
	element, size := c.compile(t.Elem()), t.Elem().Size()
	return func(a, b unsafe.Pointer) bool {
		x, y := (*header)(a), (*header)(b)
		if x.length != y.length || (x.array == nil) != (y.array == nil) {
			return false
		}
		if x.array == y.array {
			return true
		}
		for n := range uintptr(x.length) {
			if !element(unsafe.Add(x.array, n*size), unsafe.Add(y.array, n*size)) {
				return false
			}
		}
		return true
	}
}

func (c compiler) structure(t reflect.Type) equality {
	type field struct {
		offset uintptr
		same   equality
	}
	fields := make([]field, t.NumField())
	for n := range fields {
		f := t.Field(n)
		if !f.IsExported() {
			return bothZero(t)
		}
		fields[n] = field{f.Offset, c.compile(f.Type)}
	}
	return func(a, b unsafe.Pointer) bool {
		for n := range fields {
			f := &fields[n]
			if !f.same(unsafe.Add(a, f.offset), unsafe.Add(b, f.offset)) {
				return false
			}
		}
		return true
	}
}

func mapping(t reflect.Type) equality {
	if t.Key().Kind() == reflect.String && t.Elem().Kind() == reflect.String {
		return sameMaps[string, string]
	}
	return func(a, b unsafe.Pointer) bool {
		x, y := reflect.NewAt(t, a).Elem(), reflect.NewAt(t, b).Elem()
		return x.UnsafePointer() == y.UnsafePointer() || reflect.DeepEqual(x.Interface(), y.Interface())
	}
}

func sameMaps[K, V comparable](a, b unsafe.Pointer) bool {
	if *(*unsafe.Pointer)(a) == *(*unsafe.Pointer)(b) {
		return true
	}
	x, y := *(*map[K]V)(a), *(*map[K]V)(b)
	return (x == nil) == (y == nil) && maps.Equal(x, y)
}

func bothZero(t reflect.Type) equality {
	return func(a, b unsafe.Pointer) bool {
		return reflect.NewAt(t, a).Elem().IsZero() && reflect.NewAt(t, b).Elem().IsZero()
	}
}

// sameTree compares JSON without a type.
func sameTree(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		return ok && (x == nil) == (y == nil) && maps.EqualFunc(x, y, sameTree)
	case []any:
		y, ok := b.([]any)
		return ok && (x == nil) == (y == nil) && slices.EqualFunc(x, y, sameTree)
	case nil, bool, string, int64, float64:
		return a == b
	}
	return false
}
