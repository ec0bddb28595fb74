package etcd

import (
	"cmp"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

// exceptions are the resources that upstream does not keep below their own name.
var exceptions = map[schema.GroupResource]string{
	{Resource: "endpoints"}:                                                "services/endpoints",
	{Resource: "nodes"}:                                                    "minions",
	{Resource: "replicationcontrollers"}:                                   "controllers",
	{Resource: "services"}:                                                 "services/specs",
	{Group: "networking.k8s.io", Resource: "ingresses"}:                    "ingress",
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: "apiextensions.k8s.io/customresourcedefinitions",
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             "apiregistration.k8s.io/apiservices",
}

// layout translates between keys and the places where upstream keeps their
// objects: <prefix>/<resource>/[<namespace>/]<name> for built-in resources,
// whatever their group, and <prefix>/<group>/<resource>/... for custom ones.
type layout struct {
	root   string // ends with a slash
	dirs   map[schema.GroupResource]string
	byName map[string]schema.GroupResource // the inverse of dirs
}

func newLayout(prefix string, builtin []schema.GroupResource) *layout {
	l := &layout{
		root:   strings.TrimSuffix(path.Join("/", prefix), "/") + "/",
		dirs:   map[schema.GroupResource]string{},
		byName: map[string]schema.GroupResource{},
	}
	for _, gr := range builtin {
		l.add(gr, strings.ToLower(gr.Resource))
	}
	for gr, dir := range exceptions {
		l.add(gr, dir)
	}
	return l
}

func (l *layout) add(gr schema.GroupResource, dir string) {
	if old, ok := l.dirs[gr]; ok {
		delete(l.byName, old)
	}
	l.dirs[gr], l.byName[dir] = dir, gr
}

// path returns where an object is kept; without a name, what all the objects of its
// place begin with.
func (l *layout) path(k store.Key) string {
	dir, ok := l.dirs[k.Resource]
	if !ok {
		dir = k.Resource.Resource
		if k.Resource.Group != "" {
			dir = k.Resource.Group + "/" + dir
		}
	}
	if k.Namespace == "" {
		return l.root + dir + "/" + k.Name
	}
	return l.root + dir + "/" + k.Namespace + "/" + k.Name
}

// key is the inverse of path; false for what is no object, such as the leases
// of upstream's servers and its ranges of addresses.
func (l *layout) key(p []byte) (store.Key, bool) {
	rest, ok := strings.CutPrefix(string(p), l.root)
	if !ok {
		return store.Key{}, false
	}
	first, tail, _ := strings.Cut(rest, "/")
	if gr, ok := l.byName[first]; ok {
		return objectKey(gr, tail)
	}
	second, tail, _ := strings.Cut(tail, "/")
	if gr, ok := l.byName[first+"/"+second]; ok {
		return objectKey(gr, tail)
	}
	if !strings.Contains(first, ".") {
		return store.Key{}, false
	}
	return objectKey(schema.GroupResource{Group: first, Resource: second}, tail)
}

func objectKey(gr schema.GroupResource, tail string) (store.Key, bool) {
	k := store.Key{Resource: gr, Name: tail}
	if namespace, name, ok := strings.Cut(tail, "/"); ok {
		k.Namespace, k.Name = namespace, name
	}
	return k, gr.Resource != "" && k.Name != "" && !strings.Contains(k.Name, "/")
}

// Paths returns where upstream keeps objects below a prefix, by default
// /registry: encrypted values are bound to that place on every engine.
func Paths(prefix string, builtin []schema.GroupResource) func(store.Key) string {
	return newLayout(cmp.Or(prefix, "/registry"), builtin).path
}

// Path says where the engine keeps an object.
func (e *Engine) Path(k store.Key) string { return e.layout.path(k) }
