package apiextensions_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
)

// another is a definition like the usual one, of another kind.
func another(t testing.TB, group, plural, kind string, versions ...string) *crd {
	d := definition(t, "Namespaced", versions...)
	d.Name, d.Spec.Group = plural+"."+group, group
	d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind}
	return d
}

func TestDefinitionsAreListedAndDeletedByLabel(t *testing.T) {
	w := newWorld(t)
	api := w.ext.ApiextensionsV1().CustomResourceDefinitions()
	for i := range 10 {
		d := another(t, "example.com", "labelled"+strconv.Itoa(i)+"s", "Labelled"+strconv.Itoa(i), spec(size))
		d.Labels = map[string]string{"a": "b"}
		w.establish(d)
	}
	w.establish(definition(t, "Namespaced", spec(size)))
	list, err := api.List(w.ctx, metav1.ListOptions{LabelSelector: "a=b"})
	if err != nil || len(list.Items) != 10 {
		t.Fatalf("%d, %v", len(list.Items), err)
	}
	if err := api.DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "a=b"}); err != nil {
		t.Fatal(err)
	}
	for _, d := range list.Items {
		w.until(d.Name, func(d *crd) bool { return d == nil })
	}
	list, err = api.List(w.ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "widgets.example.com" {
		t.Errorf("%v, %v", list, err)
	}
}

func TestTheStatusOfADefinitionIsReadUpdatedAndPatched(t *testing.T) {
	w := newWorld(t)
	d := w.establish(definition(t, "Namespaced", spec(size)))
	api := w.ext.ApiextensionsV1().CustomResourceDefinitions()
	d.Status.Conditions = append(d.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: "Updated", Status: "True"})
	d.Spec.Names.Categories = []string{"ignored"}
	d, err := api.UpdateStatus(w.ctx, d, metav1.UpdateOptions{})
	if err != nil || len(d.Status.Conditions) != 3 || d.Spec.Names.Categories != nil {
		t.Fatalf("%v, %v", d, err)
	}
	patch, _ := json.Marshal(map[string]any{"status": map[string]any{"conditions": d.Status.Conditions[:2]}})
	d, err = api.Patch(w.ctx, d.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil || len(d.Status.Conditions) != 2 {
		t.Fatalf("%v, %v", d, err)
	}
	d.Status.Conditions = nil
	d.Labels = map[string]string{"x": "z"}
	if d, err = api.Update(w.ctx, d, metav1.UpdateOptions{}); err != nil || len(d.Status.Conditions) != 2 {
		t.Errorf("the main resource changed the status: %v, %v", d, err)
	}
}

func TestTheGroupOfDefinitionsIsDiscovered(t *testing.T) {
	w := newWorld(t)
	found := false
	for _, g := range w.fetch("/apis", "application/json")["groups"].([]any) {
		if dig(g, "name") == "apiextensions.k8s.io" {
			found = true
			wantText(t, dig(g, "preferredVersion", "groupVersion"), "apiextensions.k8s.io/v1")
		}
	}
	if !found {
		t.Error("no group")
	}
	wantText(t, dig(w.fetch("/apis/apiextensions.k8s.io", "application/json"), "preferredVersion", "version"), "v1")
	wantText(t, w.fetch("/apis/apiextensions.k8s.io/v1", "application/json")["resources"].([]any)[0].(map[string]any)["name"], "customresourcedefinitions")
}

func TestADiscoveryClientFindsANewKind(t *testing.T) {
	w := newWorld(t)
	client := discovery.NewDiscoveryClientForConfigOrDie(w.config)
	has := func() bool {
		_, lists, err := client.ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
			return l.GroupVersion == "example.com/v1" && l.APIResources[0].Name == "widgets"
		})
	}
	if has() {
		t.Error("found before it is defined")
	}
	w.establish(definition(t, "Namespaced", spec(size)))
	if !has() {
		t.Error("not found")
	}
}

func TestEveryKindIsPublished(t *testing.T) {
	w := newWorld(t)
	w.establish(another(t, "one.example.com", "foos", "Foo", "name: v1\n"+spec(size), "name: v2\n"+spec("other: {type: string}")))
	w.establish(another(t, "one.example.com", "bars", "Bar", "name: v1\n"+spec(size)))
	w.establish(another(t, "two.example.com", "foos", "Foo", "name: v3\n"+spec(size)))
	published := func(names ...string) {
		t.Helper()
		definitions := w.fetch("/openapi/v2", "application/json")["definitions"].(map[string]any)
		for _, name := range []string{"com.example.one.v1.Foo", "com.example.one.v2.Foo", "com.example.one.v3.Foo", "com.example.one.v1.Bar", "com.example.two.v3.Foo"} {
			if _, ok := definitions[name]; ok != slices.Contains(names, name) {
				t.Errorf("%s published: %t", name, ok)
			}
		}
	}
	published("com.example.one.v1.Foo", "com.example.one.v2.Foo", "com.example.one.v1.Bar", "com.example.two.v3.Foo")
	w.update("foos.one.example.com", func(d *crd) { d.Spec.Versions[1].Name = "v3" })
	published("com.example.one.v1.Foo", "com.example.one.v3.Foo", "com.example.one.v1.Bar", "com.example.two.v3.Foo")
	w.update("foos.one.example.com", func(d *crd) { d.Spec.Versions[1].Served = false })
	published("com.example.one.v1.Foo", "com.example.one.v1.Bar", "com.example.two.v3.Foo")
	if code := w.fetch("/openapi/v3/apis/one.example.com/v3", "application/json")["code"]; code != 404 {
		t.Errorf("code %v", code)
	}
	if err := w.ext.ApiextensionsV1().CustomResourceDefinitions().Delete(w.ctx, "foos.two.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("foos.two.example.com", func(d *crd) bool { return d == nil })
}

func TestFieldSelectorsWorkInEveryVersionThroughAWebhook(t *testing.T) {
	h := newWebhook(t)
	w := newWorld(t)
	d := definition(t, "Namespaced", hostPort, hostAnd)
	d.Spec.Conversion = h.conversion()
	w.establish(d)
	events := map[string]watch.Interface{}
	for version, selector := range map[string]string{"v1": "spec.hostPort=one:1", "v2": "spec.host=one"} {
		e, err := w.in(version, "default").Watch(w.ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Stop()
		events[version] = e
	}
	w.create("spec: {hostPort: 'one:1'}")
	if _, err := w.in("v1", "default").Create(w.ctx, widget(t, "b", "spec: {hostPort: 'two:1'}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.merge("{spec: {hostPort: 'two:2'}}"); err != nil {
		t.Fatal(err)
	}
	for version, e := range events {
		for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
			got := <-e.ResultChan()
			if u := got.Object.(interface{ GetName() string }); got.Type != want || u.GetName() != "a" {
				t.Errorf("%s: %s of %s, want %s of a", version, got.Type, u.GetName(), want)
			}
		}
	}
	list, err := w.in("v2", "default").List(w.ctx, metav1.ListOptions{FieldSelector: "spec.host=two"})
	if err != nil || len(list.Items) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	_, err = w.in("v2", "default").List(w.ctx, metav1.ListOptions{FieldSelector: "spec.hostPort=one:1"})
	wantError(t, err, 400, "field label not supported: spec.hostPort")
}
