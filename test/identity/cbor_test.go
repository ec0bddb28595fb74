package identity

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/client-go/rest"
)

// raw sends a request as the administrator.
func (s *server) raw(t *testing.T, ctx context.Context, method, path, contentType, accept string, body []byte) *http.Response {
	t.Helper()
	config, err := s.config("", "")
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("https://127.0.0.1:%d%s", s.port, path), bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// decoded reads a CBOR body, which must have the tag of self-described CBOR.
func decoded(t *testing.T, resp *http.Response, code int) map[string]any {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != code || resp.Header.Get("Content-Type") != "application/cbor" || !bytes.HasPrefix(body, []byte{0xd9, 0xd9, 0xf7}) {
		t.Fatalf("%d %s % x, want %d", resp.StatusCode, resp.Header.Get("Content-Type"), body[:min(len(body), 40)], code)
	}
	var v map[string]any
	if err := direct.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := direct.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte{0xd9, 0xd9, 0xf7}, b...)
}

func TestCBOR(t *testing.T) {
	t.Parallel()
	const cbor, path = "application/cbor", "/api/v1/namespaces/default/configmaps"
	s, ctx := start(t, "--feature-gates=CBORServingAndStorage=true"), t.Context()
	object := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}, "data": map[string]any{"k": "v"}}
	made := decoded(t, s.raw(t, ctx, "POST", path, cbor, cbor, encoded(t, object)), 201)
	if made["kind"] != "ConfigMap" || made["data"].(map[string]any)["k"] != "v" {
		t.Errorf("created %v", made)
	}
	got := decoded(t, s.raw(t, ctx, "GET", path+"/a", "", cbor, nil), 200)
	if fmt.Sprint(got) != fmt.Sprint(made) {
		t.Errorf("got %v\nwant %v", got, made)
	}
	list := decoded(t, s.raw(t, ctx, "GET", path, "", cbor, nil), 200)
	if list["kind"] != "ConfigMapList" || len(list["items"].([]any)) == 0 {
		t.Errorf("list is %v", list)
	}
	refusal := decoded(t, s.raw(t, ctx, "GET", path+"/b", "", cbor, nil), 404)
	if refusal["kind"] != "Status" || refusal["reason"] != "NotFound" {
		t.Errorf("status is %v", refusal)
	}
	object["data"] = map[string]any{"applied": "yes"}
	applied := decoded(t, s.raw(t, ctx, "PATCH", path+"/a?fieldManager=me", "application/apply-patch+cbor", cbor, encoded(t, object)), 200)
	if applied["data"].(map[string]any)["applied"] != "yes" || applied["data"].(map[string]any)["k"] != "v" {
		t.Errorf("applied %v", applied)
	}
	for _, patch := range []string{"application/json-patch+cbor", "application/merge-patch+cbor"} {
		if resp := s.raw(t, ctx, "PATCH", path+"/a", patch, "", encoded(t, object)); resp.StatusCode != 415 {
			t.Errorf("%s: %d, want 415", patch, resp.StatusCode)
		}
	}
	unknown := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "c"}, "what": 1}
	if resp := s.raw(t, ctx, "POST", path+"?fieldValidation=Strict", cbor, cbor, encoded(t, unknown)); resp.StatusCode != 400 {
		t.Errorf("an unknown field under Strict: %d", resp.StatusCode)
	}
	if resp := s.raw(t, ctx, "POST", path, cbor, cbor, encoded(t, unknown)); resp.StatusCode != 201 || resp.Header.Get("Warning") == "" {
		t.Errorf("an unknown field: %d, warning %q", resp.StatusCode, resp.Header.Get("Warning"))
	}
	stopped, stop := context.WithCancel(ctx)
	defer stop()
	watch := s.raw(t, stopped, "GET", path+"?watch=1&resourceVersion=0", "", cbor, nil)
	if watch.StatusCode != 200 || watch.Header.Get("Content-Type") != "application/cbor-seq" {
		t.Fatalf("watch: %d %s", watch.StatusCode, watch.Header.Get("Content-Type"))
	}
	first := make([]byte, 64)
	if _, err := io.ReadFull(watch.Body, first); err != nil || !bytes.HasPrefix(first, []byte{0xd9, 0xd9, 0xf7, 0xa2}) || !bytes.Contains(first, []byte("ADDED")) {
		t.Errorf("the watch begins with %q, %v", first, err)
	}
}

func TestCBORIsOffByDefault(t *testing.T) {
	t.Parallel()
	s := start(t)
	body := encoded(t, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}})
	if resp := s.raw(t, t.Context(), "POST", "/api/v1/namespaces/default/configmaps", "application/cbor", "", body); resp.StatusCode != 415 {
		t.Errorf("a CBOR body: %d, want 415", resp.StatusCode)
	}
	if resp := s.raw(t, t.Context(), "GET", "/api/v1/namespaces/default/configmaps", "", "application/cbor", nil); resp.StatusCode != 406 {
		t.Errorf("Accept application/cbor: %d, want 406", resp.StatusCode)
	}
	if resp := s.raw(t, t.Context(), "GET", "/api/v1/namespaces/default/configmaps", "", "application/json;q=0.9,application/cbor;q=1", nil); resp.StatusCode != 200 {
		t.Errorf("Accept with JSON as second choice: %d, want 200", resp.StatusCode)
	}
}
