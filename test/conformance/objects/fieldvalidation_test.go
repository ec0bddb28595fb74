package objects

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"proa/pkg/proatest"
)

const widgets = "widgets.example.com"

// schemas of a Widget, in YAML.
const (
	anything = "{type: object, x-kubernetes-preserve-unknown-fields: true}"
	closed   = "{type: object, properties: {spec: {type: object, properties: " + fields + "}}}"
	open     = "{type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: " + fields + "}}}"
	fields   = `{
  template: {type: object, x-kubernetes-embedded-resource: true, properties: {
    metadata: {type: object, properties: {name: {type: string}}}, spec: {type: object}}},
  foo: {type: string},
  cronSpec: {type: string, pattern: '^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$'},
  ports: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [containerPort, protocol], items: {
    type: object, required: [containerPort, protocol], properties: {
      containerPort: {type: integer, format: int32}, hostIP: {type: string}, hostPort: {type: integer, format: int32},
      name: {type: string}, protocol: {type: string}}}}}`
)

// define makes the kind Widget, of one schema, and waits until it is served.
func (s *server) define(ctx context.Context, t *testing.T, schema string) {
	t.Helper()
	var props apiextensionsv1.JSONSchemaProps
	if err := yaml.UnmarshalStrict([]byte(schema), &props); err != nil {
		t.Fatal(err)
	}
	crds := must(clientset.NewForConfig(s.access))(t).ApiextensionsV1().CustomResourceDefinitions()
	must(crds.Create(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: widgets},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &props},
			}},
		},
	}, metav1.CreateOptions{}))(t)
	w := must(crds.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + widgets}))(t)
	defer w.Stop()
	for {
		for _, c := range next(ctx, t, w).Object.(*apiextensionsv1.CustomResourceDefinition).Status.Conditions {
			if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
				return
			}
		}
	}
}

// TestFieldsOfCustomResources creates and applies, strictly, what a schema knows
// and what it does not.
func TestFieldsOfCustomResources(t *testing.T) {
	t.Parallel()
	const (
		valid      = "spec:\n  foo: foo1\n  cronSpec: '* * * * */5'\n  ports:\n  - name: x\n    containerPort: 80\n    protocol: TCP\n"
		unknown    = "spec:\n  unknown: uk1\n  cronSpec: '* * * * */5'\n"
		extra      = "unknownField: unknown\nspec:\n  foo: foo1\n"
		wrong      = "spec:\n  cronSpec: never\n"
		duplicate  = "spec:\n  unknown: uk1\n  foo: foo1\n  foo: foo2\n"
		embedded   = "spec:\n  template:\n    apiVersion: foo/v1\n    kind: Sub\n    metadata:\n      unknownSubMeta: unknown\n      name: subobject\n"
		ofMetadata = "  unknownMeta: unknown\nspec:\n  foo: foo1\n"
	)
	for _, test := range []struct {
		name, schema, body string // the body follows the name in metadata
		created, applied   string // texts of the refusals of each; none: it succeeds
	}{
		{name: "unknown fields are kept where no schema tells", schema: anything, body: unknown},
		{name: "valid fields are kept", schema: closed, body: valid},
		{
			name: "a field outside of the schema is refused", schema: closed, body: extra,
			created: `strict decoding error: unknown field "unknownField"`, applied: ".unknownField: field not declared in schema",
		},
		{
			name: "a field below is refused like one at the root", schema: closed, body: unknown,
			created: `strict decoding error: unknown field "spec.unknown"`, applied: ".spec.unknown: field not declared in schema",
		},
		{
			name: "a value outside of the schema is refused", schema: closed, body: wrong,
			created: `spec.cronSpec: Invalid value: "never": spec.cronSpec in body should match`, applied: `spec.cronSpec: Invalid value: "never"`,
		},
		{
			name: "a field that is there twice is refused even where unknown ones are kept", schema: open, body: duplicate,
			created: `line 8: key "foo" already set in map`, applied: `line 8: key "foo" already set in map`,
		},
		{
			name: "an unknown field of metadata is refused", schema: open, body: ofMetadata,
			created: `strict decoding error: unknown field "metadata.unknownMeta"`, applied: ".metadata.unknownMeta: field not declared in schema",
		},
		{
			name: "an unknown field of metadata below is refused", schema: open, body: embedded,
			created: `unknown field "spec.template.metadata.unknownSubMeta"`, applied: ".spec.template.metadata.unknownSubMeta: field not declared in schema",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, s := within(t), newServer(t, proatest.Options{})
			s.define(ctx, t, test.schema)
			manifest := func(name string) []byte {
				return []byte("apiVersion: example.com/v1\nkind: Widget\nmetadata:\n  name: " + name + "\n" + test.body)
			}
			post := s.Discovery().RESTClient().Post().AbsPath("/apis/example.com/v1/widgets").SetHeader("Content-Type", "application/yaml")
			s.answers(ctx, t, "created", post.Body(manifest("created")), test.created)
			patch := s.Discovery().RESTClient().Patch(types.ApplyPatchType).AbsPath("/apis/example.com/v1/widgets/applied").Param("fieldManager", "test")
			s.answers(ctx, t, "applied", patch.Body(manifest("applied")), test.applied)
		})
	}
}

// answers sends a request to validate fields strictly. It must be refused with a
// text, or have made the object that was sent.
func (s *server) answers(ctx context.Context, t *testing.T, name string, request *rest.Request, refusal string) {
	t.Helper()
	answer, err := request.Param("fieldValidation", "Strict").DoRaw(ctx)
	if refusal != "" {
		if err == nil || !strings.Contains(decode(t, string(answer))["message"].(string), refusal) {
			t.Errorf("%s: want %q, got %s", name, refusal, answer)
		}
		if _, err := s.Discovery().RESTClient().Get().AbsPath("/apis/example.com/v1/widgets/" + name).DoRaw(ctx); !apierrors.IsNotFound(err) {
			t.Errorf("%s although refused: %v", name, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("%s: %v", name, fmt.Errorf("%w: %s", err, answer))
	}
	stored := must(s.Discovery().RESTClient().Get().AbsPath("/apis/example.com/v1/widgets/" + name).DoRaw(ctx))(t)
	if spec := decode(t, string(stored))["spec"].(map[string]any); spec["cronSpec"] != "* * * * */5" {
		t.Errorf("%s and stored as %s", name, stored)
	}
}
