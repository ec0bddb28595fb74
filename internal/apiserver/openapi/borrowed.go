package openapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	apiregistration "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// definitions are the models that the modules describe themselves: of the common
// types and of the two groups whose types carry no documentation to reflect on.
func definitions(prefix string) map[string]common.OpenAPIDefinition {
	ref := func(name string) spec.Ref { return spec.MustCreateRef(prefix + name) }
	all := apiregistration.GetOpenAPIDefinitions(ref)
	for name, d := range apiextensions.GetOpenAPIDefinitions(ref) {
		all[name] = d
	}
	return all
}

var (
	definitionsV2 = sync.OnceValue(func() map[string]common.OpenAPIDefinition { return definitions("#/definitions/") })
	definitionsV3 = sync.OnceValue(func() map[string]common.OpenAPIDefinition { return definitions("#/components/schemas/") })
)

// borrow makes a model of what a module says, and those that it refers to. It
// reports false for a type that no module describes.
func (m *models) borrow(name string) bool {
	all := definitionsV2()
	if m.v3 {
		all = definitionsV3()
	}
	d, ok := all[name]
	if !ok {
		return false
	}
	s := d.Schema
	if v2, ok := s.Extensions[common.ExtensionV2Schema].(spec.Schema); ok && !m.v3 {
		s = v2
	}
	model := m.adapt(s)
	delete(model, common.ExtensionV2Schema)
	m.addKinds(model, name)
	m.all[name] = model
	for _, other := range d.Dependencies {
		if _, ok := m.all[other]; !ok {
			m.borrow(other)
		}
	}
	return true
}

// adapt writes a schema in the dialect of the document.
func (m *models) adapt(s spec.Schema) object {
	data, err := json.Marshal(s)
	out := object{}
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic(fmt.Sprintf("openapi: a module's own schema cannot be written: %v", err))
	}
	m.adaptIn(out)
	return out
}

// adaptIn leaves out defaults where OpenAPI 2 tells none, and of elements, which
// are never absent. In OpenAPI 3 nothing stands beside a reference.
func (m *models) adaptIn(s object) {
	if !m.v3 {
		delete(s, "default")
	}
	if m.plain && s["enum"] != nil {
		delete(s, "enum")
		s["description"], _, _ = strings.Cut(s["description"].(string), valuesFollow)
	}
	properties, _ := s["properties"].(object)
	for _, p := range properties {
		m.adaptIn(p.(object))
	}
	for _, name := range []string{"items", "additionalProperties"} {
		if element, ok := s[name].(object); ok {
			delete(element, "default")
			m.adaptIn(element)
		}
	}
	if ref, ok := s["$ref"]; ok && m.v3 && len(s) > 1 {
		delete(s, "$ref")
		s["allOf"] = []object{{"$ref": ref}}
	}
}
