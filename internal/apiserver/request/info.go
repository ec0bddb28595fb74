// Package request reads what a request is about from its URL and method: which
// resource, object and verb, or which other path. It promises the same answer as
// upstream's RequestInfo, because authorization rules are written against it.
package request

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Info says what a request is about. For anything that is not an API resource
// only Path and Verb (the lower-case HTTP method) are set.
type Info struct {
	Path string
	Verb string // get, list, watch, create, update, patch, delete, deletecollection, proxy

	IsResource  bool
	Prefix      string // "api" or "apis"
	Group       string
	Version     string
	Namespace   string // of a namespaced resource; the namespace's own name for the resource "namespaces"
	Resource    string
	Name        string // also from fieldSelector=metadata.name=... of a list or watch
	Subresource string

	// Parts is the path from the resource on: pods, name, subresource, rest.
	Parts []string
	// Namespaced is set when the path names a namespace before the resource.
	Namespaced bool
}

// GVR names the resource in the version that the path asks for.
func (i *Info) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: i.Group, Version: i.Version, Resource: i.Resource}
}

// Rest is the part of the path after the subresource ("" or with a leading
// slash), a trailing slash of the request included.
func (i *Info) Rest() string {
	if len(i.Parts) < 3 {
		return ""
	}
	rest := strings.Join(i.Parts[3:], "/")
	if rest != "" {
		rest = "/" + rest
	}
	if strings.HasSuffix(i.Path, "/") && !strings.HasSuffix(rest, "/") {
		rest += "/"
	}
	return rest
}

// LongRunning reports whether the request may last as long as its connection:
// watches and the streaming subresources.
func (i *Info) LongRunning() bool {
	if !i.IsResource {
		return strings.HasPrefix(i.Path, "/debug/pprof/")
	}
	switch i.Verb {
	case "watch", "proxy":
		return true
	}
	switch i.Subresource {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return false
}

// Parse reads the request's method and URL. It never fails: what is not a
// resource path is a non-resource request.
func Parse(r *http.Request) *Info {
	i := &Info{Path: r.URL.Path, Verb: strings.ToLower(r.Method)}
	parts := split(r.URL.Path)
	if len(parts) < 3 {
		return i
	}
	switch parts[0] {
	case "api":
		i.Prefix, i.Version, parts = "api", parts[1], parts[2:]
	case "apis":
		if len(parts) < 4 {
			return i
		}
		i.Prefix, i.Group, i.Version, parts = "apis", parts[1], parts[2], parts[3:]
	default:
		return i
	}
	i.IsResource = true
	i.Verb = methodVerb(r.Method)
	if parts[0] == "watch" || parts[0] == "proxy" {
		if len(parts) < 2 {
			i.Verb, i.IsResource = strings.ToLower(r.Method), false
			return i
		}
		i.Verb, parts = parts[0], parts[1:]
	}
	i.readParts(parts)
	i.readCollectionVerb(r.URL)
	return i
}

// readParts splits namespace, resource, name and subresource.
func (i *Info) readParts(parts []string) {
	if parts[0] == "namespaces" && len(parts) > 1 {
		i.Namespace = parts[1]
		// A namespace's own subresources are not resources inside it.
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts, i.Namespaced = parts[2:], true
		}
	}
	i.Parts = parts
	i.Resource = parts[0]
	if len(parts) > 1 {
		i.Name = parts[1]
	}
	if len(parts) > 2 && i.Verb != "proxy" {
		i.Subresource = parts[2]
	}
}

// readCollectionVerb turns the verb of a request without a name into its
// collection form, and takes the name that a field selector pins.
func (i *Info) readCollectionVerb(u *url.URL) {
	if i.Name != "" {
		return
	}
	if i.Verb == "delete" {
		i.Verb = "deletecollection"
	}
	var query url.Values
	if u.RawQuery != "" && (i.Verb == "get" || i.Verb == "watch" || i.Verb == "deletecollection") {
		query = u.Query()
	}
	if i.Verb == "get" {
		i.Verb = "list"
		if values, ok := query["watch"]; ok && isTrue(values) {
			i.Verb = "watch"
		}
	}
	i.Name = pinnedName(query["fieldSelector"])
}

// isTrue follows the query decoding of booleans: a bare parameter is true, and
// only "false" and "0" are not.
func isTrue(values []string) bool {
	if len(values) == 0 {
		return true
	}
	v := strings.ToLower(values[0])
	return v != "false" && v != "0"
}

func pinnedName(selectors []string) string {
	if len(selectors) == 0 || selectors[0] == "" {
		return ""
	}
	sel, err := fields.ParseSelector(selectors[0])
	if err != nil {
		return ""
	}
	name, ok := sel.RequiresExactMatch(metav1.ObjectNameField)
	if !ok || strings.ContainsAny(name, "/%") || name == "." || name == ".." {
		return ""
	}
	return name
}

func methodVerb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

func split(path string) []string {
	path = strings.Trim(path, "/")
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

type contextKey struct{}

// With returns a context that carries the info.
func With(ctx context.Context, i *Info) context.Context {
	return context.WithValue(ctx, contextKey{}, i)
}

// From returns the info of the request that ctx belongs to, nil outside one.
func From(ctx context.Context) *Info {
	i, _ := ctx.Value(contextKey{}).(*Info)
	return i
}
