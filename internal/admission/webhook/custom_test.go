package webhook

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"proa/internal/apiextensions"
	"proa/internal/client"
)

const widgets = `
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - &v1
    name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          data:
            type: object
            properties: {known: {type: string}, filled: {type: string, default: by the schema}}
  - {<<: *v1, name: v2, storage: false}
`

var definitions = client.Ref{Resource: schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}}

func definition(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal([]byte(widgets), crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// serveWidgets has widgets served, as the controller of definitions would.
func (w *world) serveWidgets() {
	w.t.Helper()
	made := w.must(w.create(definitions, definition(w.t))).(*apiextensionsv1.CustomResourceDefinition).DeepCopy()
	made.Status.AcceptedNames = made.Spec.Names
	made.Status.StoredVersions = []string{"v1"}
	for _, c := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		made.Status.Conditions = append(made.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: c, Status: apiextensionsv1.ConditionTrue})
	}
	at := definitions
	at.Name, at.Subresource = made.Name, "status"
	w.must(w.api.Update(w.ctx, at, made, metav1.UpdateOptions{}))
	if _, err := apiextensions.New(apiextensions.Config{Store: w.store, Catalogue: w.catalogue}); err != nil {
		w.t.Fatal(err)
	}
}

func widgetRef(version, name string) client.Ref {
	return client.Ref{Resource: schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "widgets"}, Namespace: "default", Name: name}
}

func widget(version, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/" + version, "kind": "Widget", "metadata": map[string]any{"name": name}, "data": map[string]any{},
	}}
}

func TestCustomResourceIsMutatedAndPruned(t *testing.T) {
	w := newWorld(t)
	w.serveWidgets()
	got := w.serve("/m", patches(`[{"op":"add","path":"/data/known","value":"yes"},{"op":"add","path":"/data/unknown","value":"yes"},{"op":"remove","path":"/data/filled"}]`))
	w.mutate("m", w.hook("m", "/m", rules(ruleFor("example.com", "v1", "widgets", "CREATE"))))
	made := w.must(w.create(widgetRef("v1", ""), widget("v1", "a"))).(*unstructured.Unstructured)
	data := made.Object["data"].(map[string]any)
	if data["known"] != "yes" || data["unknown"] != nil || data["filled"] != "by the schema" {
		t.Errorf("data %v", data)
	}
	if r := got.all()[0]; r.Kind.Kind != "Widget" || !strings.Contains(string(r.Object.Raw), `"apiVersion":"example.com/v1"`) {
		t.Errorf("kind %v, object %s", r.Kind, r.Object.Raw)
	}
}

func TestCustomResourceIsShownInTheVersionOfTheRule(t *testing.T) {
	w := newWorld(t)
	w.serveWidgets()
	got := w.serve("/m", patches(`[{"op":"add","path":"/data/known","value":"yes"}]`))
	w.mutate("m", w.hook("m", "/m", rules(ruleFor("example.com", "v1", "widgets", "CREATE", "UPDATE"))))
	made := w.must(w.create(widgetRef("v2", ""), widget("v2", "a"))).(*unstructured.Unstructured)
	if made.GetAPIVersion() != "example.com/v2" || made.Object["data"].(map[string]any)["known"] != "yes" {
		t.Errorf("made %v", made.Object)
	}
	w.must(w.api.Patch(w.ctx, widgetRef("v2", "a"), types.MergePatchType, []byte(`{"metadata":{"labels":{"k":"v"}}}`), metav1.PatchOptions{}))
	for _, r := range got.all() {
		if r.Kind.Version != "v1" || r.Resource.Version != "v1" || r.RequestKind.Version != "v2" || !strings.Contains(string(r.Object.Raw), `"apiVersion":"example.com/v1"`) {
			t.Errorf("request %+v %s", r, r.Object.Raw)
		}
	}
	if n := len(got.all()); n != 2 {
		t.Errorf("%d requests", n)
	}
}

func TestCustomResourceIsRefused(t *testing.T) {
	w := newWorld(t)
	w.serveWidgets()
	w.must(w.create(widgetRef("v1", ""), widget("v1", "a")))
	w.serve("/v", denies("no widgets"))
	w.validate("v", w.hook("v", "/v", rules(ruleFor("example.com", "v1", "widgets", "CREATE", "UPDATE", "DELETE"))))
	_, err := w.create(widgetRef("v1", ""), widget("v1", "b"))
	wantError(t, err, "denied the request: no widgets")
	_, err = w.api.Patch(w.ctx, widgetRef("v1", "a"), types.MergePatchType, []byte(`{"data":{"known":"x"}}`), metav1.PatchOptions{})
	wantError(t, err, "denied the request: no widgets")
	_, err = w.api.Delete(w.ctx, widgetRef("v1", "a"), metav1.DeleteOptions{})
	wantError(t, err, "denied the request: no widgets")
}

func TestDefinitionIsRefused(t *testing.T) {
	w := newWorld(t)
	w.serve("/v", denies("no kinds"))
	w.validate("v", w.hook("v", "/v", rules(ruleFor("apiextensions.k8s.io", "*", "customresourcedefinitions", "CREATE"))))
	_, err := w.create(definitions, definition(t))
	wantError(t, err, "denied the request: no kinds")
}

// As the first version is stored and the second written, a webhook is in the way of both.
func TestStorageVersionMayChangeUnderAWebhook(t *testing.T) {
	w := newWorld(t)
	w.serveWidgets()
	w.serve("/m", func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return patches(`[{"op":"add","path":"/data/known","value":"` + string(r.Operation) + `"}]`)(r)
	})
	w.mutate("m", w.hook("m", "/m", rules(ruleFor("example.com", "*", "widgets", "CREATE", "UPDATE"))))
	w.must(w.create(widgetRef("v1", ""), widget("v1", "a")))
	at := definitions
	at.Name = "widgets.example.com"
	w.must(w.api.Patch(w.ctx, at, types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`), metav1.PatchOptions{}))
	if _, err := apiextensions.New(apiextensions.Config{Store: w.store, Catalogue: w.catalogue}); err != nil {
		t.Fatal(err)
	}
	patched := w.must(w.api.Patch(w.ctx, widgetRef("v2", "a"), types.MergePatchType, []byte(`{"data":{"filled":"by hand"}}`), metav1.PatchOptions{})).(*unstructured.Unstructured)
	if data := patched.Object["data"].(map[string]any); data["filled"] != "by hand" || data["known"] != "UPDATE" {
		t.Errorf("data %v", data)
	}
}

func TestConfigurationsAreListedAndDeletedByLabel(t *testing.T) {
	w := newWorld(t)
	w.serve("/v", denies("no"))
	w.serve("/m", patches(`[{"op":"add","path":"/data/k","value":"changed"}]`))
	for i := range 10 {
		name := string(rune('a' + i))
		labels := map[string]string{"set": "x"}
		w.must(w.create(ref("mutatingwebhookconfigurations"), &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Webhooks:   []admissionregistrationv1.MutatingWebhook{w.hook(name, "/m", rules(ruleFor("", "v1", "configmaps", "CREATE")))},
		}))
		hooks := w.hook(name, "/v", rules(ruleFor("", "v1", "secrets", "CREATE")))
		w.must(w.create(ref("validatingwebhookconfigurations"), &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: hooks.Name, ClientConfig: hooks.ClientConfig, Rules: hooks.Rules,
				SideEffects: hooks.SideEffects, AdmissionReviewVersions: hooks.AdmissionReviewVersions}},
		}))
	}
	selected := metav1.ListOptions{LabelSelector: "set=x"}
	probe := func(name string) (string, error) {
		cm, err := w.create(ref("configmaps"), configMap(name, map[string]string{"k": "sent"}))
		w.must(cm, err)
		_, err = w.create(ref("secrets"), secret(name))
		return dataOf(cm)["k"], err
	}
	k, err := probe("before")
	wantError(t, err, "denied the request: no")
	if k != "changed" {
		t.Errorf("k is %s", k)
	}
	for _, resource := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
		list, err := w.api.List(w.ctx, ref(resource), selected)
		if err != nil || len(list.Items) != 10 {
			t.Fatalf("%s: %v, %v", resource, list, err)
		}
		if err := w.api.DeleteCollection(w.ctx, ref(resource), metav1.DeleteOptions{}, selected); err != nil {
			t.Fatal(err)
		}
	}
	k, err = probe("after")
	wantError(t, err, "")
	if k != "sent" {
		t.Errorf("k is %s", k)
	}
}

// Without a configuration the plugins do not so much as allocate.
func TestNothingConfiguredCostsNothing(t *testing.T) {
	w := newWorld(t)
	a := w.attributes(configMap("a", nil))
	if n := testing.AllocsPerRun(100, func() {
		for _, p := range w.plugins {
			switch p := p.(type) {
			case *Mutating:
				_ = p.Admit(w.ctx, a)
			case *Validating:
				_ = p.Validate(w.ctx, a)
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
