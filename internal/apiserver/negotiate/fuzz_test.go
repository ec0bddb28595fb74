package negotiate

import (
	"net/http"
	"net/url"
	"slices"
	"testing"
)

// Any Accept and Content-Type header names a form that the endpoint has, or is
// refused.
func FuzzHeaders(f *testing.F) {
	f.Add("application/json;as=Table;v=v1;g=meta.k8s.io,application/json;q=0.5", "application/json; charset=utf-8")
	f.Add("*/*;q=x,,;=", "a/b;c")
	f.Fuzz(func(t *testing.T, accept, contentType string) {
		offered := Object(false, true)
		r := &http.Request{URL: &url.URL{}, Header: http.Header{"Accept": {accept}}}
		if got, err := Response(r, offered); err == nil && !slices.Contains(offered.Media, got.Media) {
			t.Errorf("%q chooses %s", accept, got.Media)
		}
		if got, err := Body(contentType, JSON, YAML); err == nil && got != JSON && got != YAML {
			t.Errorf("%q is taken for %s", contentType, got)
		}
	})
}
