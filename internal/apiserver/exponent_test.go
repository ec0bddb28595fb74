package apiserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A quantity with a large exponent is read at once and compared for minutes. It is
// refused however it comes, and the same text elsewhere is not.
func TestQuantitiesWithLargeExponents(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	const pods = "/api/v1/namespaces/default/pods"
	pod := func(name, cpu string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"annotations":{"digest":"1e999999999"}},"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":%q}}}]}}`, name, cpu)
	}
	if resp, body := w.do("POST", pods, pod("a", "1"), "Content-Type", "application/json"); resp.StatusCode != http.StatusCreated {
		t.Fatal(body)
	}
	const huge = `{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1e999999999"}}}]}}`
	tests := []struct{ method, path, body, contentType string }{
		{"POST", pods, pod("b", "1e999999999"), "application/json"},
		{"PUT", pods + "/a", pod("a", "1E+99999"), "application/json"},
		{"PATCH", pods + "/a", huge, "application/strategic-merge-patch+json"},
		{"PATCH", pods + "/a", huge, "application/merge-patch+json"},
		{"PATCH", pods + "/a?fieldManager=m&force=true", pod("a", "1e999999999"), "application/apply-patch+yaml"},
		{"PATCH", pods + "/a", `[{"op":"replace","path":"/spec/containers/0/resources/limits/cpu","value":"1e999999999"}]`, "application/json-patch+json"},
		{"PATCH", pods + "/a", `[{"op":"copy","from":"/metadata/annotations/digest","path":"/spec/containers/0/resources/limits/cpu"}]`, "application/json-patch+json"},
		{"PATCH", pods + "/a", strings.ReplaceAll(huge, "1e", `1\u0065`), "application/merge-patch+json"},
	}
	for _, tt := range tests {
		resp, body := w.do(tt.method, tt.path, tt.body, "Content-Type", tt.contentType)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "unable to parse quantity's suffix") {
			t.Errorf("%s %s: %d %s", tt.method, tt.contentType, resp.StatusCode, body)
		}
	}
}
