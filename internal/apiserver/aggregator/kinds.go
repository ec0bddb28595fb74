package aggregator

import (
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apiserver/discovery"
)

// Kinds is the catalogue of what other servers keep, each kind in the version that
// its group prefers. It follows what they say; a kind of a server that does not
// answer stays in it.
func (a *Aggregator) Kinds() *apis.Catalogue { return a.kinds }

// Unknown are the group versions whose servers do not say what they have.
func (a *Aggregator) Unknown() (unknown []schema.GroupVersion) {
	remotes := a.Discovery()
	if remotes == nil {
		return nil
	}
	for _, r := range remotes.List {
		if r.Stale {
			unknown = append(unknown, r.GroupVersion)
		}
	}
	slices.SortFunc(unknown, func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) })
	return unknown
}

// publishKinds brings the catalogue to what is described now.
func (a *Aggregator) publishKinds() error {
	a.publishing.Lock()
	defer a.publishing.Unlock()
	var list []discovery.Remote
	if remotes := a.Discovery(); remotes != nil {
		list = remotes.List
	}
	described := kindsOf(list)
	var add []*apis.Resource
	for gr, r := range described {
		if before, ok := a.kinds.Stored(gr); !ok || !sameKind(before, r) {
			add = append(add, r)
		}
	}
	var remove []schema.GroupResource
	for _, r := range a.kinds.All() {
		if described[r.GroupResource()] == nil {
			remove = append(remove, r.GroupResource())
		}
	}
	if len(add)+len(remove) == 0 {
		return nil
	}
	return a.kinds.Change(add, remove)
}

// kindsOf are the described kinds, one for all versions of a group.
func kindsOf(list []discovery.Remote) map[schema.GroupResource]*apis.Resource {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b discovery.Remote) int { return int(b.VersionPriority) - int(a.VersionPriority) })
	kinds := map[schema.GroupResource]*apis.Resource{}
	for _, remote := range list {
		if remote.Document == nil {
			continue
		}
		for _, d := range remote.Document.Resources {
			if d.ResponseKind == nil {
				continue
			}
			r := newKind(remote.GroupVersion, d)
			if before := kinds[r.GroupResource()]; before != nil {
				before.Also = append(before.Also, apis.Served{Group: r.Group, Version: r.Version, Kind: r.Kind, New: r.New, NewList: r.NewList})
				continue
			}
			kinds[r.GroupResource()] = r
		}
	}
	return kinds
}

func newKind(gv schema.GroupVersion, d apidiscovery.APIResourceDiscovery) *apis.Resource {
	gvk := gv.WithKind(d.ResponseKind.Kind)
	r := &apis.Resource{
		Group: gv.Group, Version: gv.Version, Kind: gvk.Kind, Plural: d.Resource, Singular: d.SingularResource, Verbs: append([]string{}, d.Verbs...),
		New: func() apis.Object {
			obj := &unstructured.Unstructured{}
			obj.SetGroupVersionKind(gvk)
			return obj
		},
		NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
	}
	if d.Scope == apidiscovery.ScopeCluster {
		r.Scope = apis.Cluster
	}
	return r
}

func sameKind(a, b *apis.Resource) bool {
	return a.GroupVersionKind() == b.GroupVersionKind() && a.Scope == b.Scope && slices.Equal(a.Verbs, b.Verbs) &&
		slices.EqualFunc(a.Also, b.Also, func(a, b apis.Served) bool { return a.Version == b.Version && a.Kind == b.Kind })
}
