package discovery

import (
	"encoding/json"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Remotes are the group versions that other servers serve. A list is never
// changed: another value means another state.
type Remotes struct{ List []Remote }

// Remote is one of them. It takes the place of a version of the catalogue.
type Remote struct {
	schema.GroupVersion
	GroupPriority, VersionPriority int32

	Document *apidiscovery.APIVersionDiscovery // as last read; nil: never. Not to be changed.
	Stale    bool                              // its server does not answer now
}

func (r *Remotes) list() []Remote {
	if r == nil {
		return nil
	}
	return r.List
}

// version is the entry of the aggregated document.
func (r *Remote) version() apidiscovery.APIVersionDiscovery {
	out := apidiscovery.APIVersionDiscovery{Version: r.Version}
	if r.Document != nil {
		out = *r.Document
	}
	out.Freshness = apidiscovery.DiscoveryFreshnessCurrent
	if r.Stale {
		out.Freshness = apidiscovery.DiscoveryFreshnessStale
	}
	return out
}

// Complete names a kind, be it an empty one, for every resource of a version:
// older clients need one.
func Complete(v *apidiscovery.APIVersionDiscovery) *apidiscovery.APIVersionDiscovery {
	v = v.DeepCopy()
	for i := range v.Resources {
		r := &v.Resources[i]
		if r.ResponseKind == nil {
			r.ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range r.Subresources {
			if r.Subresources[j].ResponseKind == nil {
				r.Subresources[j].ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
	return v
}

// FromResourceList reads the discovery of a group version that a server without
// the aggregated form has: an APIResourceList as JSON.
func FromResourceList(gv schema.GroupVersion, body []byte) (*apidiscovery.APIVersionDiscovery, error) {
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	out := &apidiscovery.APIVersionDiscovery{Version: gv.Version}
	at := map[string]int{}
	parent := func(name string) *apidiscovery.APIResourceDiscovery {
		i, ok := at[name]
		if !ok {
			i = len(out.Resources)
			at[name] = i
			out.Resources = append(out.Resources, apidiscovery.APIResourceDiscovery{Resource: name, ResponseKind: &metav1.GroupVersionKind{}})
		}
		return &out.Resources[i]
	}
	for _, r := range list.APIResources {
		kind := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		if r.Group == "" && r.Version == "" {
			kind.Group, kind.Version = gv.Group, gv.Version
		}
		scope := apidiscovery.ScopeCluster
		if r.Namespaced {
			scope = apidiscovery.ScopeNamespace
		}
		name, sub, isSub := strings.Cut(r.Name, "/")
		p := parent(name)
		p.Scope = scope
		if isSub {
			p.Subresources = append(p.Subresources, apidiscovery.APISubresourceDiscovery{Subresource: sub, ResponseKind: kind, Verbs: r.Verbs})
			continue
		}
		p.ResponseKind, p.SingularResource, p.Verbs = kind, r.SingularName, r.Verbs
		p.ShortNames, p.Categories = r.ShortNames, r.Categories
	}
	return out, nil
}
