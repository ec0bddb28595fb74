package openapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/applyconfigurations"
	merge "sigs.k8s.io/structured-merge-diff/v6/schema"

	"proa/internal/apis"
	"proa/internal/apis/marker"
)

// object is a JSON object; its keys are written in order.
type object = map[string]any

// models collects the schemas that a document refers to, in the dialect of
// OpenAPI 2 or 3. A model is made once per document, when it is first named.
type models struct {
	dialect
	prefix string // of a reference: #/definitions/ or #/components/schemas/
	merge  *merge.Schema
	kinds  map[string][]schema.GroupVersionKind // by model
	all    map[string]object
}

func newModels(d dialect) *models {
	m := &models{dialect: d, prefix: "#/definitions/", merge: mergeSchema(), kinds: map[string][]schema.GroupVersionKind{}, all: map[string]object{}}
	if d.v3 {
		m.prefix = "#/components/schemas/"
	}
	return m
}

// mergeSchema is what client-go's apply configurations know about lists and
// maps: which merge by key, as a set, or not at all.
var mergeSchema = sync.OnceValue(func() *merge.Schema {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	typed, err := applyconfigurations.NewTypeConverter(apis.Scheme()).ObjectToTyped(pod)
	if err != nil {
		return &merge.Schema{}
	}
	return typed.Schema()
})

// kind says that t is the body of an API kind.
func (m *models) kind(t reflect.Type, gvk schema.GroupVersionKind) {
	name := modelName(t)
	if !slices.Contains(m.kinds[name], gvk) {
		m.kinds[name] = append(m.kinds[name], gvk)
	}
}

// ref refers to the model of a struct type, making it if need be.
func (m *models) ref(t reflect.Type) object {
	name := modelName(t)
	if _, ok := m.all[name]; !ok && !m.borrow(name) {
		m.all[name] = nil // taken, so that recursive types end
		m.all[name] = m.model(t, name)
	}
	return object{"$ref": m.prefix + name}
}

// refName refers to a model added by name.
func (m *models) refName(name string) object { return object{"$ref": m.prefix + name} }

// modelName is the name that generated code gives the type, or one made of its
// package path in the same style.
func modelName(t reflect.Type) string {
	if n, ok := reflect.Zero(t).Interface().(interface{ OpenAPIModelName() string }); ok {
		return n.OpenAPIModelName()
	}
	path := strings.TrimPrefix(t.PkgPath(), "k8s.io/")
	path = strings.ReplaceAll(strings.ReplaceAll(path, "-", "_"), "/", ".")
	return "io.k8s." + path + "." + t.Name()
}

// model makes the schema of a named type.
func (m *models) model(t reflect.Type, name string) object {
	s := object{}
	docs := docsOf(t)
	if docs[""] != "" {
		s["description"] = docs[""]
	}
	if m.scalarModel(t, s) {
		return s
	}
	s["type"] = "object"
	def, _ := m.merge.FindNamedType(name)
	if def.Map != nil && def.Map.ElementRelationship == merge.Atomic {
		s["x-kubernetes-map-type"] = "atomic"
	} else if def.Map != nil && def.Map.ElementRelationship == merge.Separable {
		s["x-kubernetes-map-type"] = "granular"
	}
	properties, required := object{}, []string(nil)
	m.fields(t, def.Map, properties, &required)
	if len(properties) > 0 {
		s["properties"] = properties
	}
	if len(required) > 0 {
		s["required"] = required
	}
	if len(m.kinds[name]) == 0 { // part of another kind
		m.kinds[name] = registered(t)
	}
	if u := marker.UnionOf(t); u != nil {
		s["x-kubernetes-unions"] = []object{union(t, u.Discriminator)}
	}
	m.addKinds(s, name)
	return s
}

// registered are the kinds that a type is the body of whether served or not.
func registered(t reflect.Type) []schema.GroupVersionKind {
	obj, ok := reflect.New(t).Interface().(runtime.Object)
	if !ok {
		return nil
	}
	kinds, _, err := apis.Scheme().ObjectKinds(obj)
	if err != nil {
		return nil // no kind
	}
	return kinds
}

// union names the members of a union and, if it has one, its discriminator.
func union(t reflect.Type, discriminator string) object {
	members, u := object{}, object{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Name == discriminator {
			u["discriminator"] = name
		} else {
			members[name] = f.Name
		}
	}
	u["fields-to-discriminateBy"] = members
	return u
}

// addKinds names the kinds that a model is the body of.
func (m *models) addKinds(s object, name string) {
	if kinds := m.kinds[name]; len(kinds) > 0 {
		s["x-kubernetes-group-version-kind"] = kindList(kinds)
	}
}

func kindList(kinds []schema.GroupVersionKind) []object {
	list := make([]object, len(kinds))
	for i, k := range kinds {
		list[i] = kindObject(k)
	}
	return list
}

func kindObject(k schema.GroupVersionKind) object {
	return object{"group": k.Group, "version": k.Version, "kind": k.Kind}
}

// scalarModel fills in types that write themselves as a scalar or as anything:
// times, quantities, int-or-string, raw JSON.
func (m *models) scalarModel(t reflect.Type, s object) bool {
	if v, ok := reflect.Zero(t).Interface().(interface{ OpenAPISchemaType() []string }); ok {
		if one, ok := v.(interface{ OpenAPIV3OneOfTypes() []string }); ok && m.v3 {
			var types []object
			for _, name := range one.OpenAPIV3OneOfTypes() {
				types = append(types, object{"type": name})
			}
			s["oneOf"] = types
		} else if types := v.OpenAPISchemaType(); len(types) > 0 {
			s["type"] = types[0]
		}
		if f, ok := v.(interface{ OpenAPISchemaFormat() string }); ok && f.OpenAPISchemaFormat() != "" {
			s["format"] = f.OpenAPISchemaFormat()
		}
		return true
	}
	return false
}

// fields adds the properties of a struct, embedded ones included.
func (m *models) fields(t reflect.Type, def *merge.Map, properties object, required *[]string) {
	docs := docsOf(t)
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" && f.Anonymous {
			if inner := deref(f.Type); inner.Kind() == reflect.Struct {
				m.fields(inner, def, properties, required)
			}
			continue
		}
		if name == "" || !tagged {
			name = f.Name
		}
		properties[name] = m.property(t, f, docs[name], mergeField(def, name))
		if must, said := marker.Required(t, f.Name); must || !said && !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			*required = append(*required, name)
		}
	}
}

func mergeField(def *merge.Map, name string) merge.StructField {
	if def == nil {
		return merge.StructField{}
	}
	f, _ := def.FindField(name)
	return f
}

// valuesFollow ends the description of an enumeration, before its values.
const valuesFollow = "\n\nPossible enum values:"

// property makes the schema of one field of parent with all that is known about it.
func (m *models) property(parent reflect.Type, f reflect.StructField, doc string, mf merge.StructField) object {
	s := m.of(f.Type)
	value, hasDefault := m.defaultOf(f, mf)
	if s["$ref"] != nil && m.v3 && (doc != "" || hasDefault) {
		s = object{"allOf": []object{s}}
	}
	if values, ok := s["enum"].([]string); ok && doc != "" {
		doc += valuesFollow + "\n - `\"" + strings.Join(values, "\"`\n - `\"") + "\"`"
	}
	if doc != "" {
		s["description"] = doc
	}
	if hasDefault {
		s["default"] = value
	}
	if v := f.Tag.Get("patchStrategy"); v != "" {
		s["x-kubernetes-patch-strategy"] = v
	}
	if v := f.Tag.Get("patchMergeKey"); v != "" {
		s["x-kubernetes-patch-merge-key"] = v
	}
	mergeExtensions(s, mf.Type)
	if s["type"] == "array" && neverApplied(parent) {
		s["x-kubernetes-list-type"] = "atomic"
	}
	return s
}

// neverApplied says whether a type is part of a review: these are only sent, so
// that client-go does not know how they merge. Their lists are all of one piece.
func neverApplied(t reflect.Type) bool {
	return strings.HasPrefix(t.PkgPath(), "k8s.io/api/authentication/") || strings.HasPrefix(t.PkgPath(), "k8s.io/api/authorization/")
}

// defaultOf is what a field is when nobody says: its zero value, where that is
// always written. OpenAPI 2 documents tell no defaults.
func (m *models) defaultOf(f reflect.StructField, mf merge.StructField) (any, bool) {
	switch {
	case !m.v3:
		return nil, false
	case mf.Default != nil:
		return plain(mf.Default), true
	case f.Type.Kind() == reflect.Struct:
		return object{}, !isNamedScalar(f.Type) && f.Type != rawExtension
	case strings.Contains(f.Tag.Get("json"), "omitempty"):
		return nil, false
	}
	switch f.Type.Kind() {
	case reflect.String:
		return "", true
	case reflect.Bool:
		return false, true
	case reflect.Int, reflect.Int32, reflect.Int64:
		return 0, true
	}
	return nil, false
}

// plain turns what a YAML reader makes into what JSON can write.
func plain(v any) any {
	switch v := v.(type) {
	case map[any]any:
		m := object{}
		for key, value := range v {
			m[fmt.Sprint(key)] = plain(value)
		}
		return m
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return v
}

// mergeExtensions says how a list or map merges, where that differs from what
// its type alone says.
func mergeExtensions(s object, ref merge.TypeRef) {
	if list := ref.Inlined.List; list != nil {
		switch {
		case list.ElementRelationship == merge.Atomic:
			s["x-kubernetes-list-type"] = "atomic"
		case len(list.Keys) > 0:
			s["x-kubernetes-list-type"], s["x-kubernetes-list-map-keys"] = "map", list.Keys
		case list.ElementRelationship == merge.Associative:
			s["x-kubernetes-list-type"] = "set"
		}
	}
	if e := ref.ElementRelationship; e != nil && *e == merge.Separable || ref.Inlined.Map != nil && ref.Inlined.Map.ElementRelationship == merge.Separable {
		s["x-kubernetes-map-type"] = "granular"
	}
	atomicMap := ref.Inlined.Map != nil && ref.Inlined.Map.ElementRelationship == merge.Atomic
	if atomicMap || ref.NamedType != nil && ref.ElementRelationship != nil && *ref.ElementRelationship == merge.Atomic {
		s["x-kubernetes-map-type"] = "atomic"
	}
}

// of makes the schema of a type as it stands in a field.
func (m *models) of(t reflect.Type) object {
	t = deref(t)
	switch t.Kind() {
	case reflect.Struct:
		return m.ref(t)
	case reflect.Slice, reflect.Array:
		if isNamedScalar(t) {
			return m.ref(t)
		}
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "format": "byte"}
		}
		return object{"type": "array", "items": m.of(t.Elem())}
	case reflect.Map:
		if isNamedScalar(t) {
			return m.ref(t)
		}
		return object{"type": "object", "additionalProperties": m.of(t.Elem())}
	case reflect.String:
		if values := marker.Values(t); values != nil && !m.plain {
			return object{"type": "string", "enum": values}
		}
	}
	return basic(t.Kind())
}

// isNamedScalar reports whether a slice or map type describes itself.
func isNamedScalar(t reflect.Type) bool {
	_, ok := reflect.Zero(t).Interface().(interface{ OpenAPISchemaType() []string })
	return ok
}

func basic(k reflect.Kind) object {
	switch k {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int64, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Int, reflect.Int32, reflect.Int16, reflect.Int8, reflect.Uint, reflect.Uint16, reflect.Uint8:
		return object{"type": "integer", "format": "int32"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number", "format": "double"}
	case reflect.String:
		return object{"type": "string"}
	}
	return object{} // an interface: anything
}

func deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// docsOf is the generated documentation of a type: its own under "", and each
// field's under its JSON name. A method promoted from an embedded type does not
// count.
func docsOf(t reflect.Type) map[string]string {
	v, ok := reflect.Zero(t).Interface().(interface{ SwaggerDoc() map[string]string })
	if !ok || t.Kind() == reflect.Struct && promotes(t) {
		return nil
	}
	return v.SwaggerDoc()
}

func promotes(t reflect.Type) bool {
	own := reflect.Zero(t).Interface().(interface{ SwaggerDoc() map[string]string }).SwaggerDoc()
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.Anonymous {
			continue
		}
		inner, ok := reflect.Zero(deref(f.Type)).Interface().(interface{ SwaggerDoc() map[string]string })
		if ok && own[""] != "" && inner.SwaggerDoc()[""] == own[""] {
			return true
		}
	}
	return false
}

// marshal writes a document; map keys are sorted, so equal documents are equal bytes.
func marshal(doc object) ([]byte, error) { return json.Marshal(doc) }
