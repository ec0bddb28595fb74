package client

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"proa/internal/apis"
)

// Discovery adds to a catalogue the kinds that an API server has besides the
// built-in ones: custom resources, and what other servers serve. Their objects
// are unstructured.
type Discovery struct {
	Config    *rest.Config
	Catalogue *apis.Catalogue
	Interval  time.Duration    // between looks; 0 means 30 seconds
	Clock     clock.WithTicker // nil: the real one

	found map[schema.GroupResource]*apis.Resource
}

const discoveryInterval = 30 * time.Second

// Run looks until ctx ends. A look that fails leaves the catalogue as it is.
func (d *Discovery) Run(ctx context.Context) error {
	api, err := discovery.NewDiscoveryClientForConfig(d.Config)
	if err != nil {
		return fmt.Errorf("discovery client: %w", err)
	}
	var clk clock.WithTicker = clock.RealClock{}
	if d.Clock != nil {
		clk = d.Clock
	}
	interval := discoveryInterval
	if d.Interval > 0 {
		interval = d.Interval
	}
	ticker := clk.NewTicker(interval)
	defer ticker.Stop()
	for {
		lists, err := discovery.ServerPreferredResources(api)
		if err != nil { // of some groups, whose kinds stay as they are
			slog.WarnContext(ctx, "Discover kinds", "err", err)
		}
		if err := d.take(lists, err == nil); err != nil {
			slog.ErrorContext(ctx, "Discover kinds", "err", err)
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return nil
		}
	}
}

// take brings the catalogue to what lists say; only whole lists tell what is gone.
func (d *Discovery) take(lists []*metav1.APIResourceList, whole bool) error {
	seen := map[schema.GroupResource]*apis.Resource{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, r := range list.APIResources {
			if r := d.resource(gv, r); r != nil {
				seen[r.GroupResource()] = r
			}
		}
	}
	var add []*apis.Resource
	var remove []schema.GroupResource
	for gr, r := range seen {
		if before := d.found[gr]; before == nil || before.GroupVersionKind() != r.GroupVersionKind() {
			add = append(add, r)
		}
	}
	for gr, r := range d.found {
		switch {
		case seen[gr] != nil:
		case whole:
			remove = append(remove, gr)
		default:
			seen[gr] = r
		}
	}
	if len(add)+len(remove) == 0 {
		return nil
	}
	if err := d.Catalogue.Change(add, remove); err != nil {
		return err
	}
	d.found = seen
	return nil
}

// resource is nil for a subresource, a built-in kind, and what cannot be listed.
func (d *Discovery) resource(gv schema.GroupVersion, r metav1.APIResource) *apis.Resource {
	gr := gv.WithResource(r.Name).GroupResource()
	if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") {
		return nil
	}
	_, stored := d.Catalogue.Stored(gr)
	_, served := d.Catalogue.Lookup(gv.WithResource(r.Name)) // perhaps stored in another group
	if (stored || served) && d.found[gr] == nil {
		return nil
	}
	gvk := gv.WithKind(r.Kind)
	made := &apis.Resource{
		Group: gv.Group, Version: gv.Version, Kind: r.Kind, Plural: r.Name, Singular: r.SingularName, Short: r.ShortNames, Verbs: r.Verbs,
		New: func() apis.Object {
			obj := &unstructured.Unstructured{}
			obj.SetGroupVersionKind(gvk)
			return obj
		},
		NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
	}
	if !r.Namespaced {
		made.Scope = apis.Cluster
	}
	return made
}
