package apiextensions_test

import (
	"errors"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const size = `
size: {type: integer, default: 1, maximum: 10}
colour: {type: string}
tags: {type: array, items: {type: string}, x-kubernetes-list-type: set}
`

func TestObjectsAreCreatedReadChangedWatchedAndDeleted(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec(size)))
	events, err := w.in("v1", "default").Watch(w.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	made := w.create("spec: {colour: red}")
	wantText(t, made.Object["spec"], `{"colour":"red","size":1}`)
	if made.GetUID() == "" || made.GetGeneration() != 1 || made.GetNamespace() != "default" {
		t.Errorf("metadata %v", made.Object["metadata"])
	}
	made.Object["spec"].(map[string]any)["size"] = int64(3)
	changed, err := w.in("v1", "default").Update(w.ctx, made, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if changed.GetGeneration() != 2 {
		t.Errorf("generation %d", changed.GetGeneration())
	}
	if _, err := w.in("v1", "default").Update(w.ctx, made, metav1.UpdateOptions{}); err == nil {
		t.Error("a stale write was accepted")
	}
	list, err := w.in("v1", "").List(w.ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.GetKind() != "WidgetList" {
		t.Errorf("list %v, %v", list, err)
	}
	if err := w.in("v1", "default").Delete(w.ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		if e := <-events.ResultChan(); e.Type != want {
			t.Errorf("event %s, want %s", e.Type, want)
		}
	}
	_, err = w.in("v1", "default").Get(w.ctx, "a", metav1.GetOptions{})
	wantError(t, err, 404, `widgets.example.com "a" not found`)
}

func TestUnknownFieldsArePrunedAsFieldValidationSays(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec(size)))
	obj := widget(t, "a", "spec: {size: 2, wrong: {deep: 1}}\nmore: 1")
	obj.Object["metadata"].(map[string]any)["strange"] = "x"
	_, err := w.in("v1", "default").Create(w.ctx, obj, metav1.CreateOptions{FieldValidation: "Strict"})
	wantError(t, err, 400, `Widget in version "v1" cannot be handled as a Widget: strict decoding error: unknown field "metadata.strange", unknown field "more", unknown field "spec.wrong"`)
	made, err := w.in("v1", "default").Create(w.ctx, obj, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, made.Object["spec"], `{"size":2}`)
	if made.Object["more"] != nil || dig(made.Object, "metadata", "strange") != nil {
		t.Errorf("kept %v", made.Object)
	}
	wantText(t, w.warned.take(), "unknown field \"metadata.strange\"\nunknown field \"more\"\nunknown field \"spec.wrong\"")
	obj.SetName("b")
	if _, err := w.in("v1", "default").Create(w.ctx, obj, metav1.CreateOptions{FieldValidation: "Ignore"}); err != nil {
		t.Error(err)
	}
	wantText(t, w.warned.take(), "")
	_, err = w.in("v1", "default").Patch(w.ctx, "a", types.MergePatchType, []byte(`{"spec":{"wrong":1}}`), metav1.PatchOptions{FieldValidation: "Strict"})
	wantError(t, err, 422, `unknown field "spec.wrong"`)
}

func TestObjectsAreHeldToTheirSchema(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", `
schema:
  openAPIV3Schema:
    type: object
    required: [spec]
    properties:
      spec:
        type: object
        required: [size]
        properties:
          size: {type: integer, maximum: 10}
          port: {x-kubernetes-int-or-string: true}
          when: {type: string, format: date-time}
          maybe: {type: string, nullable: true}
          tags: {type: array, items: {type: string}, x-kubernetes-list-type: set}
          ports:
            type: array
            x-kubernetes-list-type: map
            x-kubernetes-list-map-keys: [name]
            items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}
          template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          any: {type: object, x-kubernetes-preserve-unknown-fields: true}
`))
	cases := []struct {
		name, manifest string
		code           int32
		text           string
	}{
		{"a required field is missing", "spec: {}", 422, `Widget.example.com "a" is invalid: spec.size: Required value`},
		{"a value is too large", "spec: {size: 11}", 422, "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"},
		{"a type is wrong", "spec: {size: x}", 422, `spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"`},
		{"neither a number nor a string", "spec: {size: 1, port: true}", 422, "spec.port"},
		{"a format is wrong", "spec: {size: 1, when: soon}", 422, `spec.when in body must be of type date-time: "soon"`},
		{"a set repeats itself", "spec: {size: 1, tags: [a, a]}", 422, `spec.tags[1]: Duplicate value: "a"`},
		{"a map repeats a key", "spec: {size: 1, ports: [{name: a}, {name: a}]}", 422, `spec.ports[1]: Duplicate value: {"name":"a"}`},
		{"an embedded resource has no kind", "spec: {size: 1, template: {apiVersion: v1}}", 422, `spec.template.kind: Required value`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.in("v1", "default").Create(w.ctx, widget(t, "a", c.manifest), metav1.CreateOptions{})
			wantError(t, err, c.code, c.text)
		})
	}
	made := w.create(`
spec: {size: 1, port: http, maybe: null, any: {x: {z: [1]}}, template: {apiVersion: v1, kind: Pod, metadata: {name: p, odd: 1}, spec: {z: 1}}}
`)
	wantText(t, made.Object["spec"], `{"any":{"x":{"z":[1]}},"maybe":null,"port":"http","size":1,"template":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"z":1}}}`)
}

func TestADefaultShowsOnObjectsStoredBefore(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec("a: {type: string}\nb: {type: string}")))
	w.create("spec: {}")
	set := func(a, b string) {
		w.update("widgets.example.com", func(crd *crd) {
			crd.Spec.Versions = definition(t, "Namespaced", spec(a+"\n"+b)).Spec.Versions
		})
	}
	get := func(name string) any {
		u, err := w.in("v1", "default").Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u.Object["spec"]
	}
	set("a: {type: string, default: x}", "b: {type: string}")
	wantText(t, get("a"), `{"a":"x"}`)
	if _, err := w.in("v1", "default").Create(w.ctx, widget(t, "b", "spec: {}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	set("a: {type: string}", "b: {type: string, default: z}")
	wantText(t, get("a"), `{"b":"z"}`)
	wantText(t, get("b"), `{"a":"x","b":"z"}`)
	list, err := w.in("v1", "default").List(w.ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatal(list, err)
	}
	wantText(t, list.Items[0].Object["spec"], `{"b":"z"}`)
}

func TestApplyMergesByListType(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec(`
tags: {type: array, items: {type: string}, x-kubernetes-list-type: set}
steps: {type: array, items: {type: string}}
ports:
  type: array
  x-kubernetes-list-type: map
  x-kubernetes-list-map-keys: [name]
  items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}
settings: {type: object, additionalProperties: {type: string}}
whole: {type: object, x-kubernetes-map-type: atomic, additionalProperties: {type: string}}
`)))
	if _, err := w.apply("one", "spec: {tags: [a], steps: [x], ports: [{name: a, port: 1}], settings: {a: '1'}, whole: {a: '1'}}", false); err != nil {
		t.Fatal(err)
	}
	got, err := w.apply("two", "spec: {tags: [b], ports: [{name: b, port: 2}], settings: {b: '2'}}", false)
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["spec"], `{"ports":[{"name":"a","port":1},{"name":"b","port":2}],"settings":{"a":"1","b":"2"},"steps":["x"],"tags":["a","b"],"whole":{"a":"1"}}`)
	_, err = w.apply("two", "spec: {steps: [z], ports: [{name: a, port: 3}], whole: {b: '2'}}", false)
	wantError(t, err, 409, `conflicts with "one"`)
	got, err = w.apply("two", "spec: {steps: [z], ports: [{name: a, port: 3}], whole: {b: '2'}}", true)
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["spec"], `{"ports":[{"name":"a","port":3}],"settings":{"a":"1"},"steps":["z"],"tags":["a"],"whole":{"b":"2"}}`)
	_, err = w.apply("one", "spec: {wrong: 1}", true)
	wantError(t, err, 500, `.spec.wrong: field not declared in schema`)
	got, err = w.in("v1", "default").Get(w.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["spec"], `{"ports":[{"name":"a","port":3}],"settings":{"a":"1"},"steps":["z"],"tags":["a"],"whole":{"b":"2"}}`)
}

const scalable = `
subresources:
  status: {}
  scale: {specReplicasPath: .spec.count, statusReplicasPath: .status.count, labelSelectorPath: .status.selector}
schema:
  openAPIV3Schema:
    type: object
    properties:
      spec: {type: object, properties: {count: {type: integer}}}
      status: {type: object, properties: {count: {type: integer, maximum: 5}, selector: {type: string}}}
`

func TestStatusAndSpecAreWrittenApart(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", scalable))
	made := w.create("spec: {count: 2}\nstatus: {count: 1}")
	if made.Object["status"] != nil {
		t.Error("a create set the status")
	}
	got, err := w.merge("{status: {count: 3, selector: a=b}, spec: {count: 9}, metadata: {labels: {x: z}}}", "status")
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["status"], `{"count":3,"selector":"a=b"}`)
	wantText(t, got.Object["spec"], `{"count":2}`)
	if got.GetGeneration() != 1 || got.GetLabels() != nil {
		t.Errorf("metadata %v", got.Object["metadata"])
	}
	got, err = w.merge("{status: {count: 4}, spec: {count: 5}}")
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["status"], `{"count":3,"selector":"a=b"}`)
	if got.GetGeneration() != 2 {
		t.Errorf("generation %d", got.GetGeneration())
	}
	_, err = w.merge("{status: {count: 6}}", "status")
	wantError(t, err, 422, "status.count: Invalid value: 6: count in body should be less than or equal to 5")
}

func TestScaleReadsAndWritesReplicasWhereTheDefinitionSays(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", scalable))
	w.create("spec: {count: 2}")
	if _, err := w.merge("{status: {count: 1, selector: a=b}}", "status"); err != nil {
		t.Fatal(err)
	}
	scale, err := w.in("v1", "default").Get(w.ctx, "a", metav1.GetOptions{}, "scale")
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, scale.Object["spec"], `{"replicas":2}`)
	wantText(t, scale.Object["status"], `{"replicas":1,"selector":"a=b"}`)
	if _, err := w.merge("{spec: {replicas: 7}}", "scale"); err != nil {
		t.Fatal(err)
	}
	got, _ := w.in("v1", "default").Get(w.ctx, "a", metav1.GetOptions{})
	wantText(t, got.Object["spec"], `{"count":7}`)
	if got.GetGeneration() != 2 {
		t.Errorf("generation %d", got.GetGeneration())
	}
	if _, err := w.in("v1", "default").Create(w.ctx, widget(t, "b", "spec: {}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = w.in("v1", "default").Get(w.ctx, "b", metav1.GetOptions{}, "scale")
	wantError(t, err, 500, `the spec replicas field ".spec.count" does not exist`)
}

func TestColumnsPrintValuesByTheirType(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec("num: {type: integer}\nb: {type: boolean}\ns: {type: string}\nlist: {type: array, items: {type: string}}\nat: {type: string}")+`
additionalPrinterColumns:
- {name: Num, type: integer, jsonPath: .spec.num}
- {name: B, type: boolean, jsonPath: .spec.b, description: whether}
- {name: S, type: string, jsonPath: .spec.s, priority: 1}
- {name: First, type: string, jsonPath: ".spec.list[0]"}
- {name: At, type: date, jsonPath: .spec.at}
- {name: Missing, type: string, jsonPath: .spec.none}
`))
	w.create("spec: {num: 3, b: true, s: text, list: [x, z], at: never}")
	table := w.fetch("/apis/example.com/v1/namespaces/default/widgets", "application/json;as=Table;v=v1;g=meta.k8s.io")
	row := table["rows"].([]any)[0].(map[string]any)
	wantText(t, row["cells"], `["a",3,true,"text","x","\u003cinvalid\u003e",null]`)
	columns := table["columnDefinitions"].([]any)
	wantText(t, columns[1], `{"description":"Custom resource definition column (in JSONPath format): .spec.num","format":"","name":"Num","priority":0,"type":"integer"}`)
	wantText(t, dig(columns[2], "description"), "whether")
}

// selects lists by fields; the names of what is to come are put together.
func (w *world) selects(selector, want string) {
	w.t.Helper()
	list, err := w.in("v1", "default").List(w.ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		w.t.Fatal(err)
	}
	names := ""
	for _, item := range list.Items {
		names += item.GetName()
	}
	if names != want {
		w.t.Errorf("%s selects %q, want %q", selector, names, want)
	}
}

func TestSelectableFieldsSelect(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec("colour: {type: string}\nsize: {type: integer}")+`
selectableFields: [{jsonPath: .spec.colour}, {jsonPath: .spec.size}]
`))
	for name, manifest := range map[string]string{"a": "spec: {colour: blue, size: 1}", "b": "spec: {colour: red, size: 1}", "c": "spec: {size: 2}"} {
		if _, err := w.in("v1", "default").Create(w.ctx, widget(t, name, manifest), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for selector, want := range map[string]string{
		"spec.colour=blue": "a", "spec.colour!=blue": "bc", "spec.size=1": "ab", "spec.colour=": "c",
		"spec.size=1,spec.colour==red": "b", "metadata.name=c": "c",
	} {
		w.selects(selector, want)
	}
	_, err := w.in("v1", "default").List(w.ctx, metav1.ListOptions{FieldSelector: "spec.other=1"})
	wantError(t, err, 400, "field label not supported: spec.other")
	events, err := w.in("v1", "default").Watch(w.ctx, metav1.ListOptions{FieldSelector: "spec.colour=green", ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for _, patch := range []string{"{spec: {colour: green}}", "{spec: {colour: red}}"} {
		if _, err := w.merge(patch); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
		if e := <-events.ResultChan(); e.Type != want {
			t.Errorf("event %s, want %s", e.Type, want)
		}
	}
	if err := w.in("v1", "default").DeleteCollection(w.ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.size=1"}); err != nil {
		t.Fatal(err)
	}
	list, _ := w.in("v1", "default").List(w.ctx, metav1.ListOptions{})
	if len(list.Items) != 1 || list.Items[0].GetName() != "c" {
		t.Errorf("left %v", list.Items)
	}
}

type crd = apiextensionsv1.CustomResourceDefinition

func TestADefaultIsSelectedInObjectsThatAreOlder(t *testing.T) {
	w := newWorld(t)
	properties := "colour: {type: string}\nform: {type: object, properties: {edges: {type: integer}}}\nedge: {type: object, properties: {width: {type: integer}}}"
	w.establish(definition(t, "Namespaced", spec(properties)+"\nselectableFields: [{jsonPath: .spec.colour}, {jsonPath: .spec.form.edges}, {jsonPath: .spec.edge.width}]\n"))
	for name, manifest := range map[string]string{"a": "spec: {colour: blue}", "b": "spec: {form: {}}", "c": "spec: {colour: grey, form: {edges: 4}}"} {
		if _, err := w.in("v1", "default").Create(w.ctx, widget(t, name, manifest), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.update("widgets.example.com", func(crd *apiextensionsv1.CustomResourceDefinition) {
		fields := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
		for name, def := range map[string]string{"colour": `"grey"`, "edge": `{"width": 2}`} {
			field := fields[name]
			field.Default = &apiextensionsv1.JSON{Raw: []byte(def)}
			fields[name] = field
		}
		edges := fields["form"].Properties["edges"]
		edges.Default = &apiextensionsv1.JSON{Raw: []byte("4")}
		fields["form"].Properties["edges"] = edges
	})
	for selector, want := range map[string]string{
		"spec.colour=grey": "bc", "spec.colour=": "", "spec.colour!=grey": "a", "spec.form.edges=4": "bc", "spec.form.edges=": "a", "spec.edge.width=2": "abc",
	} {
		w.selects(selector, want)
	}
}

// TestABadLabelIsToldAsOftenAsByUpstream: twice for all kinds and once more for
// custom resources, but once in the message.
func TestABadLabelIsToldAsOftenAsByUpstream(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec(size)))
	w.create("spec: {size: 1}")
	_, err := w.merge("{metadata: {labels: {a: 'not a label'}}}")
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatal(err)
	}
	told := status.Status()
	if n := strings.Count(told.Message, "metadata.labels"); n != 1 || len(told.Details.Causes) != 3 {
		t.Errorf("%d times in the message, causes %v", n, told.Details.Causes)
	}
	for _, cause := range told.Details.Causes {
		wantText(t, cause.Field, "metadata.labels")
	}
}
