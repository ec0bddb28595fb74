package request

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name, method, url string
		want              Info
	}{
		{"a root path is not a resource", "GET", "/version", Info{Path: "/version", Verb: "get"}},
		{"a group list is not a resource", "GET", "/apis/apps/v1", Info{Path: "/apis/apps/v1", Verb: "get"}},
		{"a cluster-wide list of pods", "GET", "/api/v1/pods",
			Info{Verb: "list", IsResource: true, Prefix: "api", Version: "v1", Resource: "pods"}},
		{"a list in a namespace", "GET", "/apis/apps/v1/namespaces/a/deployments",
			Info{Verb: "list", IsResource: true, Prefix: "apis", Group: "apps", Version: "v1", Namespace: "a", Resource: "deployments", Namespaced: true}},
		{"one object", "GET", "/api/v1/namespaces/a/pods/p",
			Info{Verb: "get", IsResource: true, Prefix: "api", Version: "v1", Namespace: "a", Resource: "pods", Name: "p", Namespaced: true}},
		{"a subresource", "PUT", "/api/v1/namespaces/a/pods/p/status",
			Info{Verb: "update", IsResource: true, Prefix: "api", Version: "v1", Namespace: "a", Resource: "pods", Name: "p", Subresource: "status", Namespaced: true}},
		{"a namespace lies in itself", "DELETE", "/api/v1/namespaces/a",
			Info{Verb: "delete", IsResource: true, Prefix: "api", Version: "v1", Namespace: "a", Resource: "namespaces", Name: "a"}},
		{"a namespace's subresource", "PUT", "/api/v1/namespaces/a/finalize",
			Info{Verb: "update", IsResource: true, Prefix: "api", Version: "v1", Namespace: "a", Resource: "namespaces", Name: "a", Subresource: "finalize"}},
		{"all namespaces", "GET", "/api/v1/namespaces",
			Info{Verb: "list", IsResource: true, Prefix: "api", Version: "v1", Resource: "namespaces"}},
		{"watch as a query", "GET", "/api/v1/pods?watch=1",
			Info{Verb: "watch", IsResource: true, Prefix: "api", Version: "v1", Resource: "pods"}},
		{"watch=false is a list", "GET", "/api/v1/pods?watch=false",
			Info{Verb: "list", IsResource: true, Prefix: "api", Version: "v1", Resource: "pods"}},
		{"watch as a legacy path", "GET", "/api/v1/watch/namespaces/a/pods/p",
			Info{Verb: "watch", IsResource: true, Prefix: "api", Version: "v1", Namespace: "a", Resource: "pods", Name: "p", Namespaced: true}},
		{"a field selector pins the name", "GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp",
			Info{Verb: "list", IsResource: true, Prefix: "api", Version: "v1", Namespace: "a", Resource: "pods", Name: "p", Namespaced: true}},
		{"delete of a collection", "DELETE", "/api/v1/namespaces/a/pods",
			Info{Verb: "deletecollection", IsResource: true, Prefix: "api", Version: "v1", Namespace: "a", Resource: "pods", Namespaced: true}},
		{"create of a subresource", "POST", "/api/v1/namespaces/a/pods/p/exec?command=ls",
			Info{Verb: "create", IsResource: true, Prefix: "api", Version: "v1", Namespace: "a", Resource: "pods", Name: "p", Subresource: "exec", Namespaced: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Parse(httptest.NewRequest(tt.method, tt.url, nil))
			if tt.want.Path == "" {
				tt.want.Path, _, _ = strings.Cut(tt.url, "?")
			}
			got.Parts = nil
			if g, w := *got, tt.want; g.Path != w.Path || g.Verb != w.Verb || g.IsResource != w.IsResource || g.Prefix != w.Prefix ||
				g.GVR() != w.GVR() || g.Namespace != w.Namespace || g.Name != w.Name || g.Subresource != w.Subresource || g.Namespaced != w.Namespaced {
				t.Errorf("got %+v\nwant %+v", g, w)
			}
		})
	}
}

func TestRestKeepsTheTrailingSlash(t *testing.T) {
	for url, want := range map[string]string{
		"/api/v1/namespaces/a/pods/p/proxy":      "",
		"/api/v1/namespaces/a/pods/p/proxy/":     "/",
		"/api/v1/namespaces/a/pods/p/proxy/x/y":  "/x/y",
		"/api/v1/namespaces/a/pods/p/proxy/x/y/": "/x/y/",
		"/api/v1/nodes/n/proxy/pods":             "/pods",
	} {
		if got := Parse(httptest.NewRequest("GET", url, nil)).Rest(); got != want {
			t.Errorf("%s: got %q, want %q", url, got, want)
		}
	}
}

// A resource request always names a resource, and its parts come from the path.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"/api/v1/pods", "/apis/a/b/namespaces/c/d/e/f/g", "//api//v1///", "/api/v1/watch", "/api/v1/namespaces//pods"} {
		f.Add("GET", seed, "watch=1&fieldSelector=metadata.name=x")
	}
	f.Fuzz(func(t *testing.T, method, path, query string) {
		r := &http.Request{Method: method}
		r.URL = httptest.NewRequest("GET", "/", nil).URL
		r.URL.Path, r.URL.RawQuery = path, query
		i := Parse(r)
		if !i.IsResource {
			if i.Resource != "" || i.Name != "" {
				t.Fatalf("not a resource but %+v", i)
			}
			return
		}
		if i.Prefix != "api" && i.Prefix != "apis" || len(i.Parts) == 0 || i.Resource != i.Parts[0] {
			t.Fatalf("%+v", i)
		}
		for _, part := range []string{i.Group, i.Version, i.Namespace, i.Resource, i.Subresource} {
			if strings.Contains(part, "/") || part != "" && !strings.Contains(path, part) {
				t.Fatalf("part %q does not come from path %q", part, path)
			}
		}
		i.Rest()
	})
}
