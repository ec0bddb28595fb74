package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// Every content type gives the same objects back.
func TestRoundTripInEveryContentType(t *testing.T) {
	for _, content := range []string{"application/json", protobuf} {
		t.Run(content, func(t *testing.T) {
			w := newWorld(t)
			w.config.ContentType, w.config.AcceptContentTypes = content, content
			maps := w.client().CoreV1().ConfigMaps("default")
			made := w.configMap("a")
			w.configMap("b")
			got, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil || got.Data["k"] != "v" || got.ResourceVersion != made.ResourceVersion || got.UID == "" {
				t.Fatalf("get: %v, %v", got, err)
			}
			list, err := maps.List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 2 || list.Items[0].Name != "a" || list.Items[1].Data["k"] != "v" || list.ResourceVersion == "" {
				t.Fatalf("list: %v, %v", list, err)
			}
			page, err := maps.List(t.Context(), metav1.ListOptions{Limit: 1})
			if err != nil || len(page.Items) != 1 || page.Continue == "" || *page.RemainingItemCount != 1 {
				t.Fatalf("page: %v, %v", page, err)
			}
			got.Data["k"] = "w"
			if got, err = maps.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil || got.Data["k"] != "w" {
				t.Fatalf("update: %v, %v", got, err)
			}
			if got, err = maps.Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{"data":{"x":"y"}}`), metav1.PatchOptions{}); err != nil || got.Data["x"] != "y" {
				t.Fatalf("patch: %v, %v", got, err)
			}
			if got, err = maps.Apply(t.Context(), corev1apply.ConfigMap("c", "default").WithData(map[string]string{"s": "a"}), metav1.ApplyOptions{FieldManager: "m"}); err != nil || got.Data["s"] != "a" {
				t.Fatalf("apply: %v, %v", got, err)
			}
			if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) || err.Error() != `configmaps "a" not found` {
				t.Fatalf("get after delete: %v", err)
			}
			if err := maps.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			if list, err = maps.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
				t.Fatalf("list after delete: %v, %v", list, err)
			}
		})
	}
}

func TestStatusCodes(t *testing.T) {
	w := newWorld(t)
	cm := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`
	maps := "/api/v1/namespaces/default/configmaps"
	yaml := []string{"Content-Type", "application/yaml"}
	apply := []string{"Content-Type", "application/apply-patch+yaml"}
	tests := []struct {
		name, method, path, body string
		headers                  []string
		code                     int
		want                     string // in the body
	}{
		{"create", "POST", maps, cm, nil, 201, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"`},
		{"create again", "POST", maps, cm, nil, 409, `configmaps \"a\" already exists`},
		{"create from YAML", "POST", maps, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n", yaml, 201, `"name":"b"`},
		{"apply makes", "PATCH", maps + "/p?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: p}\n", apply, 201, `"name":"p"`},
		{"apply changes", "PATCH", maps + "/p?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: p}\ndata: {a: b}\n", apply, 200, `"a":"b"`},
		{"another kind", "POST", maps, `{"apiVersion":"v1","kind":"Secret"}`, nil, 400, `Secret in version \"v1\" cannot be handled as a ConfigMap`},
		{"another version", "POST", "/apis/apps/v1/namespaces/default/deployments", `{"apiVersion":"apps/v1beta1","kind":"Deployment"}`, nil, 400, `the API version in the data (apps/v1beta1) does not match the expected API version (apps/v1)`},
		{"no JSON", "POST", maps, `{`, nil, 400, `unexpected end of JSON input`},
		{"an unknown content type", "POST", maps, "x", []string{"Content-Type", "text/plain"}, 415, `the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf`},
		{"an unknown patch type", "PATCH", maps + "/a", "{}", nil, 415, `415: Unsupported Media Type`},
		{"nothing acceptable", "GET", maps + "/a", "", []string{"Accept", "text/html"}, 406, `Available representations: application/json, application/yaml, application/vnd.kubernetes.protobuf`},
		{"a bad selector", "GET", maps + "?labelSelector=a+b+c", "", nil, 400, `unable to parse requirement`},
		{"a bad timeout", "GET", maps + "?timeout=x", "", nil, 400, `invalid timeout specified in the request URL`},
		{"a name that is not the path's", "PUT", maps + "/z", cm, nil, 400, `the name of the object (a) does not match the name on the URL (z)`},
		{"delete of what is not there", "DELETE", maps + "/z", "", nil, 404, `configmaps \"z\" not found`},
		{"delete", "DELETE", maps + "/a", "", nil, 200, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"a","kind":"configmaps","uid":"`},
		{"too large a body", "POST", maps, `{"x":"` + strings.Repeat("x", 3<<20) + `"}`, nil, 413, `Request entity too large: limit is 3145728`},
		{"options of another name", "POST", maps + "?fieldValidation=Maybe", cm, nil, 422, `fieldValidation`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := w.do(tt.method, tt.path, tt.body, tt.headers...)
			if resp.StatusCode != tt.code || !strings.Contains(body, tt.want) {
				t.Errorf("%d %.600s", resp.StatusCode, body)
			}
		})
	}
}

func TestFieldValidation(t *testing.T) {
	w := newWorld(t)
	path := "/api/v1/namespaces/default/configmaps?dryRun=All&fieldValidation="
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":"1","a":"2"},"foo":{}}`
	resp, text := w.do("POST", path+"Strict", body)
	if want := `ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field "data.a", unknown field "foo"`; resp.StatusCode != 400 || status(t, text).Message != want {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	resp, _ = w.do("POST", path, body)
	if got := resp.Header.Values("Warning"); resp.StatusCode != 201 || !slices.Equal(got, []string{`299 - "duplicate field \"data.a\""`, `299 - "unknown field \"foo\""`}) {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
	resp, _ = w.do("POST", path+"Ignore", body)
	if resp.StatusCode != 201 || len(resp.Header.Values("Warning")) != 0 {
		t.Errorf("%d %q", resp.StatusCode, resp.Header)
	}
	yaml := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nfoo: 1\nfoo: 2\n"
	resp, text = w.do("POST", path+"Strict", yaml, "Content-Type", "application/yaml")
	if resp.StatusCode != 400 || !strings.Contains(text, `key \"foo\" already set in map`) || !strings.Contains(text, `unknown field \"foo\"`) {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	resp, _ = w.do("POST", path, yaml, "Content-Type", "application/yaml")
	if got := resp.Header.Values("Warning"); resp.StatusCode != 201 || !slices.Equal(got, []string{`299 - "line 5: key \"foo\" already set in map"`, `299 - "unknown field \"foo\""`}) {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
}

func TestAppliesTellOfDuplicateKeys(t *testing.T) {
	w := newWorld(t)
	w.configMap("b")
	path := "/api/v1/namespaces/default/configmaps/a?fieldManager=m&fieldValidation="
	yaml := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  a: \"1\"\n  a: \"2\"\n  b: \"1\"\n  b: \"2\"\n"
	twice := []string{`299 - "line 6: key \"a\" already set in map"`, `299 - "line 8: key \"b\" already set in map"`}
	for _, body := range []string{yaml, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":"1","a":"2"}}`} {
		resp, text := w.do("PATCH", path+"Strict", body, "Content-Type", "application/apply-patch+yaml")
		if resp.StatusCode != 400 || !strings.Contains(text, "error strict decoding patch: ") || !strings.Contains(text, `key \"a\" already set in map`) {
			t.Errorf("strictly: %d %s", resp.StatusCode, text)
		}
		if resp, _ := w.do("GET", "/api/v1/namespaces/default/configmaps/a", ""); resp.StatusCode != 404 {
			t.Errorf("what was refused is there: %d", resp.StatusCode)
		}
		resp, text = w.do("PATCH", path+"Ignore&dryRun=All", body, "Content-Type", "application/apply-patch+yaml")
		if got := resp.Header.Values("Warning"); resp.StatusCode != 201 || len(got) != 0 {
			t.Errorf("ignored: %d %q %s", resp.StatusCode, got, text)
		}
	}
	for _, directive := range []string{"", "Warn"} {
		resp, text := w.do("PATCH", path+directive+"&dryRun=All", yaml, "Content-Type", "application/apply-patch+yaml")
		if got := resp.Header.Values("Warning"); resp.StatusCode != 201 || !slices.Equal(got, twice) || !strings.Contains(text, `"a":"2"`) {
			t.Errorf("%q: %d %q %s", directive, resp.StatusCode, got, text)
		}
	}
}

func TestPrettyAndYAMLAreTheSameDocument(t *testing.T) {
	w := newWorld(t)
	w.configMap("a")
	w.configMap("b")
	for _, path := range []string{"/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps/a", "/api/v1/namespaces/default/secrets"} {
		_, plain := w.do("GET", path, "")
		var doc map[string]any
		if err := json.Unmarshal([]byte(plain), &doc); err != nil {
			t.Fatal(err)
		}
		var compact strings.Builder
		encoder := json.NewEncoder(&compact)
		_, pretty := w.do("GET", path+"?pretty=true", "")
		var again map[string]any
		if err := json.Unmarshal([]byte(pretty), &again); err != nil || !strings.Contains(pretty, "\n  \"metadata\": {") {
			t.Errorf("pretty: %v\n%s", err, pretty)
		}
		_, text := w.do("GET", path, "", "Accept", "application/yaml")
		var fromYAML map[string]any
		if err := yaml.Unmarshal([]byte(text), &fromYAML); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
		encoder.Encode(doc)
		for name, other := range map[string]map[string]any{"pretty": again, "yaml": fromYAML} {
			var b strings.Builder
			json.NewEncoder(&b).Encode(other)
			if b.String() != compact.String() {
				t.Errorf("%s %s:\n%s\n%s", path, name, b.String(), compact.String())
			}
		}
	}
}

func TestGzipOfLargeAnswers(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		_, err := w.client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("big", i)}, Data: map[string]string{"k": strings.Repeat("v", 60<<10)}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	resp, body := w.do("GET", "/api/v1/namespaces/default/configmaps", "", "Accept-Encoding", "gzip")
	if resp.Header.Get("Content-Encoding") != "gzip" || len(body) > 60<<10 {
		t.Errorf("%v, %d bytes", resp.Header, len(body))
	}
	resp, _ = w.do("GET", "/api/v1/namespaces/default/configmaps/big0", "", "Accept-Encoding", "gzip")
	if resp.Header.Get("Content-Encoding") != "" || resp.Header.Get("Content-Length") == "" {
		t.Errorf("a small answer: %v", resp.Header)
	}
}

func TestTable(t *testing.T) {
	w := newWorld(t)
	w.configMap("a")
	w.configMap("b")
	accept := "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	get := func(path string) *metav1.Table {
		resp, body := w.do("GET", path, "", "Accept", accept)
		if resp.StatusCode != 200 {
			t.Fatalf("%s: %s", path, body)
		}
		var table metav1.Table
		if err := json.Unmarshal([]byte(body), &table); err != nil {
			t.Fatal(err)
		}
		return &table
	}
	table := get("/api/v1/namespaces/default/configmaps?limit=1")
	if table.Kind != "Table" || table.Continue == "" || len(table.Rows) != 1 || table.Rows[0].Cells[0] != "a" || table.ColumnDefinitions[0].Name != "Name" || table.ResourceVersion == "" {
		t.Errorf("%+v", table)
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(table.Rows[0].Object.Raw, &object); err != nil || object.Kind != "PartialObjectMetadata" || object.Name != "a" {
		t.Errorf("%s", table.Rows[0].Object.Raw)
	}
	table = get("/api/v1/namespaces/default/configmaps/b?includeObject=Object")
	if got := string(table.Rows[0].Object.Raw); !strings.HasPrefix(got, `{"kind":"ConfigMap","apiVersion":"v1"`) || !strings.Contains(got, `"data":{"k":"v"}`) {
		t.Errorf("%s", got)
	}
	table = get("/api/v1/namespaces/default/configmaps?includeObject=None")
	if len(table.Rows) != 2 || len(table.Rows[0].Object.Raw) > 4 {
		t.Errorf("%+v", table.Rows)
	}
	if resp, _ := w.do("GET", "/api/v1/namespaces/default/configmaps?includeObject=x", "", "Accept", accept); resp.StatusCode != 400 {
		t.Errorf("includeObject=x is %d", resp.StatusCode)
	}
}

func TestMetadataClient(t *testing.T) {
	w := newWorld(t)
	w.configMap("a")
	client, err := metadata.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	maps := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
	got, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || got.Labels["app"] != "a" {
		t.Fatalf("%v, %v", got, err)
	}
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Fatalf("%v, %v", list, err)
	}
	changes, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	w.configMap("b")
	if e := <-changes.ResultChan(); e.Type != watch.Added || e.Object.(*metav1.PartialObjectMetadata).Name != "b" {
		t.Errorf("%v", e)
	}
}

func TestDynamicClient(t *testing.T) {
	w := newWorld(t)
	client, err := dynamic.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	deployments := client.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("default")
	obj, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	made, err := deployments.Create(t.Context(), &unstructured.Unstructured{Object: obj}, metav1.CreateOptions{})
	if err != nil || made.GetKind() != "Deployment" || made.GetAPIVersion() != "apps/v1" {
		t.Fatalf("%v, %v", made, err)
	}
	scale, err := deployments.Get(t.Context(), "d", metav1.GetOptions{}, "scale")
	if err != nil || scale.GetKind() != "Scale" || scale.GetAPIVersion() != "autoscaling/v1" {
		t.Fatalf("%v, %v", scale, err)
	}
	list, err := deployments.List(t.Context(), metav1.ListOptions{})
	if err != nil || list.GetKind() != "DeploymentList" || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
}

func TestWatch(t *testing.T) {
	for _, content := range []string{"application/json", protobuf} {
		t.Run(content, func(t *testing.T) {
			w := newWorld(t)
			w.config.ContentType, w.config.AcceptContentTypes = content, content
			maps := w.client().CoreV1().ConfigMaps("default")
			w.configMap("a")
			yes := true
			changes, err := maps.Watch(t.Context(), metav1.ListOptions{
				SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
			if err != nil {
				t.Fatal(err)
			}
			defer changes.Stop()
			next := func() (watch.EventType, *corev1.ConfigMap) {
				e := <-changes.ResultChan()
				cm, ok := e.Object.(*corev1.ConfigMap)
				if !ok {
					t.Fatalf("%v", e)
				}
				return e.Type, cm
			}
			if typ, cm := next(); typ != watch.Added || cm.Name != "a" || cm.Data["k"] != "v" {
				t.Errorf("%s %v", typ, cm)
			}
			if typ, cm := next(); typ != watch.Bookmark || cm.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
				t.Errorf("%s %v", typ, cm)
			}
			w.configMap("b")
			if typ, cm := next(); typ != watch.Added || cm.Name != "b" {
				t.Errorf("%s %v", typ, cm)
			}
			if err := maps.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if typ, cm := next(); typ != watch.Deleted || cm.Name != "b" {
				t.Errorf("%s %v", typ, cm)
			}
			revision := strconv.FormatInt(w.store.Revision(), 10)
			w.shutdown()
			if typ, cm := next(); typ != watch.Bookmark || cm.ResourceVersion != revision {
				t.Errorf("at the end: %s at %s, want a bookmark at %s", typ, cm.ResourceVersion, revision)
			}
			if e, open := <-changes.ResultChan(); open {
				t.Errorf("after the end: %v", e)
			}
		})
	}
}

func TestWatchOfTheFutureAndAsATable(t *testing.T) {
	w := newWorld(t)
	w.configMap("a")
	first := w.firstLine("/api/v1/configmaps?watch=1", "application/json;as=Table;v=v1;g=meta.k8s.io")
	if !strings.HasPrefix(first, `{"type":"ADDED","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1"`) || !strings.Contains(first, `"cells":["a",`) {
		t.Error(first)
	}
	resp, body := w.do("GET", "/api/v1/configmaps?watch=1&resourceVersion=nonsense", "")
	if resp.StatusCode != 500 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	resp, body = w.do("GET", "/api/v1/configmaps?watch=1", "", "Accept", "application/yaml")
	if resp.StatusCode != 406 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

func TestWatchOverWebSocket(t *testing.T) {
	w := newWorld(t)
	w.configMap("a")
	tlsConfig, err := rest.TLSConfigFor(w.config)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig.NextProtos = nil
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig}
	url := "wss" + strings.TrimPrefix(w.config.Host, "https") + "/api/v1/watch/namespaces/default/configmaps"
	for _, origin := range []string{"", "nowhere"} {
		_, resp, err := dialer.DialContext(t.Context(), url, http.Header{"Authorization": {"Bearer admin"}, "Origin": {origin}})
		if err == nil || resp == nil || resp.StatusCode != http.StatusForbidden {
			t.Errorf("from origin %q: %v, %v", origin, resp, err)
		}
	}
	conn, _, err := dialer.DialContext(t.Context(), url, http.Header{"Authorization": {"Bearer admin"}, "Origin": {"https://console.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var event struct {
		Type   watch.EventType
		Object corev1.ConfigMap
	}
	if err := conn.ReadJSON(&event); err != nil || event.Type != watch.Added || event.Object.Name != "a" || event.Object.Kind != "ConfigMap" {
		t.Errorf("%+v, %v", event, err)
	}
	w.shutdown()
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("after the end: %v", err)
	}
}

func TestDiscovery(t *testing.T) {
	w := newWorld(t)
	groups, lists, err := w.client().Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	if groups[0].Name != "" || groups[1].Name != "apiregistration.k8s.io" || groups[2].Name != "apps" {
		t.Errorf("groups begin with %q, %q, %q", groups[0].Name, groups[1].Name, groups[2].Name)
	}
	found := map[string]metav1.APIResource{}
	for _, l := range lists {
		for _, r := range l.APIResources {
			found[l.GroupVersion+" "+r.Name] = r
		}
	}
	pods := found["v1 pods"]
	if pods.Kind != "Pod" || !pods.Namespaced || pods.SingularName != "pod" || !slices.Contains(pods.ShortNames, "po") || len(pods.Verbs) != 8 {
		t.Errorf("%+v", pods)
	}
	if scale := found["apps/v1 deployments/scale"]; scale.Kind != "Scale" || scale.Group != "autoscaling" || scale.Version != "v1" {
		t.Errorf("%+v", scale)
	}
	accept := "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	resp, body := w.do("GET", "/apis", "", "Accept", accept)
	if resp.Header.Get("Content-Type") != accept || !strings.HasPrefix(body, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2"`) {
		t.Errorf("%v %.200s", resp.Header, body)
	}
	if resp, _ := w.do("GET", "/apis", "", "Accept", accept, "If-None-Match", resp.Header.Get("ETag")); resp.StatusCode != http.StatusNotModified {
		t.Errorf("%d", resp.StatusCode)
	}
	resp, body = w.do("GET", "/api", "")
	if !strings.Contains(body, `"versions":["v1"]`) || !strings.Contains(body, "10.0.0.1:6443") {
		t.Errorf("%s", body)
	}
	for path, want := range map[string]string{"/apis": `"kind":"APIGroupList"`, "/apis/apps": `"kind":"APIGroup"`, "/apis/apps/v1": `"kind":"APIResourceList"`} {
		if _, body := w.do("GET", path, ""); !strings.Contains(body, want) {
			t.Errorf("%s: %.200s", path, body)
		}
	}
	for _, path := range []string{"/apis/nothing", "/api/v2", "/apis/apps/v9"} {
		if resp, _ := w.do("GET", path, ""); resp.StatusCode != 404 {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	if paths, err := w.client().Discovery().OpenAPIV3().Paths(); err != nil || paths["api/v1"] == nil {
		t.Errorf("%v, %v", paths, err)
	}
}

func TestRequestsEndWithTheirTimeLimit(t *testing.T) {
	w := newWorld(t)
	h := w.server.withInfo(w.server.withTimeout(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		w.server.fail(out, r, r.Context().Err())
	})))
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest("GET", "/api/v1/pods?timeout=1ms", nil))
	if s := status(t, rec.Body.String()); rec.Code != http.StatusGatewayTimeout || s.Reason != metav1.StatusReasonTimeout ||
		s.Message != "Timeout: request did not complete within requested timeout - context deadline exceeded" {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// A watch answers at once, before there is any event.
func TestWatchHeaderComesFirst(t *testing.T) {
	w := newWorld(t)
	resp, end := w.open("/api/v1/secrets?watch=1", "")
	defer end()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if _, err := w.client().CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, `{"type":"ADDED","object":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s"`) {
		t.Errorf("%s, %v", line, err)
	}
}

// open starts a GET whose body the caller reads until end.
func (w *world) open(path, accept string) (resp *http.Response, end func()) {
	w.t.Helper()
	client, err := rest.HTTPClientFor(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", w.config.Host+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	if resp, err = client.Do(r); err != nil {
		w.t.Fatal(err)
	}
	return resp, func() { cancel(); resp.Body.Close() }
}

func (w *world) firstLine(path, accept string) string {
	w.t.Helper()
	resp, end := w.open(path, accept)
	defer end()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	return line
}
