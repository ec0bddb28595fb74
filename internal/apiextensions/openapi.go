package apiextensions

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	generated "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// openAPI implements apis.Custom.OpenAPI. OpenAPI 2 cannot say that an object
// has known fields and others, too: there such a kind has no fields at all, or
// kubectl would refuse the others. Its documents name no defaults either.
func (v *version) openAPI(v3 bool) map[string]any {
	if v.declared == nil || !v3 && v.schema.XPreserveUnknownFields {
		return nil
	}
	s, err := structural.NewStructural(v.declared)
	if err != nil || len(structural.ValidateStructural(nil, s)) > 0 {
		return nil
	}
	s = s.Unfold()
	if !v3 {
		s = openapiv2.ToStructuralOpenAPIV2(s)
		dropDefaults.Visit(s)
	}
	return asJSON(s.ToKubeOpenAPI(), v.selectable())
}

var dropDefaults = structural.Visitor{Structural: func(s *structural.Structural) bool {
	had := s.Default.Object != nil
	s.Default.Object = nil
	return had
}}

func (v *version) selectable() []any {
	var fields []any
	for _, f := range v.spec.SelectableFields {
		fields = append(fields, map[string]any{"fieldPath": strings.TrimPrefix(f.JSONPath, ".")})
	}
	return fields
}

func asJSON(s *spec.Schema, selectable []any) map[string]any {
	raw, err := json.Marshal(s)
	if err != nil {
		return nil
	}
	var out map[string]any
	if json.Unmarshal(raw, &out) != nil {
		return nil
	}
	if selectable != nil {
		out["x-kubernetes-selectable-fields"] = selectable
	}
	return out
}

// merge returns what makes, once, the schema by which server-side apply merges
// objects of all versions. A schema that cannot be used leaves merging by shape.
func (d *definition) merge() func() managedfields.TypeConverter {
	return sync.OnceValue(func() managedfields.TypeConverter {
		models := metaModels()
		for _, v := range d.versions {
			models[modelName(v.kind)] = v.mergeModel()
		}
		c, err := managedfields.NewTypeConverter(models, false)
		if err != nil {
			return managedfields.NewDeducedTypeConverter()
		}
		return c
	})
}

// mergeModel is the version's schema as a model among those of metadata.
func (v *version) mergeModel() *spec.Schema {
	s := &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	if v.declared != nil {
		if typed, err := structural.NewStructural(v.declared); err == nil {
			s = typed.Unfold().ToKubeOpenAPI()
		}
	}
	embedMeta(s)
	addMeta(s)
	s.AddExtension("x-kubernetes-group-version-kind", []any{
		map[string]any{"group": v.kind.Group, "version": v.kind.Version, "kind": v.kind.Kind},
	})
	return s
}

const (
	objectMeta     = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
	componentsPath = "#/components/schemas/"
)

func addMeta(s *spec.Schema) {
	s.SetProperty("apiVersion", *spec.StringProperty())
	s.SetProperty("kind", *spec.StringProperty())
	s.SetProperty("metadata", *spec.RefSchema(componentsPath + objectMeta))
}

// embedMeta gives embedded resources the fields that every resource has.
func embedMeta(s *spec.Schema) {
	for name, field := range s.Properties {
		embedMeta(&field)
		s.Properties[name] = field
	}
	if s.Items != nil && s.Items.Schema != nil {
		embedMeta(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		embedMeta(s.AdditionalProperties.Schema)
	}
	if embedded, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); embedded {
		addMeta(s)
	}
}

// metaModels are ObjectMeta and what it refers to.
func metaModels() map[string]*spec.Schema {
	all := generated.GetOpenAPIDefinitions(func(name string) spec.Ref {
		return spec.MustCreateRef(componentsPath + common.EscapeJsonPointer(name))
	})
	models := map[string]*spec.Schema{}
	for pending := []string{objectMeta}; len(pending) > 0; {
		name := pending[0]
		pending = pending[1:]
		if definition, ok := all[name]; ok && models[name] == nil {
			models[name] = &definition.Schema
			pending = append(pending, definition.Dependencies...)
		}
	}
	return models
}

func modelName(k schema.GroupVersionKind) string {
	parts := strings.Split(k.Group, ".")
	slices.Reverse(parts)
	return strings.Join(append(parts, k.Version, k.Kind), ".")
}
