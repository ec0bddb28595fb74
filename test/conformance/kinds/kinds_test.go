// Package kinds takes every kind that a server serves by default through its
// write path over HTTP: the least that is valid and what defaulting makes of it,
// the most that can be said, and changes of the latter that must be refused. The
// expectations in testdata, one file per kind and served group, are what
// upstream's API server answered to the same bodies.
package kinds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/pkg/proatest"
)

// entry is one file of testdata.
type entry struct {
	Name    string         `json:"name"`    // of the objects; default x
	Minimum map[string]any `json:"minimum"` // the least that is valid
	Becomes map[string]any `json:"becomes"` // what is answered to it, without metadata; "*" is any text
	Maximum map[string]any `json:"maximum"`
	Others  []any          `json:"others"` // further valid objects: other arms of unions

	// Invalid are changes of Maximum, or of Others by index, that a create refuses.
	Invalid []change `json:"invalid"`
	// Updates are changes of the stored maximum that an update refuses.
	Updates []change `json:"updates"`
	// Status is a status that may be written; Statuses are changes of it that are refused.
	Status   map[string]any `json:"status"`
	Statuses []change       `json:"statuses"`
}

// change sets the value at a path, or removes what is there.
type change struct {
	Of      *int     `json:"of"` // index in Others; nil: the maximum
	Path    string   `json:"path"`
	Set     any      `json:"set"`
	Remove  bool     `json:"remove"`
	Refused []string `json:"refused"` // field: reason: message
	Ordered bool     `json:"ordered"` // Refused is in the order that upstream tells it in
}

func (c change) String() string {
	if c.Remove {
		return "without " + c.Path
	}
	text, _ := json.Marshal(c.Set)
	return fmt.Sprintf("%s %s", c.Path, text)
}

// kind is an entry with where it is served.
type kind struct {
	entry
	server     *server
	resource   *apis.Resource
	collection string
	head       map[string]any
}

func TestEveryKind(t *testing.T) {
	catalogue := builtin.Catalogue()
	s := start(t)
	tested := map[string]bool{}
	for _, r := range catalogue.All() {
		views := []apis.View{{Resource: r}}
		for i := range r.Also {
			views = append(views, apis.View{Resource: r, Served: &r.Also[i]})
		}
		for _, v := range views {
			name := fileName(v)
			tested[name] = true
			t.Run(strings.TrimSuffix(name, ".yaml"), func(t *testing.T) { open(t, s, v, name).test(t) })
		}
	}
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !tested[f.Name()] {
			t.Errorf("testdata/%s is of no kind", f.Name())
		}
	}
}

// fileName is plural.group.yaml, with the version before the group where it is
// not the hub's.
func fileName(v apis.View) string {
	group, parts := v.Group, []string{v.Plural}
	if v.Served != nil {
		group = v.Served.Group
		if group == v.Group {
			parts = append(parts, v.Served.Version)
		}
	}
	if group != "" {
		parts = append(parts, group)
	}
	return strings.Join(append(parts, "yaml"), ".")
}

func open(t *testing.T, s *server, v apis.View, name string) *kind {
	t.Helper()
	k := &kind{server: s, resource: v.Resource}
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatalf("a kind without an entry: %v", err)
	}
	if err := yaml.UnmarshalStrict(text, &k.entry); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	group, version, word := v.Group, v.Version, v.Kind
	if v.Served != nil {
		group, version, word = v.Served.Group, v.Served.Version, v.Served.Kind
	}
	gv, path := version, "/api/"+version
	if group != "" {
		gv = group + "/" + version
		path = "/apis/" + gv
	}
	if v.Scope == apis.Namespaced {
		path += "/namespaces/" + s.namespace(t, v)
	}
	k.collection, k.head = path+"/"+v.Plural, map[string]any{"apiVersion": gv, "kind": word}
	return k
}

func (k *kind) test(t *testing.T) {
	if k.Name == "" {
		k.Name = "x"
	}
	if k.resource.NewList == nil {
		k.answered(t)
		return
	}
	t.Run("the least becomes", func(t *testing.T) {
		got := k.server.must(t, http.StatusCreated, http.MethodPost, k.collection, k.object(k.Minimum))
		if d := differences(k.Becomes, bare(got), ""); len(d) > 0 {
			t.Errorf("differs: %s", strings.Join(d, "\n"))
		}
		k.remove(t, k.Name)
	})
	t.Run("refuses to create", func(t *testing.T) { k.refuses(t, k.Invalid, http.MethodPost, k.collection, k.base) })
	t.Run("others are valid", func(t *testing.T) {
		for _, o := range k.Others {
			k.server.must(t, http.StatusCreated, http.MethodPost, k.collection+"?dryRun=All", k.object(o.(map[string]any)))
		}
	})
	t.Run("the most is applied", func(t *testing.T) {
		url := k.collection + "/" + k.nameOf(k.Maximum) + "?dryRun=All&fieldManager=tester"
		k.server.must(t, http.StatusCreated, http.MethodPatch, url, k.object(k.Maximum))
	})
	t.Run("the most", k.stored)
}

// answered is for kinds that are never stored.
func (k *kind) answered(t *testing.T) {
	k.refuses(t, k.Invalid, http.MethodPost, k.collection, k.base)
	if k.Becomes == nil {
		return
	}
	for _, o := range append([]any{k.Minimum, k.Maximum}, k.Others...) {
		k.server.must(t, http.StatusCreated, http.MethodPost, k.collection, k.object(o.(map[string]any)))
	}
}

// stored creates the maximum, and changes it.
func (k *kind) stored(t *testing.T) {
	url := k.collection + "/" + k.nameOf(k.Maximum)
	sent := k.object(k.Maximum)
	k.server.must(t, http.StatusCreated, http.MethodPost, k.collection, sent)
	if k.resource.Plural == "customresourcedefinitions" {
		k.established(t, url)
	}
	current := func(change) map[string]any {
		obj := k.server.must(t, http.StatusOK, http.MethodGet, url, nil)
		delete(obj["metadata"].(map[string]any), "resourceVersion") // somebody may be writing conditions
		return obj
	}
	if k.resource.ConditionalUpdate {
		current = func(change) map[string]any { return k.server.must(t, http.StatusOK, http.MethodGet, url, nil) }
	}
	if missing := lacks(sent, current(change{}), ""); len(missing) > 0 {
		t.Errorf("not kept of what was said: %q", missing)
	}
	t.Run("is not changed to", func(t *testing.T) { k.refuses(t, k.Updates, http.MethodPut, url, current) })
	if k.Status != nil {
		t.Run("status", func(t *testing.T) { k.status(t, url, current) })
	}
	k.remove(t, k.nameOf(k.Maximum))
}

// established waits until a definition is served: more of it cannot be changed then.
func (k *kind) established(t *testing.T, url string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var crd apiextensionsv1.CustomResourceDefinition
		obj := k.server.must(t, http.StatusOK, http.MethodGet, url, nil)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj, &crd); err != nil {
			t.Fatal(err)
		}
		if apihelpers.IsCRDConditionTrue(&crd, apiextensionsv1.Established) {
			return
		}
	}
	t.Fatal("the definition is not served")
}

func (k *kind) status(t *testing.T, url string, current func(change) map[string]any) {
	obj := current(change{})
	obj["status"] = k.Status
	got := k.server.must(t, http.StatusOK, http.MethodPut, url+"/status", obj)
	if missing := lacks(k.Status, got["status"], "status"); len(missing) > 0 {
		t.Errorf("not kept of what was said: %q", missing)
	}
	k.refuses(t, k.Statuses, http.MethodPut, url+"/status", current)
}

// refuses sends each change of a base and expects its causes.
func (k *kind) refuses(t *testing.T, changes []change, method, url string, base func(change) map[string]any) {
	for _, c := range changes {
		t.Run(c.String(), func(t *testing.T) {
			code, answer := k.try(t, c, method, url, base)
			for code == http.StatusConflict { // a controller has written meanwhile
				code, answer = k.try(t, c, method, url, base)
			}
			if code != http.StatusUnprocessableEntity {
				t.Fatalf("answered %d: %v", code, answer["message"])
			}
			got := causes(t, answer)
			if !c.Ordered {
				slices.Sort(got)
			}
			if d := cmp.Diff(c.Refused, got); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func (k *kind) try(t *testing.T, c change, method, url string, base func(change) map[string]any) (int, map[string]any) {
	t.Helper()
	obj, err := c.apply(base(c))
	if err != nil {
		t.Fatal(err)
	}
	return k.server.do(t, method, url, obj)
}

func (k *kind) base(c change) map[string]any {
	if c.Of != nil {
		return k.object(k.Others[*c.Of].(map[string]any))
	}
	return k.object(k.Maximum)
}

// object returns a copy of a manifest with kind and name.
func (k *kind) object(manifest map[string]any) map[string]any {
	obj := clone(manifest)
	for key, value := range k.head {
		obj[key] = value
	}
	meta, _ := obj["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		obj["metadata"] = meta
	}
	if meta["name"] == nil && meta["generateName"] == nil {
		meta["name"] = k.Name
	}
	return obj
}

func (k *kind) nameOf(manifest map[string]any) string {
	return k.object(manifest)["metadata"].(map[string]any)["name"].(string)
}

// remove deletes an object whatever its finalizers.
func (k *kind) remove(t *testing.T, name string) {
	t.Helper()
	url := k.collection + "/" + name
	if code, _ := k.server.do(t, http.MethodDelete, url+"?gracePeriodSeconds=0", nil); code >= 300 {
		t.Fatalf("delete %s: %d", url, code)
	}
	if k.resource.Plural == "namespaces" {
		return // goes when its controller has emptied it
	}
	k.server.do(t, http.MethodPatch, url, map[string]any{"metadata": map[string]any{"finalizers": nil}})
}

// server is one API server and the namespaces that it has for the kinds.
type server struct {
	client *http.Client
	host   string
}

func start(t *testing.T) *server {
	t.Helper()
	access := proatest.Start(t, proatest.Options{})
	c, err := rest.HTTPClientFor(access)
	if err != nil {
		t.Fatal(err)
	}
	return &server{client: c, host: access.Host}
}

// namespace makes one for a kind, so that quotas and limits of one kind's test do
// not reach another's.
func (s *server) namespace(t *testing.T, v apis.View) string {
	t.Helper()
	name := "v"
	if v.Plural == "resourcequotas" || v.Plural == "limitranges" {
		name = v.Plural
	}
	s.do(t, http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": name}})
	return name
}

// must is do that expects a code.
func (s *server) must(t *testing.T, code int, method, url string, body map[string]any) map[string]any {
	t.Helper()
	got, answer := s.do(t, method, url, body)
	if got != code {
		t.Fatalf("%s %s: %d %v", method, url, got, answer["message"])
	}
	return answer
}

func (s *server) do(t *testing.T, method, url string, body map[string]any) (int, map[string]any) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	if body == nil {
		text = nil
	}
	q, err := http.NewRequestWithContext(t.Context(), method, s.host+url, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		q.Header.Set("Content-Type", "application/merge-patch+json")
		if strings.Contains(url, "fieldManager=") {
			q.Header.Set("Content-Type", "application/apply-patch+yaml")
		}
	}
	a, err := s.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	answer := map[string]any{}
	if err := json.NewDecoder(a.Body).Decode(&answer); err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return a.StatusCode, answer
}

// causes are those of a Status, as text.
func causes(t *testing.T, answer map[string]any) []string {
	t.Helper()
	text, _ := json.Marshal(answer)
	var s metav1.Status
	if err := json.Unmarshal(text, &s); err != nil || s.Details == nil {
		t.Fatalf("no Status with details: %s", text)
	}
	var all []string
	for _, c := range s.Details.Causes {
		all = append(all, fmt.Sprintf("%s: %s", c.Field, c.Message))
	}
	return all
}

// bare is an object without what every object has.
func bare(obj map[string]any) map[string]any {
	obj = clone(obj)
	for _, key := range []string{"apiVersion", "kind", "metadata"} {
		delete(obj, key)
	}
	return obj
}

func clone(m map[string]any) map[string]any {
	text, _ := json.Marshal(m)
	c := map[string]any{}
	_ = json.Unmarshal(text, &c)
	return c
}
