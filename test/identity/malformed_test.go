package identity

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// peak is the most memory that the server has had, in bytes.
func (s *server) peak(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// What a client sends in bad faith or by mistake is a 4xx, takes a bounded amount
// of memory, and changes nothing.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	s := start(t, "--feature-gates=CBORServingAndStorage=true")
	const maps, target = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps/target"
	made, err := s.admin(t).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "target"}, Data: map[string]string{"k": "v"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const head = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"target"}`
	object := func(rest string) []byte { return []byte(head + rest + "}") }
	deep := func(open, shut string, n int) string { return strings.Repeat(open, n) + strings.Repeat(shut, n) }
	proto := []byte("k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x20\x0a\x1e\x0a\x06target")
	const (
		json, yaml, protobuf, cbor = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor"
		jsonPatch, mergePatch      = "application/json-patch+json", "application/merge-patch+json"
		strategic, apply           = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
	)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat("*"+string(c-1)+",", 10), ","))
	}
	doubling := `[{"op":"add","path":"/x","value":{"a":"x"}}`
	for i := range 40 {
		doubling += fmt.Sprintf(`,{"op":"copy","from":"/x","path":"/x/%d"}`, i)
	}
	doubling += "]"
	huge := []byte("k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
	tests := []struct {
		name, method, path, contentType string
		body                            []byte
	}{
		{"protobuf that ends early", "PUT", target, protobuf, proto},
		{"protobuf of an absurd length", "PUT", target, protobuf, huge},
		{"protobuf without its magic", "PUT", target, protobuf, proto[4:]},
		{"protobuf groups within groups", "PUT", target, protobuf, append([]byte("k8s\x00"), bytes.Repeat([]byte{0x0b}, 1<<20)...)},
		{"deep JSON arrays", "PUT", target, json, object(`,"data":` + deep("[", "]", 1<<19))},
		{"deep JSON objects", "PUT", target, json, object(`,"x":` + deep(`{"a":`, "}", 1<<18))},
		{"deep JSON that does not end", "PUT", target, json, []byte(strings.Repeat(`{"a":[`, 1<<18))},
		{"a key that is there twice, strictly", "PUT", target + "?fieldValidation=Strict", json, object(`,"data":{"k":"a","k":"b"}`)},
		{"an unknown field, strictly", "PUT", target + "?fieldValidation=Strict", json, object(`,"dada":{}`)},
		{"a number of absurd size", "PUT", target, json, object(`,"immutable":1e999999999`)},
		{"a number where text belongs", "PUT", target, json, object(`,"data":{"k":123456789012345678901234567890}`)},
		{"bytes that are no UTF-8 in a name", "POST", maps, json, []byte("{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"\xff\xfe\"}}")},
		{"bytes that are no UTF-8 in YAML", "PUT", target, yaml, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: target}\ndata: {k: \"\xff\xfe\xfd\"}\n")},
		{"YAML aliases of aliases", "PUT", target, yaml, []byte(bomb)},
		{"deep YAML", "PUT", target, yaml, []byte("apiVersion: v1\nkind: ConfigMap\ndata: " + deep("[", "]", 1<<17))},
		{"deep CBOR", "PUT", target, cbor, append([]byte{0xd9, 0xd9, 0xf7}, bytes.Repeat([]byte{0x81}, 1<<20)...)},
		{"CBOR of an absurd length", "PUT", target, cbor, []byte("\xd9\xd9\xf7\x9b\x7f\xff\xff\xff\xff\xff\xff\xff")},
		{"CBOR with a key twice", "PUT", target, cbor, []byte("\xd9\xd9\xf7\xa3\x44kind\x49ConfigMap\x4aapiVersion\x42v1\x44kind\x43Pod")},
		{"10 MB of JSON", "PUT", target, json, object(`,"data":{"k":"` + strings.Repeat("x", 10<<20) + `"}`)},
		{"10 MB of a patch", "PATCH", target, mergePatch, []byte(`{"data":{"k":"` + strings.Repeat("x", 10<<20) + `"}}`)},
		{"2 MB of data, more than a config map may hold", "PUT", target, json, object(`,"data":{"k":"` + strings.Repeat("x", 2<<20) + `"}`)},
		{"a list of 100 000 items where one belongs", "POST", maps, json, []byte(`{"apiVersion":"v1","kind":"ConfigMapList","items":[` + strings.TrimSuffix(strings.Repeat("{},", 100_000), ",") + "]}")},
		{"100 000 finalizers and a bad one", "PUT", target, json, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"target","finalizers":[` + strings.Repeat(`"x",`, 100_000) + `"?"` + "]}}")},
		{"100 000 owners without names", "PUT", target, json, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"target","ownerReferences":[` + strings.TrimSuffix(strings.Repeat("{},", 100_000), ",") + "]}}")},
		{"a JSON patch of 100 000 operations", "PATCH", target, jsonPatch, []byte("[" + strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/data/k","value":"v"},`, 60_000), ",") + "]")},
		{"a JSON patch that doubles what it copies", "PATCH", target, jsonPatch, []byte(doubling)},
		{"a JSON patch of an index that is not there", "PATCH", target, jsonPatch, []byte(`[{"op":"add","path":"/metadata/finalizers/99999999999999","value":"x"}]`)},
		{"a JSON patch that tests in vain", "PATCH", target, jsonPatch, []byte(`[{"op":"test","path":"/data/k","value":"w"},{"op":"remove","path":"/data/k"}]`)},
		{"a JSON patch that is none", "PATCH", target, jsonPatch, []byte(`{"op":"remove"}`)},
		{"a merge patch that is text", "PATCH", target, mergePatch, []byte(`"x"`)},
		{"a merge patch of another name", "PATCH", target, mergePatch, []byte(`{"metadata":{"name":"other"}}`)},
		{"a deep merge patch", "PATCH", target, mergePatch, []byte(`{"data":` + deep(`{"a":`, "}", 1<<18))},
		{"a strategic patch with an unknown directive", "PATCH", target, strategic, []byte(`{"$patch":"explode"}`)},
		{"an apply that is a list", "PATCH", target + "?fieldManager=me", apply, []byte("- a\n- b\n")},
		{"an apply of another kind", "PATCH", target + "?fieldManager=me", apply, []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: target}\n")},
		{"an apply without a manager", "PATCH", target, apply, []byte("apiVersion: v1\nkind: ConfigMap\n")},
		{"a patch of an unknown type", "PATCH", target, "application/x-patch", []byte("{}")},
		{"no body", "PUT", target, json, nil},
		{"a body of another kind", "PUT", target, json, []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"target"}}`)},
		{"a body of another name", "PUT", target, json, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"other"}}`)},
		{"a body of another namespace", "PUT", target, json, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"target","namespace":"kube-system"}}`)},
		{"a name that climbs", "DELETE", maps + "/..%2f..%2fsecrets%2ftarget", "", nil},
		{"a path that climbs", "DELETE", "/api/v1/namespaces/x/../default/configmaps/target/../..", "", nil},
		{"a name of dots", "GET", maps + "/%2e%2e", "", nil},
		{"a namespace that climbs", "GET", "/api/v1/namespaces/..%2f..%2fkube-system/secrets/x", "", nil},
		{"a NUL in a name", "GET", maps + "/a%00b", "", nil},
		{"a continue token of nonsense", "GET", maps + "?limit=1&continue=%2F%2F%2F", "", nil},
		{"a continue token that climbs", "GET", maps + "?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8uLi9zZWNyZXRzL2t1YmUtc3lzdGVtIn0", "", nil},
		{"a label selector of nonsense", "GET", maps + "?labelSelector=a%20in%20(", "", nil},
		{"a label selector of 300 000 brackets", "GET", maps + "?labelSelector=" + strings.Repeat("(", 300_000), "", nil},
		{"a field selector of an unknown field", "GET", maps + "?fieldSelector=data.k%3Dv", "", nil},
		{"a resourceVersion that is no number", "GET", maps + "?resourceVersion=-1", "", nil},
		{"a limit that is no number", "GET", maps + "?limit=many", "", nil},
		{"a timeout that is no time", "GET", maps + "?timeout=soon", "", nil},
		{"an unknown propagation", "DELETE", target + "?propagationPolicy=Sideways", "", nil},
		{"a deletion with another uid", "DELETE", target, json, []byte(`{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"x"}}`)},
		{"a deletion with a body of nonsense", "DELETE", target, json, []byte(`{"kind":[`)},
		{"an unknown method", "BREW", target, "", nil},
		{"an unknown dry run", "DELETE", target + "?dryRun=Some", "", nil},
	}
	s.raw(t, t.Context(), "GET", maps, "", "", nil)
	before := s.peak(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp := s.raw(t, t.Context(), tt.method, tt.path, tt.contentType, "", tt.body)
			answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode < 400 || resp.StatusCode > 499 {
				t.Errorf("%s: %.300s", resp.Status, answer)
			}
			if len(answer) > 64<<10 {
				t.Errorf("an answer of %d bytes", len(answer))
			}
		})
	}
	got, err := s.admin(t).CoreV1().ConfigMaps("default").Get(t.Context(), "target", metav1.GetOptions{})
	if err != nil || got.ResourceVersion != made.ResourceVersion {
		t.Errorf("the object has changed: %+v, %v", got, err)
	}
	list, err := s.admin(t).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Items {
		if c.Name != "target" && c.Name != "kube-root-ca.crt" {
			t.Errorf("config map %q has come into being", c.Name)
		}
	}
	const most = 400 << 20
	if grown := s.peak(t) - before; grown > most {
		t.Errorf("the server took %d MiB more", grown>>20)
	}
}
