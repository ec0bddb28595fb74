// Package discovery tells clients which groups, versions, resources and verbs
// exist. Every document is derived from the catalogue, made when it is first
// asked for after a change, and served as the same bytes from then on.
package discovery

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"sort"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"proa/internal/apis"
	"proa/internal/apis/apiregistration"
)

// terminatingVerbs are what is left of a kind whose definition is being deleted.
var terminatingVerbs = []string{"delete", "deletecollection", "get", "list", "watch"}

// customVerbs are those of custom resources, in upstream's order.
var customVerbs = []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}

var allVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// served is a resource in one of its versions.
type served struct {
	*apis.Resource
	kind schema.GroupVersionKind
}

// byGroupVersion sorts the catalogue into group versions.
func byGroupVersion(all []*apis.Resource) map[schema.GroupVersion][]served {
	m := map[schema.GroupVersion][]served{}
	add := func(r *apis.Resource, group, version, kind string) {
		gv := schema.GroupVersion{Group: group, Version: version}
		m[gv] = append(m[gv], served{r, gv.WithKind(kind)})
	}
	for _, r := range all {
		if !r.Unserved {
			add(r, r.Group, r.Version, r.Kind)
		}
		for _, s := range r.Also {
			add(r, s.Group, s.Version, s.Kind)
		}
		for _, v := range r.Versions {
			add(v, v.Group, v.Version, v.Kind)
		}
	}
	for _, list := range m {
		sort.Slice(list, func(i, j int) bool { return list[i].Plural < list[j].Plural })
	}
	return m
}

// contents are all group versions, by who serves them.
type contents struct {
	local  map[schema.GroupVersion][]served
	remote map[schema.GroupVersion]*Remote
}

func contentsOf(all []*apis.Resource, remotes *Remotes) contents {
	c := contents{byGroupVersion(all), map[schema.GroupVersion]*Remote{}}
	for i := range remotes.list() {
		r := &remotes.List[i]
		c.remote[r.GroupVersion] = r
		delete(c.local, r.GroupVersion)
	}
	return c
}

// priority is that of a version among its group's and of its group among others.
func (c contents) priority(gv schema.GroupVersion) apiregistration.Priority {
	if r := c.remote[gv]; r != nil {
		return apiregistration.Priority{Group: r.GroupPriority, Version: r.VersionPriority}
	}
	return apiregistration.PriorityOf(gv)
}

// group is a group with its versions, the preferred one first.
type group struct {
	name     string
	priority int32
	versions []string
}

// groups lists the groups in the order clients prefer them.
func (c contents) groups() []group {
	byName := map[string]*group{}
	add := func(gv schema.GroupVersion) {
		g := byName[gv.Group]
		if g == nil {
			g = &group{name: gv.Group}
			byName[gv.Group] = g
		}
		g.priority = max(g.priority, c.priority(gv).Group)
		g.versions = append(g.versions, gv.Version)
	}
	for gv := range c.local {
		add(gv)
	}
	for gv := range c.remote {
		add(gv)
	}
	list := make([]group, 0, len(byName))
	for _, g := range byName {
		sort.Slice(g.versions, func(i, j int) bool { return c.preferred(g.name, g.versions[i], g.versions[j]) })
		list = append(list, *g)
	}
	sort.Slice(list, func(i, j int) bool {
		if list[i].priority != list[j].priority {
			return list[i].priority > list[j].priority
		}
		return list[i].name < list[j].name
	})
	return list
}

// preferred says that version a of a group comes before b.
func (c contents) preferred(group, a, b string) bool {
	pa, pb := c.priority(schema.GroupVersion{Group: group, Version: a}), c.priority(schema.GroupVersion{Group: group, Version: b})
	if pa.Version != pb.Version {
		return pa.Version > pb.Version
	}
	return version.CompareKubeAwareVersionStrings(a, b) > 0
}

// apiGroups is the answer to /apis: every group but the core one.
func (c contents) apiGroups() *metav1.APIGroupList {
	list := &metav1.APIGroupList{Groups: []metav1.APIGroup{}}
	for _, g := range c.groups() {
		if g.name != "" {
			list.Groups = append(list.Groups, apiGroup(g))
		}
	}
	return list
}

func apiGroup(g group) metav1.APIGroup {
	out := metav1.APIGroup{Name: g.name}
	for _, v := range g.versions {
		gv := schema.GroupVersion{Group: g.name, Version: v}
		out.Versions = append(out.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v})
	}
	out.PreferredVersion = out.Versions[0]
	return out
}

// Resources is the answer to /api/v1 or /apis/<group>/<version>: its resources
// and their subresources.
func Resources(gv schema.GroupVersion, list []served) *metav1.APIResourceList {
	out := &metav1.APIResourceList{GroupVersion: gv.String(), APIResources: []metav1.APIResource{}}
	for _, s := range list {
		namespaced := s.Scope == apis.Namespaced
		if len(verbs(s.Resource)) > 0 {
			out.APIResources = append(out.APIResources, metav1.APIResource{
				Name: s.Plural, SingularName: singular(s), Namespaced: namespaced, Kind: s.kind.Kind,
				Verbs: verbs(s.Resource), ShortNames: s.Short, Categories: s.Categories, StorageVersionHash: storageHash(s.Resource),
			})
		}
		for _, sub := range subresources(s) {
			r := metav1.APIResource{Name: s.Plural + "/" + sub.Name, Namespaced: namespaced, Kind: sub.kind.Kind, Verbs: sub.Verbs}
			if sub.kind.GroupVersion() != gv {
				r.Group, r.Version = sub.kind.Group, sub.kind.Version
			}
			out.APIResources = append(out.APIResources, r)
		}
	}
	return out
}

// aggregated is the whole of the given groups in one document.
func (c contents) aggregated(core bool) *apidiscovery.APIGroupDiscoveryList {
	list := &apidiscovery.APIGroupDiscoveryList{Items: []apidiscovery.APIGroupDiscovery{}}
	for _, g := range c.groups() {
		if (g.name == "") != core {
			continue
		}
		item := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.name}}
		for _, v := range g.versions {
			gv := schema.GroupVersion{Group: g.name, Version: v}
			if r := c.remote[gv]; r != nil {
				item.Versions = append(item.Versions, r.version())
			} else {
				item.Versions = append(item.Versions, aggregatedVersion(gv, c.local[gv]))
			}
		}
		list.Items = append(list.Items, item)
	}
	return list
}

func aggregatedVersion(gv schema.GroupVersion, list []served) apidiscovery.APIVersionDiscovery {
	out := apidiscovery.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
	for _, s := range list {
		gv := gv
		if s.Custom != nil {
			gv = schema.GroupVersion{} // always said
		}
		r := apidiscovery.APIResourceDiscovery{
			Resource: s.Plural, ResponseKind: responseKind(gv, s.kind), Scope: apidiscovery.ScopeNamespace, SingularResource: singular(s),
			Verbs: verbs(s.Resource), ShortNames: s.Short, Categories: s.Categories,
		}
		if s.Scope == apis.Cluster {
			r.Scope = apidiscovery.ScopeCluster
		}
		for _, sub := range subresources(s) {
			r.Subresources = append(r.Subresources, apidiscovery.APISubresourceDiscovery{
				Subresource: sub.Name, ResponseKind: responseKind(gv, sub.kind), Verbs: sub.Verbs,
			})
		}
		out.Resources = append(out.Resources, r)
	}
	return out
}

// responseKind names group and version where they are not those of the path.
func responseKind(gv schema.GroupVersion, k schema.GroupVersionKind) *metav1.GroupVersionKind {
	if k.GroupVersion() == gv {
		return &metav1.GroupVersionKind{Kind: k.Kind}
	}
	return &metav1.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
}

func singular(s served) string {
	if s.Singular != "" {
		return s.Singular
	}
	return strings.ToLower(s.kind.Kind)
}

func verbs(r *apis.Resource) []string {
	if r.Custom != nil && r.Custom.Terminating {
		return terminatingVerbs
	}
	if r.Custom != nil && r.Verbs == nil {
		return customVerbs
	}
	if r.Verbs == nil {
		return allVerbs
	}
	sorted := slices.Clone(r.Verbs)
	slices.Sort(sorted)
	return sorted
}

type servedSubresource struct {
	apis.Subresource
	kind schema.GroupVersionKind
}

// subresources sorts a resource's subresources by name and gives each its kind.
func subresources(s served) []servedSubresource {
	list := make([]servedSubresource, 0, len(s.Subresources))
	for _, sub := range s.Subresources {
		kind := s.kind
		if sub.Kind != "" {
			kind = schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}
		}
		sub.Verbs = slices.Clone(sub.Verbs)
		slices.Sort(sub.Verbs)
		list = append(list, servedSubresource{sub, kind})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	if s.Custom != nil { // status comes first
		slices.Reverse(list)
	}
	return list
}

// storageHash names the version that objects are stored in; kinds that cannot be
// watched are not stored.
func storageHash(r *apis.Resource) string {
	if !slices.Contains(verbs(r), "watch") {
		return ""
	}
	version := r.Version
	if r.Storage != "" {
		version = r.Storage
	}
	if r.Custom != nil {
		version = r.Custom.StorageVersion
	}
	if r.Group == apiextensions.GroupName && r.Custom == nil {
		version = "v1beta1" // which upstream keeps definitions in
	}
	sum := sha256.Sum256([]byte(r.Group + "/" + version + "/" + r.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}
