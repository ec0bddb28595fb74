package apiextensions

import (
	"fmt"
	"strings"

	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"proa/internal/apis"
)

// fields are what a field selector may match. There is no index of them, as there is
// none upstream: a list tries every object, at the price of a few lookups.
func (v *version) fields() map[string]func(apis.Object) string {
	out := map[string]func(apis.Object) string{}
	for _, f := range v.spec.SelectableFields {
		read, err := newReader(f.JSONPath)
		if err != nil {
			continue // validation lets no such path pass
		}
		s := &selectable{version: v, read: read}
		s.declared, s.defaulted = along(v.schema, read.fields)
		out[strings.TrimPrefix(f.JSONPath, ".")] = s.text
	}
	return out
}

// selectable is a declared field that selectors may name.
type selectable struct {
	version   *version
	read      *reader
	declared  bool // it is never pruned
	defaulted bool // a default may give it a value
}

// text is the field of a stored object as selectors see it. To complete the object
// first would cost more than all else, and a declared field that has a value, or can
// get none by a default, is the same before and after.
func (s *selectable) text(obj apis.Object) string {
	u := obj.(*unstructured.Unstructured)
	if from, err := s.version.definition.versionOf(u); s.declared && err == nil && from == s.version {
		if value := s.read.value(u.Object); value != nil || !s.defaulted {
			return selected(value)
		}
	}
	loaded, err := s.version.load(obj)
	if err != nil {
		return ""
	}
	return selected(s.read.value(loaded.(*unstructured.Unstructured).Object))
}

func selected(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return value
	}
	return fmt.Sprint(value)
}

// along says whether all fields on a path are declared, and whether one of them has a default.
func along(s *structural.Structural, path []string) (declared, defaulted bool) {
	for _, name := range path {
		field, ok := s.Properties[name]
		if !ok {
			return false, defaulted
		}
		defaulted = defaulted || field.Default.Object != nil
		s = &field
	}
	return len(path) > 0, defaulted
}
