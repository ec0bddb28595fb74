package apiextensions

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// warnings tells of schemas that are accepted but do less than they seem to:
// formats that nothing checks, sets of items that do not merge. What the old
// definition had is not told again.
func warnings(d, old *apiextensionsv1.CustomResourceDefinition) []string {
	had := map[string]bool{}
	if old != nil {
		for _, text := range slices.Concat(formatWarnings(old), setWarnings(old)) {
			had[text] = true
		}
	}
	return slices.DeleteFunc(slices.Concat(formatWarnings(d), setWarnings(d)), func(text string) bool { return had[text] })
}

func formatWarnings(d *apiextensionsv1.CustomResourceDefinition) []string {
	var texts []string
	eachSchema(d, func(s *apiextensionsv1.JSONSchemaProps) {
		if s.Format == "" {
			return
		}
		of := &spec.Schema{SchemaProps: spec.SchemaProps{Format: s.Format, Type: []string{s.Type}}}
		for _, format := range schemavalidation.GetUnrecognizedFormats(of, environment.DefaultCompatibilityVersion()) {
			texts = append(texts, fmt.Sprintf("unrecognized format %q", format))
		}
	})
	return texts
}

func setWarnings(d *apiextensionsv1.CustomResourceDefinition) []string {
	var texts []string
	eachSchema(d, func(s *apiextensionsv1.JSONSchemaProps) {
		if s.XListType == nil || *s.XListType != "set" || s.Items == nil || s.Items.Schema == nil {
			return
		}
		if t := s.Items.Schema.Type; t == "object" || t == "array" {
			texts = append(texts, fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", t))
		}
	})
	slices.Sort(texts)
	return slices.Compact(texts)
}

// eachSchema visits every node of every version's schema, properties by name.
func eachSchema(d *apiextensionsv1.CustomResourceDefinition, visit func(*apiextensionsv1.JSONSchemaProps)) {
	for i := range d.Spec.Versions {
		if s := d.Spec.Versions[i].Schema; s != nil && s.OpenAPIV3Schema != nil {
			walk(s.OpenAPIV3Schema, visit)
		}
	}
}

func walk(s *apiextensionsv1.JSONSchemaProps, visit func(*apiextensionsv1.JSONSchemaProps)) {
	visit(s)
	for _, properties := range []map[string]apiextensionsv1.JSONSchemaProps{s.Properties, s.PatternProperties} {
		names := make([]string, 0, len(properties))
		for name := range properties {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			p := properties[name]
			walk(&p, visit)
		}
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(s.Items.Schema, visit)
	}
	for _, more := range []*apiextensionsv1.JSONSchemaPropsOrBool{s.AdditionalProperties, s.AdditionalItems} {
		if more != nil && more.Schema != nil {
			walk(more.Schema, visit)
		}
	}
	for _, list := range [][]apiextensionsv1.JSONSchemaProps{s.AllOf, s.AnyOf, s.OneOf} {
		for i := range list {
			walk(&list[i], visit)
		}
	}
	if s.Not != nil {
		walk(s.Not, visit)
	}
}
