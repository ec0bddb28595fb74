package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const cborGate = "CBORServingAndStorage"

// widgets is a custom resource of two versions, of which v1 is stored.
const widgets = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
"metadata": {"name": "widgets.example.com"},
"spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget", "singular": "widget"},
"versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
"schema": {"openAPIV3Schema": {"type": "object", "properties": {
"spec": {"type": "object", "properties": {"size": {"type": "integer"}, "share": {"type": "number"}, "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
"status": {"type": "object", "properties": {"ready": {"type": "boolean"}}}}}}}]}}`

const widgetsPath = "/apis/example.com/v1/namespaces/default/widgets"

// define makes the widgets and waits until they are served.
func (s *server) define(t *testing.T) {
	t.Helper()
	if resp := s.raw(t, t.Context(), "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/json", "", []byte(widgets)); resp.StatusCode != 201 {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	eventually(t, func() error {
		if resp := s.raw(t, t.Context(), "GET", widgetsPath, "", "", nil); resp.StatusCode != 200 {
			return fmt.Errorf("widgets: %d", resp.StatusCode)
		}
		return nil
	})
}

func widget(name string, spec map[string]any) map[string]any {
	return map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": spec}
}

var wide = map[string]any{"size": int64(3), "share": 0.25, "any": map[string]any{"list": []any{int64(1), "two", nil, true}, "ü": "ß"}}

// equalInJSON fails unless a path answers the same in JSON as what came in CBOR.
func (s *server) equalInJSON(t *testing.T, path, accept string, got map[string]any) {
	t.Helper()
	resp := s.raw(t, t.Context(), "GET", path, "", accept, nil)
	var want map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&want); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var same map[string]any
	if err := json.Unmarshal(text, &same); err != nil {
		t.Fatal(err)
	}
	for _, doc := range []map[string]any{same, want} {
		if list, ok := doc["metadata"].(map[string]any); ok && doc["items"] != nil {
			delete(list, "resourceVersion") // others write meanwhile
		}
	}
	if !reflect.DeepEqual(same, want) {
		t.Errorf("%s in CBOR:\n%.600v\nin JSON:\n%.600v", path, same, want)
	}
}

// What is no object of a resource has its CBOR, too, and what has none upstream has
// none here.
func TestCBOROfOtherDocuments(t *testing.T) {
	t.Parallel()
	s := start(t, "--feature-gates="+cborGate+"=true")
	s.define(t)
	if resp := s.raw(t, t.Context(), "POST", widgetsPath, "application/cbor", "", encoded(t, widget("a", wide))); resp.StatusCode != 201 {
		t.Fatalf("a custom resource: %d", resp.StatusCode)
	}
	const meta = ";g=meta.k8s.io;v=v1;as="
	for _, path := range []string{widgetsPath, "/api/v1/namespaces"} {
		s.equalInJSON(t, path, "application/json", decoded(t, s.raw(t, t.Context(), "GET", path, "", "application/cbor", nil), 200))
		list := decoded(t, s.raw(t, t.Context(), "GET", path, "", "application/cbor"+meta+"PartialObjectMetadataList", nil), 200)
		if list["kind"] != "PartialObjectMetadataList" {
			t.Errorf("%s: metadata of many is %v", path, list["kind"])
		}
		s.equalInJSON(t, path, "application/json"+meta+"PartialObjectMetadataList", list)
		if resp := s.raw(t, t.Context(), "GET", path, "", "application/cbor"+meta+"Table", nil); resp.StatusCode != 406 {
			t.Errorf("%s: a table in CBOR: %d, want 406", path, resp.StatusCode)
		}
		second := s.raw(t, t.Context(), "GET", path, "", "application/cbor"+meta+"Table,application/json"+meta+"Table", nil)
		if second.StatusCode != 200 || second.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: a table in CBOR or JSON: %d %s", path, second.StatusCode, second.Header.Get("Content-Type"))
		}
	}
	for _, path := range []string{widgetsPath + "/a", "/api/v1/namespaces/default"} {
		one := decoded(t, s.raw(t, t.Context(), "GET", path, "", "application/cbor"+meta+"PartialObjectMetadata", nil), 200)
		if one["kind"] != "PartialObjectMetadata" || one["apiVersion"] != "meta.k8s.io/v1" || one["spec"] != nil {
			t.Errorf("%s: metadata of one is %v", path, one)
		}
		s.equalInJSON(t, path, "application/json"+meta+"PartialObjectMetadata", one)
	}
	for path, kind := range map[string]string{
		"/api": "APIVersions", "/apis": "APIGroupList", "/apis/apps": "APIGroup", "/apis/example.com": "APIGroup",
		"/api/v1": "APIResourceList", "/apis/apps/v1": "APIResourceList", "/apis/example.com/v1": "APIResourceList",
	} {
		doc := decoded(t, s.raw(t, t.Context(), "GET", path, "", "application/cbor", nil), 200)
		if doc["kind"] != kind {
			t.Errorf("%s is %v, want %s", path, doc["kind"], kind)
		}
		s.equalInJSON(t, path, "application/json", doc)
	}
	const aggregated = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	for _, path := range []string{"/api", "/apis"} {
		resp := s.raw(t, t.Context(), "GET", path, "", "application/cbor"+aggregated, nil)
		if got := resp.Header.Get("Content-Type"); got != "application/cbor"+aggregated || resp.Header.Get("ETag") == "" {
			t.Errorf("%s: Content-Type %q, ETag %q", path, got, resp.Header.Get("ETag"))
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]any
		if err := direct.Unmarshal(body, &doc); err != nil {
			t.Fatal(err)
		}
		s.equalInJSON(t, path, "application/json"+aggregated, doc)
	}
	object := widget("a", map[string]any{"size": int64(4)})
	applied := decoded(t, s.raw(t, t.Context(), "PATCH", widgetsPath+"/a?fieldManager=me&force=true", "application/apply-patch+cbor", "application/cbor", encoded(t, object)), 200)
	if size := applied["spec"].(map[string]any)["size"]; size != int64(4) {
		t.Errorf("applied a size of %v", size)
	}
	if resp := s.raw(t, t.Context(), "PATCH", widgetsPath+"/a?fieldManager=me", "application/apply-patch+cbor", "", []byte("\xd9\xd9\xf7\xa2aA\x01aA\x02")); resp.StatusCode != 400 {
		t.Errorf("a patch that has a key twice: %d", resp.StatusCode)
	}
	unknown := encoded(t, widget("b", map[string]any{"what": "no"}))
	refusal := decoded(t, s.raw(t, t.Context(), "POST", widgetsPath+"?fieldValidation=Strict", "application/cbor", "application/cbor", unknown), 400)
	if message, _ := refusal["message"].(string); !strings.Contains(message, `unknown field "spec.what"`) {
		t.Errorf("an unknown field: %v", refusal)
	}
	if resp := s.raw(t, t.Context(), "POST", widgetsPath, "application/cbor", "application/cbor", unknown); resp.StatusCode != 201 || !strings.Contains(resp.Header.Get("Warning"), "spec.what") {
		t.Errorf("an unknown field: %d, %q", resp.StatusCode, resp.Header.Get("Warning"))
	}
}

// On etcd custom resources lie as upstream's gate has them, and either form is read
// whatever the gate says.
func TestCustomResourcesAreKeptAsCBOR(t *testing.T) {
	t.Parallel()
	url := startEtcd(t)
	s := &server{dir: filepath.Join(t.TempDir(), "data"), port: freePort(t)}
	t.Cleanup(func() { s.stop(t) })
	flags := []string{"--datastore-endpoint", url}
	kept := func(name string) string { return etcdValue(t, url, "/registry/example.com/widgets/default/"+name) }
	make := func(name string) {
		t.Helper()
		body, _ := json.Marshal(widget(name, wide))
		if resp := s.raw(t, t.Context(), "POST", widgetsPath, "application/json", "", body); resp.StatusCode != 201 {
			t.Fatalf("%s: %d", name, resp.StatusCode)
		}
	}
	label := func(name string) {
		t.Helper()
		if resp := s.raw(t, t.Context(), "PATCH", widgetsPath+"/"+name, "application/merge-patch+json", "", []byte(`{"metadata":{"labels":{"changed":"yes"}}}`)); resp.StatusCode != 200 {
			t.Fatalf("%s: %d", name, resp.StatusCode)
		}
	}
	form := func(name, prefix string) {
		t.Helper()
		value := kept(name)
		var object map[string]any
		read := json.Unmarshal
		if prefix != "{" {
			read = direct.Unmarshal
		}
		if !strings.HasPrefix(value, prefix) {
			t.Fatalf("%s lies in etcd as %.40q, want %q", name, value, prefix)
		}
		if err := read([]byte(value), &object); err != nil || object["kind"] != "Widget" || object["metadata"].(map[string]any)["resourceVersion"] != nil {
			t.Errorf("%s is kept as %v, %v", name, object, err)
		}
		resp := s.raw(t, t.Context(), "GET", widgetsPath+"/"+name, "", "", nil)
		u := &unstructured.Unstructured{}
		if err := json.NewDecoder(resp.Body).Decode(&u.Object); err != nil || fmt.Sprint(u.Object["spec"]) != fmt.Sprint(wide) {
			t.Errorf("%s is read as %v, %v", name, u.Object["spec"], err)
		}
	}
	const cbor = "\xd9\xd9\xf7"
	s.run(t, flags...)
	s.define(t)
	make("old")
	form("old", "{")
	s.stop(t)
	s.run(t, append(flags, "--feature-gates="+cborGate+"=true")...)
	make("new")
	form("old", "{")
	form("new", cbor)
	label("old")
	form("old", cbor)
	if value := etcdValue(t, url, "/registry/namespaces/default"); !strings.HasPrefix(value, "k8s\x00") {
		t.Errorf("a namespace lies in etcd as %.20q", value)
	}
	s.stop(t)
	s.run(t, append(flags, "--feature-gates="+cborGate+"=false")...)
	form("new", cbor)
	label("new")
	form("new", "{")
}

// formsSeen notes the media types of requests and answers.
type formsSeen struct {
	http.RoundTripper
	mu    sync.Mutex
	forms map[string]bool
}

func (f *formsSeen) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.RoundTripper.RoundTrip(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if sent := r.Header.Get("Content-Type"); sent != "" {
		f.forms["sent "+sent] = true
	}
	if err == nil {
		f.forms[fmt.Sprintf("got %d %s", resp.StatusCode, resp.Header.Get("Content-Type"))] = true
	}
	return resp, err
}

func (f *formsSeen) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.forms))
}

// client-go speaks CBOR where its own gates say so, to a server that does; from one
// that does not it takes JSON.
func TestClientsThatPreferCBOR(t *testing.T) { // gates of the whole process: not parallel
	featuretesting.SetFeatureDuringTest(t, features.ClientsAllowCBOR, true)
	featuretesting.SetFeatureDuringTest(t, features.ClientsPreferCBOR, true)
	for on, want := range map[string][]string{
		"true": {"got 200 application/cbor", "got 200 application/cbor-seq", "got 201 application/cbor", "sent application/apply-patch+cbor", "sent application/cbor"},
		"false": {"got 200 application/json", "got 201 application/json", "got 415 application/json",
			"sent application/apply-patch+cbor", "sent application/cbor", "sent application/json", "sent application/merge-patch+json"},
	} {
		t.Run(on, func(t *testing.T) {
			s := start(t, "--feature-gates="+cborGate+"="+on)
			s.define(t)
			config, err := s.config("", "")
			if err != nil {
				t.Fatal(err)
			}
			forms := &formsSeen{forms: map[string]bool{}}
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper { forms.RoundTripper = rt; return forms })
			s.useDynamically(t, config)
			if got := forms.seen(); !slices.Equal(got, want) {
				t.Errorf("it went as\n%q, want\n%q", got, want)
			}
			s.useTyped(t, config)
		})
	}
}

// useDynamically does with a dynamic client what can be done to a custom resource.
func (s *server) useDynamically(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	made, err := in.Create(ctx, &unstructured.Unstructured{Object: widget("a", wide)}, metav1.CreateOptions{})
	if apierrors.IsUnsupportedMediaType(err) { // the client knows from now on
		made, err = in.Create(ctx, &unstructured.Unstructured{Object: widget("a", wide)}, metav1.CreateOptions{})
	}
	if err != nil || !reflect.DeepEqual(made.Object["spec"], wide) {
		t.Fatalf("created %v, %v", made, err)
	}
	events, err := in.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want watch.EventType) *unstructured.Unstructured {
		t.Helper()
		e := <-events.ResultChan()
		u, _ := e.Object.(*unstructured.Unstructured)
		if e.Type != want || u == nil || u.GetKind() != "Widget" || u.GetName() != "a" {
			t.Fatalf("the watch gives %v, want %s", e, want)
		}
		return u
	}
	if first := next(watch.Added); !reflect.DeepEqual(first.Object, made.Object) {
		t.Errorf("the watch begins with %v", first)
	}
	made.SetLabels(map[string]string{"changed": "yes"})
	if _, err := in.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	next(watch.Modified)
	status := widget("a", nil)
	delete(status, "spec")
	status["status"] = map[string]any{"ready": true}
	applied, err := in.ApplyStatus(ctx, "a", &unstructured.Unstructured{Object: status}, metav1.ApplyOptions{FieldManager: "me"})
	if apierrors.IsUnsupportedMediaType(err) { // for applies the client has no other form
		applied, err = in.Patch(ctx, "a", types.MergePatchType, []byte(`{"status":{"ready":true}}`), metav1.PatchOptions{}, "status")
	}
	if err != nil {
		t.Fatal(err)
	}
	next(watch.Modified)
	got, err := in.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || !reflect.DeepEqual(got, applied) {
		t.Errorf("got %v, %v\nwant %v", got, err, applied)
	}
	list, err := in.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || !reflect.DeepEqual(list.Items[0].Object["status"], map[string]any{"ready": true}) {
		t.Errorf("listed %v, %v", list, err)
	}
	if err := in.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	next(watch.Deleted)
}

// useTyped does so with a typed client.
func (s *server) useTyped(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	in := client.CoreV1().ConfigMaps("default")
	events, err := in.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=typed"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	made, err := in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "typed"}, BinaryData: map[string][]byte{"k": {0, 255}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-events.ResultChan(); e.Type != watch.Added || !reflect.DeepEqual(e.Object.(*corev1.ConfigMap).BinaryData, made.BinaryData) {
		t.Errorf("the watch gives %v", e)
	}
	if err := in.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=typed"}); err != nil {
		t.Fatal(err)
	}
}
