package openapi

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
)

var (
	objectTypes = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	customTypes = []string{"application/json", "application/yaml"}
	patchTypes  = []string{"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"}
	// customPatchTypes have no strategic merge, whose rules only Go types declare;
	// kubectl reads here whether it may send one.
	customPatchTypes = []string{"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"}
	anyType          = []string{"*/*"}
)

// operation is one verb of one path, before it is written in either dialect.
type operation struct {
	s        served
	id       string
	action   string // x-kubernetes-action
	doc      string
	kind     schema.GroupVersionKind
	options  []reflect.Type // query parameters
	body     object         // schema of the request body; nil: none
	bodyIs   []string       // its media types
	optional bool           // the body may be left out
	codes    map[string]string
	answer   object // schema of the response; nil: text
	answerIs []string
}

func root(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

// addPaths describes a resource's collection, objects and subresources.
func (d *document) addPaths(s served) {
	base := root(s.gv())
	collection := base + "/" + s.Plural
	scope := ""
	if s.Scope == apis.Namespaced {
		if hasVerb(s, "list") {
			d.add(collection, "get", d.listOperation(s, "ForAllNamespaces"))
			d.describe(collection, nil)
		}
		collection = base + "/namespaces/{namespace}/" + s.Plural
		scope = "Namespaced"
	}
	d.addCollection(s, collection, scope)
	item := collection + "/{name}"
	d.addItem(s, item, scope)
	for i := range s.Subresources {
		d.addSubresource(s, &s.Subresources[i], item+"/"+s.Subresources[i].Name, scope)
	}
}

func hasVerb(s served, verb string) bool { return s.Verbs == nil || slices.Contains(s.Verbs, verb) }

func (d *document) listOperation(s served, suffix string) operation {
	id, scope := "list", ""
	if suffix == "" && s.Scope == apis.Namespaced {
		scope = "Namespaced"
	}
	return operation{
		s: s, id: id + "|" + scope + s.kind.Kind + suffix, action: "list", doc: "list or watch objects of kind " + s.kind.Kind, kind: s.kind,
		options: []reflect.Type{reflect.TypeFor[metav1.ListOptions]()}, codes: codes("200"), answer: d.list(s), answerIs: d.listTypes(s),
	}
}

func (d *document) types(s served) []string {
	if isCustom(s) {
		return customTypes
	}
	return objectTypes
}

// listTypes are those of a list, which may be watched.
func (d *document) listTypes(s served) []string {
	if isCustom(s) {
		return customTypes
	}
	return append(slices.Clone(objectTypes), "application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
}

func codes(list ...string) map[string]string {
	text := map[string]string{"200": "OK", "201": "Created", "202": "Accepted"}
	m := map[string]string{}
	for _, c := range list {
		m[c] = text[c]
	}
	return m
}

func (d *document) addCollection(s served, path, scope string) {
	if hasVerb(s, "list") {
		d.add(path, "get", d.listOperation(s, ""))
	}
	if hasVerb(s, "create") {
		d.add(path, "post", operation{
			s: s, id: "create|" + scope + s.kind.Kind, action: "post", doc: "create " + article(s.kind.Kind), kind: s.kind,
			options: []reflect.Type{reflect.TypeFor[metav1.CreateOptions]()}, body: d.body(s), bodyIs: d.types(s),
			codes: codes("200", "201", "202"), answer: d.body(s), answerIs: d.types(s),
		})
	}
	if hasVerb(s, "deletecollection") {
		d.add(path, "delete", operation{
			s: s, id: "delete|Collection" + scope + s.kind.Kind, action: "deletecollection", doc: "delete collection of " + s.kind.Kind, kind: s.kind,
			options: []reflect.Type{reflect.TypeFor[metav1.ListOptions](), reflect.TypeFor[metav1.DeleteOptions]()}, optional: true,
			body: d.models.ref(reflect.TypeFor[metav1.DeleteOptions]()), bodyIs: d.types(s),
			codes: codes("200"), answer: d.models.ref(reflect.TypeFor[metav1.Status]()), answerIs: d.types(s),
		})
	}
	d.describe(path, pathParameters(scope, ""))
}

func (d *document) addItem(s served, path, scope string) {
	name := scope + s.kind.Kind
	d.addReadWrite(s, path, name, s.kind, d.body(s), s.Verbs)
	if hasVerb(s, "delete") {
		d.add(path, "delete", operation{
			s: s, id: "delete|" + name, action: "delete", doc: "delete " + article(s.kind.Kind), kind: s.kind,
			options: []reflect.Type{reflect.TypeFor[metav1.DeleteOptions]()}, optional: true,
			body: d.models.ref(reflect.TypeFor[metav1.DeleteOptions]()), bodyIs: d.types(s),
			codes: codes("200", "202"), answer: d.models.ref(reflect.TypeFor[metav1.Status]()), answerIs: d.types(s),
		})
	}
	d.describe(path, pathParameters(scope, s.kind.Kind))
}

// addReadWrite adds get, put and patch of an object or a status-like subresource.
func (d *document) addReadWrite(s served, path, name string, kind schema.GroupVersionKind, body object, verbs []string) {
	has := func(verb string) bool { return verbs == nil || slices.Contains(verbs, verb) }
	base := operation{s: s, kind: kind, answer: body, answerIs: d.types(s)}
	if has("get") {
		op := base
		op.id, op.action, op.doc, op.codes = "read|"+name, "get", "read the specified "+kind.Kind, codes("200")
		d.add(path, "get", op)
	}
	if has("update") {
		op := base
		op.id, op.action, op.doc, op.codes = "replace|"+name, "put", "replace the specified "+kind.Kind, codes("200", "201")
		op.options, op.body, op.bodyIs = []reflect.Type{reflect.TypeFor[metav1.UpdateOptions]()}, body, d.types(s)
		d.add(path, "put", op)
	}
	if has("patch") {
		op := base
		op.id, op.action, op.doc, op.codes = "patch|"+name, "patch", "partially update the specified "+kind.Kind, codes("200", "201")
		op.options, op.body = []reflect.Type{reflect.TypeFor[metav1.PatchOptions]()}, d.models.ref(reflect.TypeFor[metav1.Patch]())
		if op.bodyIs = patchTypes; isCustom(s) {
			op.bodyIs = customPatchTypes
		}
		d.add(path, "patch", op)
	}
}

func (d *document) addSubresource(s served, sub *apis.Subresource, path, scope string) {
	kind, body := s.kind, d.body(s)
	if sub.Kind != "" {
		kind = schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}
	}
	name := scope + s.kind.Kind + title(sub.Name)
	if sub.New == nil && sub.Kind != "" {
		d.addConnect(s, sub, path, name, kind)
		return
	}
	if sub.New != nil {
		body = d.models.ref(typeOf(sub.New()))
	}
	if sub.Name == "log" {
		d.add(path, "get", operation{
			s: s, id: "read|" + name, action: "get", doc: "read log of the specified " + s.kind.Kind, kind: kind,
			options: optionsType("PodLogOptions"), codes: codes("200"), answerIs: append([]string{"text/plain"}, objectTypes...),
		})
		d.describe(path, pathParameters(scope, kind.Kind))
		return
	}
	d.addReadWrite(s, path, name, kind, body, sub.Verbs)
	if slices.Contains(sub.Verbs, "create") {
		d.add(path, "post", operation{
			s: s, id: "create|" + name, action: "post", doc: "create " + sub.Name + " of " + article(s.kind.Kind), kind: kind,
			options: []reflect.Type{reflect.TypeFor[metav1.CreateOptions]()}, body: body, bodyIs: d.types(s),
			codes: codes("200", "201", "202"), answer: body, answerIs: d.types(s),
		})
	}
	d.describe(path, pathParameters(scope, kind.Kind))
}

var connectMethods = map[string][]string{"get": {"get"}, "create": {"post"}, "update": {"put"}, "patch": {"patch"}, "delete": {"delete"}}

func (d *document) addConnect(s served, sub *apis.Subresource, path, name string, kind schema.GroupVersionKind) {
	for _, verb := range sub.Verbs {
		for _, method := range connectMethods[verb] {
			op := operation{
				s: s, id: "connect|" + title(method) + name, action: "connect", kind: kind, options: optionsType(sub.Kind), codes: codes("200"),
				doc: "connect " + strings.ToUpper(method) + " requests to " + sub.Name + " of " + s.kind.Kind, answerIs: anyType,
			}
			d.add(path, method, op)
			if sub.Name == "proxy" {
				op.id += "WithPath"
				d.add(path+"/{path}", method, op)
			}
		}
	}
	scope := ""
	if s.Scope == apis.Namespaced {
		scope = "Namespaced"
	}
	d.describe(path, pathParameters(scope, kind.Kind))
	if sub.Name == "proxy" {
		d.describe(path+"/{path}", append(pathParameters(scope, kind.Kind), parameter{"path", "path", "path to the resource", object{"type": "string"}}))
	}
}

// optionsType finds the options that a connect request takes as a query.
func optionsType(kind string) []reflect.Type {
	obj, err := apis.Scheme().New(schema.GroupVersionKind{Version: "v1", Kind: kind})
	if err != nil {
		return nil
	}
	return []reflect.Type{typeOf(obj)}
}

func (d *document) addResourceList(gv schema.GroupVersion) {
	d.add(root(gv)+"/", "get", operation{
		s: served{kind: gv.WithKind("")}, id: "get|APIResources", doc: "get available resources", codes: codes("200"),
		answer: d.models.ref(reflect.TypeFor[metav1.APIResourceList]()), answerIs: objectTypes,
	})
}

func article(kind string) string {
	if strings.ContainsRune("AEIOU", rune(kind[0])) {
		return "an " + kind
	}
	return "a " + kind
}

func title(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// groupName turns rbac.authorization.k8s.io into RbacAuthorization.
func groupName(group string) string {
	if group == "" {
		return "Core"
	}
	var b strings.Builder
	for _, part := range strings.Split(strings.TrimSuffix(group, ".k8s.io"), ".") {
		b.WriteString(title(part))
	}
	return b.String()
}
