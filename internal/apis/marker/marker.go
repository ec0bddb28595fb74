// Package marker knows what the source of the API types says beside their
// fields: upstream's declarative validation tags (KEP-5073), the feature gate a
// field waits for, and the values of an enumeration. The table is made from the
// modules that go.mod names (go generate); the package applies it to objects by
// reflection, so a kind needs no generated code.
package marker

import (
	_ "embed"
	"reflect"
	"strings"
	"sync"
)

//go:generate go run ./gen

//go:embed markers.txt
var table string

// marks are what the source says of one type.
type marks struct {
	own    []string            // tags of the type itself
	fields map[string][]string // by Go field name
	values []string            // of an enumeration
	union  *Union
	must   map[string]bool // Go fields of which more is said than their JSON tag says
}

// Union says that at most one field of a struct is set.
type Union struct {
	Discriminator string // the Go field that says which; empty: none does
}

// typeName is a type's import path, a dot, and its name.
type typeName string

func nameOf(t reflect.Type) typeName { return typeName(t.PkgPath() + "." + t.Name()) }

var byType = sync.OnceValue(func() map[typeName]*marks { return withUnmarked(read(table)) })

func read(table string) map[typeName]*marks {
	all := map[typeName]*marks{}
	var pkg string
	var current *marks
	of := func(name string) *marks {
		key := typeName(pkg + "." + name)
		if all[key] == nil {
			all[key] = &marks{fields: map[string][]string{}}
		}
		return all[key]
	}
	for line := range strings.Lines(table) {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch kind {
		case "p":
			pkg = rest
		case "e":
			name, values, _ := strings.Cut(rest, " ")
			of(name).values = strings.Split(values, ",")
		case "r":
			words := strings.Fields(rest)
			m := of(words[0])
			m.must = map[string]bool{}
			for _, field := range words[1:] {
				m.must[field[1:]] = field[0] == '+'
			}
		case "u":
			name, discriminator, _ := strings.Cut(rest, " ")
			of(name).union = &Union{discriminator}
		case "t":
			words := strings.Split(rest, "\t")
			current = of(words[0])
			current.own = words[1:]
		case "f":
			words := strings.Split(rest, "\t")
			current.fields[words[0]] = words[1:]
		}
	}
	return all
}

// UnionOf says whether t is a union; nil when it is none.
func UnionOf(t reflect.Type) *Union {
	if m := byType()[nameOf(t)]; m != nil {
		return m.union
	}
	return nil
}

// Required says whether a Go field of t must be there; not said: its JSON tag holds.
func Required(t reflect.Type, field string) (must, said bool) {
	if m := byType()[nameOf(t)]; m != nil {
		must, said = m.must[field]
	}
	return must, said
}

// Values returns the values of an enumeration, sorted; nil when t is not one.
func Values(t reflect.Type) []string {
	if m := byType()[nameOf(t)]; m != nil && t.Kind() == reflect.String {
		return m.values
	}
	return nil
}
