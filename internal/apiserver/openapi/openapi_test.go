package openapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	kubeproto "k8s.io/kube-openapi/pkg/util/proto"
	"k8s.io/kube-openapi/pkg/util/proto/validation"

	"proa/internal/apis"
)

func catalogue() *apis.Catalogue {
	return apis.NewCatalogue(
		&apis.Resource{Version: "v1", Kind: "Pod", Plural: "pods", New: apis.New[corev1.Pod], NewList: apis.NewList[corev1.PodList],
			Subresources: []apis.Subresource{
				{Name: "status", Verbs: []string{"get", "patch", "update"}},
				{Name: "log", Verbs: []string{"get"}},
				{Name: "exec", Version: "v1", Kind: "PodExecOptions", Verbs: []string{"create", "get"}},
				{Name: "proxy", Version: "v1", Kind: "PodProxyOptions", Verbs: []string{"create", "get"}},
			}},
		&apis.Resource{Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments", New: apis.New[appsv1.Deployment], NewList: apis.NewList[appsv1.DeploymentList],
			Subresources: []apis.Subresource{{Name: "scale", Group: "autoscaling", Version: "v1", Kind: "Scale", New: apis.New[autoscalingv1.Scale], Verbs: []string{"get", "patch", "update"}}}},
		&apis.Resource{Group: "stable.example.com", Version: "v1", Kind: "CronTab", Plural: "crontabs",
			New:     func() apis.Object { return &unstructured.Unstructured{} },
			NewList: func() runtime.Object { return &unstructured.UnstructuredList{} }},
	)
}

func get(t *testing.T, h *Handler, path, accept string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	found, err := h.ServeHTTP(w, r)
	if err != nil || !found {
		t.Fatalf("%s: found %t, %v", path, found, err)
	}
	return w
}

func schemaOf(t *testing.T, doc *spec3.OpenAPI, name string) map[string]any {
	t.Helper()
	s, ok := doc.Components.Schemas[name]
	if !ok {
		t.Fatalf("no schema %s", name)
	}
	raw, _ := json.Marshal(s)
	var m map[string]any
	json.Unmarshal(raw, &m)
	return m
}

func TestVersionDocument(t *testing.T) {
	h := New(Config{Catalogue: catalogue(), Version: "v1.37.2"})
	w := get(t, h, "/openapi/v3/api/v1", "application/json")
	var doc spec3.OpenAPI
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	pod := schemaOf(t, &doc, "io.k8s.api.core.v1.Pod")
	if pod["description"] == nil || pod["x-kubernetes-group-version-kind"] == nil {
		t.Errorf("pod lacks documentation or kind: %v", pod)
	}
	spec := schemaOf(t, &doc, "io.k8s.api.core.v1.PodSpec")["properties"].(map[string]any)
	containers := spec["containers"].(map[string]any)
	for key, want := range map[string]any{"type": "array", "x-kubernetes-patch-merge-key": "name", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-list-type": "map"} {
		if containers[key] != want {
			t.Errorf("containers: %s is %v, want %v", key, containers[key], want)
		}
	}
	if keys := containers["x-kubernetes-list-map-keys"].([]any); len(keys) != 1 || keys[0] != "name" {
		t.Errorf("containers merge by %v", keys)
	}
	if selector := spec["nodeSelector"].(map[string]any); selector["x-kubernetes-map-type"] != "atomic" {
		t.Errorf("nodeSelector is not atomic: %v", selector)
	}
	port := schemaOf(t, &doc, "io.k8s.api.core.v1.ContainerPort")["properties"].(map[string]any)
	if port["protocol"].(map[string]any)["default"] != "TCP" {
		t.Errorf("protocol has no default: %v", port["protocol"])
	}
	patch := doc.Paths.Paths["/api/v1/namespaces/{namespace}/pods/{name}"].Patch
	names := map[string]bool{}
	for _, p := range patch.Parameters {
		names[p.Name] = true
	}
	if !names["fieldValidation"] || !names["dryRun"] || patch.Extensions["x-kubernetes-action"] != "patch" {
		t.Errorf("patch has parameters %v and extensions %v", names, patch.Extensions)
	}
	if doc.Paths.Paths["/api/v1/namespaces/{namespace}/pods/{name}/proxy/{path}"] == nil {
		t.Error("no path for proxied paths")
	}
}

// Every reference of every document resolves, and every document has a
// protobuf form.
func TestDocumentsAreWhole(t *testing.T) {
	h := New(Config{Catalogue: catalogue()})
	for _, path := range []string{"/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1", "/openapi/v3/apis/stable.example.com/v1"} {
		w := get(t, h, path, "application/json")
		document, err := openapi_v3.ParseDocument(w.Body.Bytes())
		if err != nil {
			t.Fatal(path, err)
		}
		if _, err := kubeproto.NewOpenAPIV3Data(document); err != nil {
			t.Error(path, err)
		}
		w = get(t, h, path, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf")
		if err := proto.Unmarshal(w.Body.Bytes(), &openapi_v3.Document{}); err != nil {
			t.Error(path, err)
		}
	}
}

func TestV2ValidatesObjects(t *testing.T) {
	h := New(Config{Catalogue: catalogue()})
	w := get(t, h, "/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
	var document openapi_v2.Document
	if err := proto.Unmarshal(w.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	models, err := kubeproto.NewOpenAPIData(&document)
	if err != nil {
		t.Fatal(err)
	}
	pod := models.LookupModel("io.k8s.api.core.v1.Pod")
	good := map[string]any{"metadata": map[string]any{"name": "a"}, "spec": map[string]any{"containers": []any{map[string]any{"name": "a", "image": "b"}}}}
	if errs := validation.ValidateModel(good, pod, "Pod"); len(errs) > 0 {
		t.Errorf("a good pod: %v", errs)
	}
	bad := map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"image": "b", "nothing": 1}}}}
	if errs := validation.ValidateModel(bad, pod, "Pod"); len(errs) != 2 {
		t.Errorf("a bad pod: %v", errs)
	}
}

func TestHashesAndRedirects(t *testing.T) {
	c := catalogue()
	h := New(Config{Catalogue: c})
	index := func() map[string]string {
		var doc struct {
			Paths map[string]struct{ ServerRelativeURL string }
		}
		if err := json.Unmarshal(get(t, h, "/openapi/v3", "").Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		urls := map[string]string{}
		for k, v := range doc.Paths {
			urls[k] = v.ServerRelativeURL
		}
		return urls
	}
	before := index()
	w := get(t, h, before["api/v1"], "application/json")
	if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "public, immutable" {
		t.Errorf("current hash: %d %v", w.Code, w.Header())
	}
	w = get(t, h, "/openapi/v3/api/v1?hash=OLD", "application/json")
	if w.Code != http.StatusMovedPermanently || w.Header().Get("Location") != before["api/v1"] {
		t.Errorf("old hash: %d to %q", w.Code, w.Header().Get("Location"))
	}
	crontab, _ := c.Stored(schema.GroupResource{Group: "stable.example.com", Resource: "crontabs"})
	changed := *crontab
	changed.Kind = "CronTable"
	if err := c.Add(&changed); err != nil {
		t.Fatal(err)
	}
	after := index()
	if before["api/v1"] != after["api/v1"] || before["apis/stable.example.com/v1"] == after["apis/stable.example.com/v1"] {
		t.Errorf("before %v\nafter %v", before, after)
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	h := New(Config{Catalogue: catalogue()})
	for _, path := range []string{"/openapi/v3/api/v2", "/openapi/v3/x", "/openapi/v3/apis/nothing/v1"} {
		if found, err := h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)); found || err != nil {
			t.Errorf("%s: found %t, %v", path, found, err)
		}
	}
}

func BenchmarkBuild(b *testing.B) {
	gvs := byGroupVersion(catalogue().All())
	for b.Loop() {
		doc, err := marshal(build(dialect{v3: true}, "v", gvs))
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(doc)))
	}
}
