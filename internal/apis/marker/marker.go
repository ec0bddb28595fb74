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
}

// typeName is a type's import path, a dot, and its name.
type typeName string

func nameOf(t reflect.Type) typeName { return typeName(t.PkgPath() + "." + t.Name()) }

var byType = sync.OnceValue(func() map[typeName]*marks { return read(table) })

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

// Values returns the values of an enumeration, sorted; nil when t is not one.
func Values(t reflect.Type) []string {
	if m := byType()[nameOf(t)]; m != nil && t.Kind() == reflect.String {
		return m.values
	}
	return nil
}
