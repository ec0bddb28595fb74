package policy

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apiextensions"
	"proa/internal/client"
)

const limits = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: limits.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: limits, singular: limit, kind: Limit, listKind: LimitList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          want: {type: string}
          items: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, size: {type: integer}}}}
`

// serveLimits has limits served, as the controller of definitions would.
func (w *world) serveLimits() {
	w.t.Helper()
	w.apply(limits)
	at := client.Ref{Resource: schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, Name: "limits.example.com"}
	obj, err := w.api.Get(w.ctx, at, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	crd := obj.(*apiextensionsv1.CustomResourceDefinition).DeepCopy()
	crd.Status.AcceptedNames, crd.Status.StoredVersions = crd.Spec.Names, []string{"v1"}
	for _, c := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		crd.Status.Conditions = append(crd.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: c, Status: apiextensionsv1.ConditionTrue})
	}
	at.Subresource = "status"
	if _, err := w.api.Update(w.ctx, at, crd, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := apiextensions.New(apiextensions.Config{Store: w.validating.config.Store, Catalogue: w.catalogue}); err != nil {
		w.t.Fatal(err)
	}
}

var limitResource = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "limits"}

func (w *world) limit(name string, rest map[string]any) (client.Object, error) {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Limit", "metadata": map[string]any{"name": name}}}
	for k, v := range rest {
		u.Object[k] = v
	}
	return w.api.Create(w.ctx, client.Ref{Resource: limitResource, Namespace: "default"}, u, metav1.CreateOptions{})
}

func TestCustomResourcesAreParams(t *testing.T) {
	w := newWorld(t)
	w.serveLimits()
	if _, err := w.limit("l", map[string]any{"want": "1"}); err != nil {
		t.Fatal(err)
	}
	w.apply(validating(`paramKind: {apiVersion: example.com/v1, kind: Limit}
  validations: [{expression: "object.data.x == params.want", messageExpression: "'want ' + params.want + ' of ' + params.metadata.name"}]`, "paramRef: {name: l, parameterNotFoundAction: Deny}"))
	w.apply(good)
	if err := w.try(bad); err == nil || !strings.Contains(err.Error(), "denied request: want 1 of l") {
		t.Errorf("%v", err)
	}
}

func TestCustomResourcesAreJudgedAndMutated(t *testing.T) {
	w := newWorld(t)
	w.serveLimits()
	forLimits := func(manifest string) string {
		manifest = strings.Replace(manifest, `apiGroups: [""]`, "apiGroups: [example.com]", 1)
		manifest = strings.Replace(manifest, `apiGroups: ["", apps]`, "apiGroups: [example.com]", 1)
		manifest = strings.Replace(manifest, "resources: [configmaps, deployments]", "resources: [limits]", 1)
		return strings.Replace(manifest, "resources: [configmaps]", "resources: [limits]", 1)
	}
	w.apply(forLimits(mutating("m", `
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{items: [Object.items{name: 'b', size: 2}]}"}}]`)))
	w.apply(forLimits(validating(`validations: [{expression: "object.want != 'no'", message: refused}]`, "")))
	made, err := w.limit("l", map[string]any{"want": "yes", "items": []any{map[string]any{"name": "a", "size": int64(1)}}})
	if err != nil {
		t.Fatal(err)
	}
	items, _, _ := unstructured.NestedSlice(made.(*unstructured.Unstructured).Object, "items")
	if len(items) != 2 || items[0].(map[string]any)["name"] != "a" || items[1].(map[string]any)["size"] != int64(2) {
		t.Errorf("items %v", items)
	}
	if _, err := w.limit("n", map[string]any{"want": "no"}); err == nil || !strings.Contains(err.Error(), "denied request: refused") {
		t.Errorf("%v", err)
	}
}
