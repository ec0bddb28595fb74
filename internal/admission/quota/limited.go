package quota

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
)

// Uncovered returns what an object must not use unless a quota covers it, and none
// does: resources, and scopes that it is in. A quota covers a scope that it names for
// this object, whatever it limits there.
func (c Counter) Uncovered(limited []resourcequota.LimitedResource, quotas []*corev1.ResourceQuota, gr schema.GroupResource, obj runtime.Object) (
	resources []string, scopes []corev1.ScopedResourceSelectorRequirement) {
	names := c.limitedNames(limited, gr, obj)
	for _, l := range limited {
		scopes = append(scopes, scopesIn(l.MatchScopes, obj)...)
	}
	for _, q := range quotas {
		for _, covered := range scopesIn(scopesOf(q), obj) {
			scopes = slices.DeleteFunc(scopes, func(s corev1.ScopedResourceSelectorRequirement) bool { return s.ScopeName == covered.ScopeName })
		}
		if c.Matches(q, gr, obj) {
			for name := range c.Limited(q, gr) {
				delete(names, string(name))
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), scopes
}

// limitedNames are the resources that an object uses and that are limited for its kind.
func (c Counter) limitedNames(limited []resourcequota.LimitedResource, gr schema.GroupResource, obj runtime.Object) map[string]struct{} {
	names := map[string]struct{}{}
	for _, l := range limited {
		if l.APIGroup != gr.Group || l.Resource != gr.Resource {
			continue
		}
		for name, used := range c.Usage(gr, obj) {
			if used.Sign() > 0 && slices.ContainsFunc(l.MatchContains, func(part string) bool { return strings.Contains(string(name), part) }) {
				names[string(name)] = struct{}{}
			}
		}
	}
	return names
}

// scopesIn are those that take the object in.
func scopesIn(scopes []corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (in []corev1.ScopedResourceSelectorRequirement) {
	for _, s := range scopes {
		if inScope(s, obj) {
			in = append(in, s)
		}
	}
	return in
}
