package apiextensions

import (
	"encoding/json"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"

	declared "proa/internal/apis/apiextensions"
	"proa/internal/store/backend"
)

// FuzzDefinition judges definitions with any schema and rule; one that is accepted
// has to judge any object, and soon.
func FuzzDefinition(f *testing.F) {
	const object = `{"metadata":{"name":"a"},"spec":{"a":1,"b":["x","y"],"c":{"k":"v"},"d":null}}`
	for _, rule := range []string{
		"self.spec.a > 0", "self.spec.b.all(x, x.size() < 3)", "self.spec.a == oldSelf.spec.a", "has(self.spec.c)", "self.spec.b.exists(x, x.matches('('))", "true ||", "", "self",
		"self.spec.b.map(x, self.spec.b.map(y, x + y)).size() > 0", "self.metadata.name.startsWith('a')", "string(1/0) == ''", "duration('1h') > duration('1m')", "self.spec.c.k.find('v+') == 'v'",
		"self.spec.b.sum() > 0", "quantity(self.spec.c.k).isGreaterThan(quantity('1'))", "oldSelf.hasValue()", "self.spec.__int__ == 1", "\x00", "[[[[[[1]]]]]].size() == 1", "!!!!!!!!true",
	} {
		f.Add(`{"a":{"type":"integer"},"b":{"type":"array","maxItems":5,"items":{"type":"string","maxLength":9}},"c":{"type":"object","additionalProperties":{"type":"string"}}}`, rule, object)
	}
	for _, schema := range []string{
		`{"a":{"type":"integer","default":1,"minimum":2}}`, `{"b":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","properties":{"k":{"type":"string"}}}}}`,
		`{"c":{"x-kubernetes-preserve-unknown-fields":true}}`, `{"a":{"x-kubernetes-int-or-string":true}}`, `{"c":{"type":"object","x-kubernetes-embedded-resource":true}}`, `{"a":{"type":"string","pattern":"^(a+)+$","format":"date"}}`,
		`{"a":{"$ref":"#"}}`, `{"a":{"type":"string","enum":["x",null]},"d":{"type":"object","nullable":true,"default":null}}`, `{"a":{"allOf":[{"not":{"minimum":1}}],"type":"integer"}}`,
	} {
		f.Add(schema, "true", object)
	}
	f.Fuzz(func(t *testing.T, schema, rule, text string) {
		var u unstructured.Unstructured
		properties := map[string]apiextensionsv1.JSONSchemaProps{}
		if len(schema) > 2000 || len(rule) > 500 || len(text) > 2000 || json.Unmarshal([]byte(schema), &properties) != nil ||
			kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &u.Object) != nil || u.Object == nil {
			return
		}
		d := fuzzed(properties, rule)
		r := &declared.CustomResourceDefinitions
		r.Default(d)
		r.PrepareCreate(d)
		if errs := r.Validate(t.Context(), d); len(errs) > 0 {
			return
		}
		d.Status.AcceptedNames = d.Spec.Names
		compiled, _, err := prepare(d, backend.Resolver{})
		if err != nil {
			t.Fatalf("an accepted definition does not compile: %v", err)
		}
		defer compiled.end()
		u.SetAPIVersion("example.com/v1")
		u.SetKind("Widget")
		v := compiled.storage
		if _, err := v.coerce(&u, true); err != nil {
			return
		}
		begun := time.Now()
		v.validate(t.Context(), &u)
		v.validateUpdate(t.Context(), &u, u.DeepCopy())
		if took := time.Since(begun); took > time.Minute {
			t.Fatalf("judging took %v", took)
		}
	})
}

func fuzzed(properties map[string]apiextensionsv1.JSONSchemaProps, rule string) *apiextensionsv1.CustomResourceDefinition {
	schema := &apiextensionsv1.JSONSchemaProps{
		Type:       "object",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: properties}},
	}
	if rule != "" {
		schema.XValidations = apiextensionsv1.ValidationRules{{Rule: rule, MessageExpression: "'it is ' + string(" + rule + ")"}, {Rule: rule}}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema}}},
		},
	}
}
