package openapi

import (
	"fmt"
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
	watchTypes  = []string{"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"}
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
	without  []string       // those of them that have no meaning here
	body     object         // schema of the request body; nil: none
	bodyIs   []string       // its media types; without a body, those that are accepted all the same
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
			d.describe(collection, withPretty()...)
			d.addWatch(s, base+"/watch/"+s.Plural, "", "watchlist", s.kind.Kind+"ListForAllNamespaces")
		}
		collection = base + "/namespaces/{namespace}/" + s.Plural
		scope = "Namespaced"
	}
	d.addCollection(s, collection, scope)
	item := collection + "/{name}"
	d.addItem(s, item, scope)
	watched := base + "/watch" + strings.TrimPrefix(collection, base)
	if hasVerb(s, "list") {
		d.addWatch(s, watched, scope, "watchlist", scope+s.kind.Kind+"List")
	}
	d.addWatch(s, watched+"/{name}", scope, "watch", scope+s.kind.Kind)
	for i := range s.Subresources {
		d.addSubresource(s, &s.Subresources[i], item+"/"+s.Subresources[i].Name, scope)
	}
}

func hasVerb(s served, verb string) bool { return s.Verbs == nil || slices.Contains(s.Verbs, verb) }

func (d *document) listOperation(s served, suffix string) operation {
	id, scope, doc := "list", "", "list or watch objects of kind "
	if !hasVerb(s, "watch") || isCustom(s) {
		doc = "list objects of kind "
	}
	if suffix == "" && s.Scope == apis.Namespaced {
		scope = "Namespaced"
	}
	return operation{
		s: s, id: id + "|" + scope + s.kind.Kind + suffix, action: "list", doc: doc + s.kind.Kind, kind: s.kind,
		options: []reflect.Type{reflect.TypeFor[metav1.ListOptions]()}, codes: codes("200"), answer: d.list(s), answerIs: d.listTypes(s),
	}
}

// watchDoc is what is said of the paths of old that watch.
var watchDoc = map[string]string{
	"watch":     "watch changes to an object of kind %s. deprecated: use the 'watch' parameter with a list operation instead, filtered to a single item with the 'fieldSelector' parameter.",
	"watchlist": "watch individual changes to a list of %s. deprecated: use the 'watch' parameter with a list operation instead.",
}

// addWatch describes a path that watches without being asked to. Custom resources
// have none.
func (d *document) addWatch(s served, path, scope, action, name string) {
	if isCustom(s) || !hasVerb(s, "watch") {
		return
	}
	d.add(path, "get", operation{
		s: s, id: "watch|" + name, action: action, doc: fmt.Sprintf(watchDoc[action], s.kind.Kind), kind: s.kind,
		options: []reflect.Type{reflect.TypeFor[metav1.ListOptions]()}, codes: codes("200"),
		answer: d.models.ref(reflect.TypeFor[metav1.WatchEvent]()), answerIs: d.listTypes(s),
	})
	kind := ""
	if action == "watch" {
		kind = s.kind.Kind
	}
	d.describe(path, withPretty(pathParameters(scope, kind)...)...)
}

// also adds CBOR where the server speaks it.
func (d *document) also(types []string, cbor string) []string {
	if d.models.cbor {
		return append(slices.Clone(types), cbor)
	}
	return types
}

const cborType = "application/cbor"

func (d *document) types(s served) []string {
	if isCustom(s) {
		return d.also(customTypes, cborType)
	}
	return d.also(objectTypes, cborType)
}

// listTypes are those of a list, which may be watched.
func (d *document) listTypes(s served) []string {
	if isCustom(s) {
		return d.types(s)
	}
	return d.also(slices.Concat(d.types(s), watchTypes), "application/cbor-seq")
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
			s: s, id: "create|" + scope + s.kind.Kind, action: "post", doc: "create " + noun(s.kind.Kind), kind: s.kind,
			options: []reflect.Type{reflect.TypeFor[metav1.CreateOptions]()}, body: d.body(s), bodyIs: d.types(s),
			codes: codes("200", "201", "202"), answer: d.body(s), answerIs: d.types(s),
		})
	}
	if hasVerb(s, "deletecollection") {
		op := operation{
			s: s, id: "delete|Collection" + scope + s.kind.Kind, action: "deletecollection", doc: "delete collection of " + s.kind.Kind, kind: s.kind,
			options: []reflect.Type{reflect.TypeFor[metav1.ListOptions](), reflect.TypeFor[metav1.DeleteOptions]()}, optional: true,
			without: []string{"watch", "allowWatchBookmarks"},
			body:    d.models.ref(reflect.TypeFor[metav1.DeleteOptions]()), bodyIs: d.types(s),
			codes: codes("200"), answer: d.models.ref(reflect.TypeFor[metav1.Status]()), answerIs: d.types(s),
		}
		if isCustom(s) {
			op.options, op.without, op.body = op.options[:1], nil, nil
		}
		d.add(path, "delete", op)
	}
	d.describe(path, withPretty(pathParameters(scope, "")...)...)
}

func (d *document) addItem(s served, path, scope string) {
	name := scope + s.kind.Kind
	d.addReadWrite(s, path, name, "the specified "+s.kind.Kind, s.kind, d.body(s), s.Verbs)
	if hasVerb(s, "delete") {
		answer := d.models.ref(reflect.TypeFor[metav1.Status]())
		if gone := d.models.gone; gone != nil && gone(s.gv().WithResource(s.Plural)) {
			answer = d.body(s)
		}
		d.add(path, "delete", operation{
			s: s, id: "delete|" + name, action: "delete", doc: "delete " + noun(s.kind.Kind), kind: s.kind,
			options: []reflect.Type{reflect.TypeFor[metav1.DeleteOptions]()}, optional: true,
			body: d.models.ref(reflect.TypeFor[metav1.DeleteOptions]()), bodyIs: d.types(s),
			codes: codes("200", "202"), answer: answer, answerIs: d.types(s),
		})
	}
	d.describe(path, withPretty(pathParameters(scope, s.kind.Kind)...)...)
}

// addReadWrite adds get, put and patch of an object or a status-like subresource, as
// what they are described.
func (d *document) addReadWrite(s served, path, name, what string, kind schema.GroupVersionKind, body object, verbs []string) {
	has := func(verb string) bool { return verbs == nil || slices.Contains(verbs, verb) }
	base := operation{s: s, kind: kind, answer: body, answerIs: d.types(s)}
	patched := codes("200", "201")
	if isCustom(s) {
		base.kind, patched = s.kind, codes("200")
	}
	if has("get") {
		op := base
		op.id, op.action, op.doc, op.codes = "read|"+name, "get", "read "+what, codes("200")
		if isCustom(s) {
			op.options = []reflect.Type{reflect.TypeFor[metav1.GetOptions]()}
		}
		d.add(path, "get", op)
	}
	if has("update") {
		op := base
		op.id, op.action, op.doc, op.codes = "replace|"+name, "put", "replace "+what, codes("200", "201")
		op.options, op.body, op.bodyIs = []reflect.Type{reflect.TypeFor[metav1.UpdateOptions]()}, body, d.types(s)
		d.add(path, "put", op)
	}
	if has("patch") {
		op := base
		op.id, op.action, op.doc, op.codes = "patch|"+name, "patch", "partially update "+what, patched
		op.options, op.body = []reflect.Type{reflect.TypeFor[metav1.PatchOptions]()}, d.models.ref(reflect.TypeFor[metav1.Patch]())
		op.bodyIs = patchTypes
		if isCustom(s) {
			op.bodyIs = customPatchTypes
		}
		op.bodyIs = d.also(op.bodyIs, "application/apply-patch+cbor")
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
			options: optionsType("PodLogOptions"), codes: codes("200"), answerIs: append([]string{"text/plain"}, d.types(s)...),
		})
		d.describe(path, withPretty(pathParameters(scope, kind.Kind)...)...)
		return
	}
	d.addReadWrite(s, path, name, sub.Name+" of the specified "+s.kind.Kind, kind, body, sub.Verbs)
	if slices.Contains(sub.Verbs, "create") {
		d.add(path, "post", operation{
			s: s, id: "create|" + name, action: "post", doc: "create " + sub.Name + " of " + noun(s.kind.Kind), kind: kind,
			options: []reflect.Type{reflect.TypeFor[metav1.CreateOptions]()}, body: body, bodyIs: d.types(s),
			codes: codes("200", "201", "202"), answer: body, answerIs: d.types(s),
		})
	}
	d.describe(path, withPretty(pathParameters(scope, kind.Kind)...)...)
}

var connectMethods = map[string][]string{"get": {"get"}, "create": {"post"}, "update": {"put"}, "patch": {"patch"}, "delete": {"delete"}}

// proxyMethods are those of a path that passes requests on.
var proxyMethods = map[string][]string{"get": {"get", "head", "options"}, "create": {"post"}, "update": {"put"}, "patch": {"patch"}, "delete": {"delete"}}

func (d *document) addConnect(s served, sub *apis.Subresource, path, name string, kind schema.GroupVersionKind) {
	methods := connectMethods
	if sub.Name == "proxy" {
		methods = proxyMethods
	}
	for _, verb := range sub.Verbs {
		for _, method := range methods[verb] {
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
	d.describe(path, pathParameters(scope, kind.Kind)...)
	if sub.Name == "proxy" {
		d.describe(path+"/{path}", append(pathParameters(scope, kind.Kind), parameter{"path", "path", "path to the resource", object{"type": "string"}})...)
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
		answer: d.models.ref(reflect.TypeFor[metav1.APIResourceList]()), answerIs: d.also(objectTypes, cborType), bodyIs: d.also(objectTypes, cborType),
	})
}

// noun is a kind with its article, which plurals have none of.
func noun(kind string) string {
	if strings.HasSuffix(kind, "s") && !strings.HasSuffix(kind, "ss") {
		return kind
	}
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
