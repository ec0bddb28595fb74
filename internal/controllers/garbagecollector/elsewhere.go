package garbagecollector

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/client"
)

// With has the collector follow the kinds that other servers keep, too. Everywhere is
// the API that reaches them beside those of this one.
func (g *Controller) With(elsewhere *apis.Catalogue, everywhere client.API) *Controller {
	g.elsewhere, g.graph.elsewhere, g.api = elsewhere, elsewhere, everywhere
	return g
}

// kind finds what serves a kind. Remote: another server does.
func (g *graph) kind(apiVersion, kind string) (r *apis.Resource, remote, ok bool) {
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	if g.elsewhere != nil {
		if view, ok := g.elsewhere.Kind(gvk); ok {
			return view.Resource, true, true
		}
	}
	view, ok := g.catalogue.Kind(gvk)
	return view.Resource, false, ok
}

// collectables are the kinds to follow, and what is closed when there are others. An
// API service that takes a kind over has its objects elsewhere.
func (g *Controller) collectables() (served map[schema.GroupResource]*apis.Resource, changed [2]<-chan struct{}) {
	served = map[schema.GroupResource]*apis.Resource{}
	for i, catalogue := range []*apis.Catalogue{g.catalogue, g.elsewhere} {
		if catalogue == nil {
			continue
		}
		changed[i] = catalogue.Changed()
		for _, r := range catalogue.All() {
			if collectable(r) {
				served[r.GroupResource()] = r
			}
		}
	}
	return served, changed
}
