package machinery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/pkg/proatest"
)

func parse(text string) map[string]any {
	out := map[string]any{}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		panic(err)
	}
	return out
}

// kind is one stored kind with the least that is valid of it.
type kind struct {
	*server
	*apis.Resource
	collection string
	url        string // of the object
	object     map[string]any
	status     map[string]any // that may be written; nil: none is known
}

// stored are the kinds that can be listed, with the objects that test/conformance/kinds has of them.
func stored(t *testing.T, s *server) []kind {
	t.Helper()
	for _, name := range []string{"v", "resourcequotas", "limitranges"} {
		s.do(t, request{method: http.MethodPost, path: namespaces, body: text(map[string]any{"metadata": map[string]any{"name": name}})})
	}
	var all []kind
	for _, r := range builtin.Catalogue().All() {
		if r.NewList == nil {
			continue
		}
		all = append(all, newKind(t, s, r))
	}
	return all
}

func newKind(t *testing.T, s *server, r *apis.Resource) kind {
	t.Helper()
	file := r.Plural
	path, gv := "/api/"+r.Version, r.Version
	if r.Group != "" {
		file += "." + r.Group
		gv = r.Group + "/" + r.Version
		path = "/apis/" + gv
	}
	data, err := os.ReadFile(filepath.Join("..", "kinds", "testdata", file+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var entry struct {
		Name            string
		Minimum, Status map[string]any
	}
	if err := yaml.Unmarshal(data, &entry); err != nil {
		t.Fatal(err)
	}
	if r.Scope == apis.Namespaced {
		ns := "v"
		if slices.Contains([]string{"resourcequotas", "limitranges"}, r.Plural) {
			ns = r.Plural
		}
		path += "/namespaces/" + ns
	}
	k := kind{server: s, Resource: r, collection: path + "/" + r.Plural, object: entry.Minimum, status: entry.Status}
	if k.object == nil {
		k.object = map[string]any{}
	}
	k.object["apiVersion"], k.object["kind"] = gv, r.Kind
	m := meta(k.object)
	if m == nil {
		m = map[string]any{}
		k.object["metadata"] = m
	}
	if m["name"] == nil {
		m["name"] = "x"
		if entry.Name != "" {
			m["name"] = entry.Name
		}
	}
	m["labels"] = map[string]any{"made": "here"}
	k.url = k.collection + "/" + m["name"].(string)
	return k
}

func (k kind) title() string { return strings.TrimSuffix(k.Plural+"."+k.Group, ".") }

// clear removes the object, whatever holds it.
func (k kind) clear(t *testing.T) {
	deletion{server: k.server, url: k.url}.remove(t)
	if k.Plural == "namespaces" {
		a := k.do(t, request{method: http.MethodGet, path: k.url})
		if a.code == http.StatusOK {
			a.object["spec"] = map[string]any{}
			k.do(t, request{method: http.MethodPut, path: k.url + "/finalize", body: text(a.object)})
		}
	}
}

// brief tells an answer by its code and kind, or the error.
func (k kind) brief(a answer) string {
	word, _ := a.object["kind"].(string)
	if a.code >= http.StatusMultipleChoices {
		return k.server.status(a)
	}
	out := fmt.Sprintf("%d %s", a.code, word)
	if l, _ := meta(a.object)["labels"].(map[string]any); l["dry"] != nil {
		out += " changed"
	}
	if list, ok := a.object["items"].([]any); ok {
		out += fmt.Sprintf(" of %d", len(list))
	}
	return out
}

// TestDryRunsOfEveryKind sends every verb of every kind with dryRun: what is
// answered is as upstream's, and nothing is stored.
func TestDryRunsOfEveryKind(t *testing.T) {
	t.Parallel()
	s := start(t, proatest.Options{})
	var got table
	for _, k := range stored(t, s) {
		t.Run(k.title(), func(t *testing.T) {
			k.clear(t)
			for _, word := range []string{"All", "Some"} {
				k.dryCreate(t, &got, word)
			}
			if a := k.do(t, request{method: http.MethodPost, path: k.collection, body: text(k.object)}); a.code != http.StatusCreated {
				t.Fatalf("%d %s: a dry run has left something", a.code, a.text)
			}
			defer k.clear(t)
			for _, word := range []string{"All", "Some"} {
				k.dryChange(t, &got, word)
			}
		})
	}
	if !t.Failed() {
		got.compare(t, "dryruns.txt")
	}
}

// send makes one dry request, and fails when the object afterwards is not what it was.
func (k kind) send(t *testing.T, got *table, title, word string, q request) {
	t.Helper()
	before := k.do(t, request{method: http.MethodGet, path: k.url})
	path := q.path
	q.path += "?dryRun=" + word
	if strings.HasSuffix(q.kind, "apply-patch+yaml") {
		q.path += "&fieldManager=m&force=true"
	}
	a := k.do(t, q)
	for tries := 0; title == "update" && a.code == http.StatusConflict && tries < 5; tries++ { // the server has written a status meanwhile
		body := parse(q.body)
		meta(body)["resourceVersion"] = meta(k.must(t, request{method: http.MethodGet, path: k.url}))["resourceVersion"]
		q.body = text(body)
		a = k.do(t, q)
	}
	tell := k.brief(a)
	if a.code == http.StatusOK {
		tell, _, _ = strings.Cut(tell, " of ") // servers differ in what they begin with
	}
	got.add(fmt.Sprintf("%s %s dryRun=%s", k.title(), title, word), tell)
	after := k.do(t, request{method: http.MethodGet, path: k.url})
	if before.code != after.code || !same(before.object, after.object) {
		t.Errorf("%s %s has changed the object\nfrom %s\nto   %s", q.method, path, before.text, after.text)
	}
}

// same ignores what servers write into some kinds by themselves.
func same(a, b map[string]any) bool {
	for _, o := range []map[string]any{a, b} {
		delete(meta(o), "resourceVersion")
		delete(meta(o), "managedFields")
		if s, ok := o["status"].(map[string]any); ok {
			delete(s, "conditions")
			delete(s, "observedGeneration")
			delete(s, "acceptedNames")
			delete(s, "storedVersions")
			delete(s, "typeChecking")
		}
	}
	return text(a) == text(b) || a["kind"] == "Status" && a["code"] == b["code"]
}

func (k kind) dryCreate(t *testing.T, got *table, word string) {
	k.send(t, got, "create", word, request{method: http.MethodPost, path: k.collection, body: text(k.object)})
	k.send(t, got, "create by apply", word, request{method: http.MethodPatch, path: k.url, kind: "application/apply-patch+yaml", body: text(k.object)})
	k.send(t, got, "create by update", word, request{method: http.MethodPut, path: k.url, body: text(k.object)})
}

func (k kind) dryChange(t *testing.T, got *table, word string) {
	changed := k.must(t, request{method: http.MethodGet, path: k.url})
	meta(changed)["labels"] = map[string]any{"dry": "run"}
	if settled := k.Plural != "customresourcedefinitions" && k.Plural != "apiservices"; settled { // no version of the others lasts
		k.send(t, got, "update", word, request{method: http.MethodPut, path: k.url, body: text(changed)})
	}
	delete(meta(changed), "resourceVersion")
	k.send(t, got, "update of any version", word, request{method: http.MethodPut, path: k.url, body: text(changed)})
	applied := parse(text(k.object))
	meta(applied)["labels"] = map[string]any{"dry": "run"}
	labels := `{"metadata": {"labels": {"dry": "run"}}}`
	patches := map[string]string{
		"json": `[{"op": "add", "path": "/metadata/labels/dry", "value": "run"}]`, "merge": labels, "strategic-merge": labels, "apply": text(applied),
	}
	for form, body := range patches {
		k.send(t, got, form+" patch", word, request{method: http.MethodPatch, path: k.url, kind: patchKind(form), body: body})
	}
	for _, sub := range k.Subresources {
		k.drySub(t, got, word, sub)
	}
	k.send(t, got, "delete", word, request{method: http.MethodDelete, path: k.url})
	k.send(t, got, "deletecollection", word, request{method: http.MethodDelete, path: k.collection})
}

func patchKind(form string) string {
	if form == "apply" {
		return "application/apply-patch+yaml"
	}
	return "application/" + form + "-patch+json"
}

// drySub writes a subresource that can be read as it is, or its status.
func (k kind) drySub(t *testing.T, got *table, word string, sub apis.Subresource) {
	url := k.url + "/" + sub.Name
	if slices.Contains(sub.Verbs, "update") && k.Plural != "customresourcedefinitions" && k.Plural != "apiservices" {
		body := k.do(t, request{method: http.MethodGet, path: k.url})
		if slices.Contains(sub.Verbs, "get") {
			body = k.do(t, request{method: http.MethodGet, path: url})
		}
		if body.code == http.StatusOK {
			if sub.Name == "status" && k.status != nil {
				body.object["status"] = k.status
			}
			k.send(t, got, "update "+sub.Name, word, request{method: http.MethodPut, path: url, body: text(body.object)})
		}
	}
	if slices.Contains(sub.Verbs, "patch") && sub.Name == "status" && k.status != nil {
		body := text(map[string]any{"status": k.status})
		k.send(t, got, "merge patch status", word, request{method: http.MethodPatch, path: url, body: body})
	}
}

// TestCollectionsOfEveryKindAreDeleted compares deletecollection of every kind:
// its answer, and what it leaves of an object.
func TestCollectionsOfEveryKindAreDeleted(t *testing.T) {
	t.Parallel()
	s := start(t, proatest.Options{})
	var got table
	for _, k := range stored(t, s) {
		if k.Plural == "customresourcedefinitions" {
			continue // upstream leaves their objects behind
		}
		t.Run(k.title(), func(t *testing.T) { k.collections(t, &got) })
	}
	if !t.Failed() {
		got.compare(t, "collections.txt")
	}
}

const own = "labelSelector=made%3Dhere"

func (k kind) collections(t *testing.T, got *table) {
	k.clear(t)
	for _, c := range []struct {
		title, query, body string
		finalizer          bool
	}{
		{title: "of another label", query: "labelSelector=made%3Dthere"},
		{title: "of another name", query: "fieldSelector=metadata.name%3Dother"},
		{title: "with a precondition that fails", query: own, body: `{"preconditions": {"uid": "other"}}`},
		{title: "of an unknown propagation", query: own + "&propagationPolicy=Sideways"},
		{title: "with a body of another kind", query: own, body: `{"kind": "Pod", "apiVersion": "v1"}`},
		{title: "with a body of the group's version", query: own, body: text(map[string]any{"kind": "DeleteOptions", "apiVersion": k.object["apiVersion"]})},
		{title: "with a body that is none", query: own, body: `[`},
		{title: "in the background", query: own, body: `{"propagationPolicy": "Background"}`},
		{title: "in the foreground", query: own, body: `{"propagationPolicy": "Foreground"}`},
		{title: "orphaning", query: own, body: `{"propagationPolicy": "Orphan"}`},
		{title: "held by a finalizer", query: own, finalizer: true},
		{title: "in pages", query: own + "&limit=1"},
		{title: "at once", query: own + "&gracePeriodSeconds=0"},
	} {
		obj := parse(text(k.object))
		if c.finalizer {
			meta(obj)["finalizers"] = []string{"example.com/a"}
		}
		made := k.create(t, k.collection, obj)
		a := k.do(t, request{method: http.MethodDelete, path: k.collection + "?" + c.query, body: c.body})
		tell := k.brief(a)
		if a.code == http.StatusOK && versionOf(a.object) == "" {
			tell += " at no revision"
		}
		left := k.do(t, request{method: http.MethodGet, path: k.url})
		state := "nothing"
		if left.code == http.StatusOK {
			state, _, _ = strings.Cut(remains(left.object, made), ", unchanged")
		}
		got.add(k.title()+" "+c.title, strings.ReplaceAll(tell, meta(made)["uid"].(string), "{uid}")+"; left: "+state)
		k.clear(t)
	}
}
