package apiextensions_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
)

func conditionOf(d *crd, t apiextensionsv1.CustomResourceDefinitionConditionType) string {
	c := apihelpers.FindCRDCondition(d, t)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason + ": " + c.Message
}

func TestADefinitionGetsItsNamesAndIsEstablished(t *testing.T) {
	w := newWorld(t)
	d := definition(t, "Namespaced", spec(size))
	d.Spec.Names.ShortNames, d.Spec.Names.Categories = []string{"wd"}, []string{"all"}
	d = w.establish(d)
	wantText(t, d.Status.AcceptedNames, `{"plural":"widgets","singular":"widget","shortNames":["wd"],"kind":"Widget","listKind":"WidgetList","categories":["all"]}`)
	wantText(t, conditionOf(d, apiextensionsv1.NamesAccepted), "True NoConflicts: no conflicts found")
	wantText(t, conditionOf(d, apiextensionsv1.Established), "True InitialNamesAccepted: the initial names have been accepted")
	wantText(t, d.Status.StoredVersions, `["v1"]`)
	resources := w.fetch("/apis/example.com/v1", "application/json")["resources"].([]any)
	wantText(t, resources[0].(map[string]any)["shortNames"], `["wd"]`)
	wantText(t, resources[0].(map[string]any)["categories"], `["all"]`)
}

func TestNamesThatAreTakenWaitUntilTheyAreFree(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec(size)))
	other := definition(t, "Namespaced", spec(size))
	other.Name, other.Spec.Names.Plural, other.Spec.Names.Singular = "gadgets.example.com", "gadgets", "gadget"
	other.Spec.Names.ShortNames = []string{"widget"}
	api := w.ext.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := api.Create(w.ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := w.until(other.Name, func(d *crd) bool { return conditionOf(d, apiextensionsv1.NamesAccepted) != "" })
	wantText(t, conditionOf(d, apiextensionsv1.NamesAccepted), `False ListKindConflict: "WidgetList" is already in use`)
	wantText(t, conditionOf(d, apiextensionsv1.Established), "False NotAccepted: not all names are accepted")
	if code := w.fetch("/apis/example.com/v1/gadgets", "application/json")["code"]; code != 404 {
		t.Errorf("code %v", code)
	}
	if err := api.Delete(w.ctx, "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until(other.Name, func(d *crd) bool { return apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) })
}

func TestDeletingADefinitionRemovesItsObjects(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec(size)))
	w.create("spec: {}")
	kept := widget(t, "kept", "spec: {}")
	kept.SetFinalizers([]string{"example.com/hold"})
	if _, err := w.in("v1", "other").Create(w.ctx, kept, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	api := w.ext.ApiextensionsV1().CustomResourceDefinitions()
	if err := api.Delete(w.ctx, "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	d := w.until("widgets.example.com", func(d *crd) bool {
		return strings.Contains(conditionOf(d, apiextensionsv1.Terminating), "InProgress")
	})
	wantText(t, conditionOf(d, apiextensionsv1.Terminating), "True InstanceDeletionInProgress: CustomResource deletion is in progress")
	_, err := w.in("v1", "default").Create(w.ctx, widget(t, "late", ""), metav1.CreateOptions{})
	wantError(t, err, 403, "create not allowed while custom resource definition is terminating")
	resources := w.fetch("/apis/example.com/v1", "application/json")["resources"].([]any)
	wantText(t, resources[0].(map[string]any)["verbs"], `["delete","deletecollection","get","list","watch"]`)
	if _, err := w.in("v1", "other").Patch(w.ctx, "kept", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	lifetime := w.lifetime(d)
	w.until("widgets.example.com", func(d *crd) bool { return d == nil })
	<-lifetime
	if code := w.fetch("/apis/example.com/v1/widgets", "application/json")["code"]; code != 404 {
		t.Errorf("code %v", code)
	}
	if code := w.fetch("/apis/example.com", "application/json")["code"]; code != 404 {
		t.Errorf("code %v", code)
	}
	w.establish(definition(t, "Cluster", spec("other: {type: string}")))
	list, err := w.in("v1", "").List(w.ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := w.in("v1", "").Create(w.ctx, widget(t, "a", "spec: {other: x}"), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}

func TestVersionsAreTheSameObjectsUnderAnotherName(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", "name: v1\n"+spec(size),
		"name: v1beta1\ndeprecated: true\n"+spec("size: {type: integer, maximum: 2}\nextra: {type: string, default: x}")))
	w.create("spec: {size: 5, colour: red}")
	w.warned.take()
	got, err := w.in("v1beta1", "default").Get(w.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, w.warned.take(), "example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget")
	wantText(t, got.GetAPIVersion(), "example.com/v1beta1")
	wantText(t, got.Object["spec"], `{"size":5}`)
	b := widget(t, "b", "spec: {size: 3}")
	b.SetAPIVersion("example.com/v1beta1")
	_, err = w.in("v1beta1", "default").Create(w.ctx, b, metav1.CreateOptions{})
	wantError(t, err, 422, "spec.size in body should be less than or equal to 2")
	b.Object["spec"] = map[string]any{"size": int64(2), "extra": "y"}
	if _, err = w.in("v1beta1", "default").Create(w.ctx, b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := w.in("v1", "default").List(w.ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 || list.Items[1].GetAPIVersion() != "example.com/v1" {
		t.Fatalf("%v, %v", list, err)
	}
	wantText(t, list.Items[1].Object["spec"], `{"size":2}`)
	managers := list.Items[1].GetManagedFields()
	if len(managers) != 1 || managers[0].APIVersion != "example.com/v1beta1" {
		t.Errorf("managers %v", managers)
	}
}

func TestChangingTheStorageVersionMigratesOnWrite(t *testing.T) {
	engine := memory.New()
	w := openWorld(t, engine)
	w.establish(definition(t, "Namespaced", "name: v1\n"+spec(size), "name: v2\n"+spec(size)))
	w.create("spec: {}")
	w.update("widgets.example.com", func(d *crd) {
		d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true
	})
	d, _ := w.ext.ApiextensionsV1().CustomResourceDefinitions().Get(w.ctx, "widgets.example.com", metav1.GetOptions{})
	wantText(t, d.Status.StoredVersions, `["v1","v2"]`)
	if got := storedVersion(t, engine); got != "example.com/v1" {
		t.Errorf("stored as %s", got)
	}
	got, err := w.in("v1", "default").Get(w.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.in("v1", "default").Update(w.ctx, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := storedVersion(t, engine); got != "example.com/v2" {
		t.Errorf("stored as %s after a write", got)
	}
	d.Status.StoredVersions = []string{"v2"}
	if _, err := w.ext.ApiextensionsV1().CustomResourceDefinitions().UpdateStatus(w.ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.update("widgets.example.com", func(d *crd) { d.Spec.Versions = slices.Delete(d.Spec.Versions, 0, 1) })
	if code := w.fetch("/apis/example.com/v1/widgets", "application/json")["code"]; code != 404 {
		t.Errorf("code %v", code)
	}
	if _, err := w.in("v2", "default").Get(w.ctx, "a", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestAStorageVersionMigrationTrimsStoredVersions(t *testing.T) {
	engine := memory.New()
	w := openWorld(t, engine)
	w.establish(definition(t, "Namespaced", "name: v1\n"+spec(size), "name: v2\n"+spec(size)))
	w.create("spec: {}")
	w.update("widgets.example.com", func(d *crd) {
		d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true
	})
	migrations := client.Of[*storagemigrationv1.StorageVersionMigration](w.registry.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}))
	_, err := migrations.Create(w.ctx, &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets"},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: "example.com", Resource: "widgets"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := w.until("widgets.example.com", func(d *crd) bool { return d != nil && len(d.Status.StoredVersions) == 1 })
	wantText(t, d.Status.StoredVersions, `["v2"]`)
	if got := storedVersion(t, engine); got != "example.com/v2" {
		t.Errorf("stored as %s", got)
	}
}

func TestDocumentsDescribeTheKind(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec(`
choice: {type: integer, nullable: true, oneOf: [{minimum: 3}, {maximum: 1}]}
colour: {type: string, default: red}
any: {type: object, x-kubernetes-preserve-unknown-fields: true}
embedded: {type: object, x-kubernetes-embedded-resource: true, properties: {spec: {type: object}}}
`)+"selectableFields: [{jsonPath: .spec.colour}]\n"))
	v3 := w.fetch("/openapi/v3/apis/example.com/v1", "application/json")
	model := dig(v3, "components", "schemas", "com.example.v1.Widget")
	wantText(t, dig(model, "properties", "spec", "properties", "choice"), `{"nullable":true,"oneOf":[{"minimum":3},{"maximum":1}],"type":"integer"}`)
	wantText(t, dig(model, "properties", "spec", "properties", "colour"), `{"default":"red","type":"string"}`)
	wantText(t, dig(model, "properties", "spec", "properties", "any"), `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`)
	wantText(t, dig(model, "properties", "spec", "properties", "embedded", "required"), `["kind","apiVersion"]`)
	wantText(t, dig(model, "properties", "metadata", "description"), "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata")
	wantText(t, dig(model, "x-kubernetes-selectable-fields"), `[{"fieldPath":"spec.colour"}]`)
	wantText(t, dig(model, "x-kubernetes-group-version-kind"), `[{"group":"example.com","kind":"Widget","version":"v1"}]`)
	v2 := w.fetch("/openapi/v2", "application/json")
	model = dig(v2, "definitions", "com.example.v1.Widget")
	wantText(t, dig(model, "properties", "spec", "properties", "choice"), `{}`)
	wantText(t, dig(model, "properties", "spec", "properties", "colour"), `{"type":"string"}`)
	for _, name := range []string{"Widget", "WidgetList"} {
		wantText(t, dig(v2, "definitions", "com.example.v1."+name, "x-kubernetes-selectable-fields"), `[{"fieldPath":"spec.colour"}]`)
	}
	if dig(model, "properties", "metadata") == nil || dig(v2, "paths", "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}", "patch") == nil {
		t.Error("metadata or paths are missing")
	}
	patch := dig(v3, "paths", "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}", "patch", "requestBody", "content").(map[string]any)
	if patch["application/merge-patch+json"] == nil || patch["application/strategic-merge-patch+json"] != nil {
		t.Errorf("patches %v", patch)
	}
	index := func() any {
		return dig(w.fetch("/openapi/v3", "application/json"), "paths", "apis/example.com/v1", "serverRelativeURL")
	}
	before, apps := index(), dig(w.fetch("/openapi/v3", "application/json"), "paths", "apis/apps/v1")
	w.update("widgets.example.com", func(d *crd) { d.Spec.Versions = definition(t, "Namespaced", spec(size)).Spec.Versions })
	if after := index(); after == before || after == nil {
		t.Errorf("%v became %v", before, after)
	}
	raw, _ := json.Marshal(apps)
	wantText(t, dig(w.fetch("/openapi/v3", "application/json"), "paths", "apis/apps/v1"), string(raw))
	if v := dig(w.fetch("/openapi/v3/apis/example.com/v1", "application/json"), "components", "schemas", "com.example.v1.Widget", "properties", "spec", "properties", "choice"); v != nil {
		t.Errorf("still %v", v)
	}
}

func TestAKindThatPreservesAllIsDescribedWithoutFieldsInOpenAPI2(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", "schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}"))
	made := w.create("whatever: {you: want}")
	wantText(t, made.Object["whatever"], `{"you":"want"}`)
	v2 := w.fetch("/openapi/v2", "application/json")
	wantText(t, dig(v2, "definitions", "com.example.v1.Widget"), `{"type":"object","x-kubernetes-group-version-kind":[{"group":"example.com","kind":"Widget","version":"v1"}]}`)
}

func TestAggregatedDiscoveryFollows(t *testing.T) {
	w := newWorld(t)
	const accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	kinds := func() string {
		var out []string
		for _, g := range w.fetch("/apis", accept)["items"].([]any) {
			if dig(g, "metadata", "name") != "example.com" {
				continue
			}
			for _, v := range dig(g, "versions").([]any) {
				for _, r := range dig(v, "resources").([]any) {
					out = append(out, dig(v, "version").(string)+"/"+dig(r, "resource").(string))
				}
			}
		}
		return strings.Join(out, " ")
	}
	wantText(t, kinds(), "")
	w.establish(definition(t, "Namespaced", "name: v1\n"+spec(size), "name: v2\n"+spec(size)))
	wantText(t, kinds(), "v2/widgets v1/widgets")
	w.update("widgets.example.com", func(d *crd) { d.Spec.Versions[1].Served = false })
	wantText(t, kinds(), "v1/widgets")
}

func TestKindsAreServedAfterARestart(t *testing.T) {
	engine := memory.New()
	t.Run("before", func(t *testing.T) {
		w := openWorld(t, keepOpen{engine})
		w.establish(definition(t, "Namespaced", spec(size)))
		w.create("spec: {colour: red}")
	})
	w := openWorld(t, engine)
	got, err := w.in("v1", "default").Get(w.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["spec"], `{"colour":"red","size":1}`)
}

func TestAWatchEndsWhenItsKindChanges(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec(size)))
	events, err := w.in("v1", "default").Watch(w.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.update("widgets.example.com", func(d *crd) { d.Spec.Versions = definition(t, "Namespaced", spec("b: {type: string}")).Spec.Versions })
	if e, open := <-events.ResultChan(); open {
		t.Errorf("event %v", e)
	}
}

// keepOpen is an engine that outlives its store.
type keepOpen struct{ store.Engine }

func (keepOpen) Close() error { return nil }

// storedVersion is the apiVersion of the one widget as the engine keeps it.
func storedVersion(t *testing.T, engine store.Engine) string {
	t.Helper()
	found := ""
	_, err := engine.Load(t.Context(), 0, func(r store.Record) error {
		if r.Key.Resource.Resource == "widgets" {
			var object struct{ APIVersion string }
			err := json.Unmarshal(r.Value, &object)
			found = object.APIVersion
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// As upstream's: nobody can tell any more what those fields are.
func TestAnApplyFailsWhereFieldsAreOwnedInAVersionThatIsGone(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", "name: v1\n"+spec(size), "name: v2\n"+spec(size)))
	if _, err := w.apply("first", "spec: {size: 2}", false); err != nil {
		t.Fatal(err)
	}
	definitions := w.ext.ApiextensionsV1().CustomResourceDefinitions()
	w.update("widgets.example.com", func(d *crd) {
		d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true
	})
	got, err := w.in("v2", "default").Get(w.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.in("v2", "default").Update(w.ctx, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	d, err := definitions.Get(w.ctx, "widgets.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Status.StoredVersions = []string{"v2"}
	if _, err := definitions.UpdateStatus(w.ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.update("widgets.example.com", func(d *crd) { d.Spec.Versions = slices.Delete(d.Spec.Versions, 0, 1) })

	data := []byte(`{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"a"},"spec":{"size":3}}`)
	_, err = w.in("v2", "default").Patch(w.ctx, "a", types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: "first"})
	wantError(t, err, 500, "request to convert CR to an invalid group/version: example.com/v1")
	if got, err = w.in("v2", "default").Get(w.ctx, "a", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["spec"], `{"size":2}`)
	if managers := got.GetManagedFields(); len(managers) != 1 || managers[0].APIVersion != "example.com/v1" {
		t.Errorf("managers %v", managers)
	}
}
