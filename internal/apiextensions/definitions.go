package apiextensions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/egress"
	"proa/internal/store"
	"proa/internal/store/backend"
)

var definitionsResource = schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"}

// Config says what Definitions connect. Both are required.
type Config struct {
	Store     *store.Store
	Catalogue *apis.Catalogue
	// ByAddress leads calls of conversion webhooks to the addresses of Services, not
	// to their endpoints.
	ByAddress bool
	// Egress opens the connections to them.
	Egress egress.Dialers
}

// Definitions keep the catalogue as the stored CustomResourceDefinitions say.
type Definitions struct {
	store     *store.Store
	catalogue *apis.Catalogue
	services  backend.Resolver
	from      int64 // the revision that New read

	mu        sync.Mutex // guards the rest, and changes of the catalogue
	installed map[string]*definition
	ahead     map[string]string // resourceVersions that Install has gone beyond
}

// New puts the kinds of all stored definitions into the catalogue.
func New(c Config) (*Definitions, error) {
	if c.Store == nil || c.Catalogue == nil {
		return nil, errors.New("apiextensions: a store and a catalogue are required")
	}
	d := &Definitions{store: c.Store, catalogue: c.Catalogue, services: backend.Resolver{Store: c.Store, ByAddress: c.ByAddress, Egress: c.Egress}, installed: map[string]*definition{}, ahead: map[string]string{}}
	d.reload()
	return d, nil
}

// reload takes in the definitions of the newest snapshot.
func (d *Definitions) reload() {
	snapshot := d.store.Snapshot()
	d.from = snapshot.Revision()
	present := map[string]*apiextensionsv1.CustomResourceDefinition{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.installed {
		present[name] = nil
	}
	snapshot.Range(definitionsResource, "", store.Key{}, func(item *store.Item) bool {
		if crd, ok := item.Object.(*apiextensionsv1.CustomResourceDefinition); ok {
			present[crd.Name] = crd
		}
		return true
	})
	d.applyLocked(present)
}

// Run follows the stored definitions until ctx ends.
func (d *Definitions) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := d.follow(ctx)
		if errors.Is(err, store.ErrCompacted) {
			d.reload()
			continue
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("follow custom resource definitions: %w", err)
		}
	}
	return nil
}

func (d *Definitions) follow(ctx context.Context) error {
	w, err := d.store.Watch(definitionsResource, "", d.from)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return err
		}
		changed := map[string]*apiextensionsv1.CustomResourceDefinition{}
		for _, e := range events {
			crd, ok := e.Item.Object.(*apiextensionsv1.CustomResourceDefinition)
			if !ok {
				continue
			}
			changed[crd.Name] = crd
			if e.Type == store.Deleted {
				changed[crd.Name] = nil
			}
			d.from = e.Item.Revision
		}
		d.mu.Lock()
		for name, crd := range changed {
			if crd != nil && crd.ResourceVersion == d.ahead[name] {
				delete(changed, name) // what Install took in is newer
			}
			delete(d.ahead, name)
		}
		d.applyLocked(changed)
		d.mu.Unlock()
	}
}

// Install has the kind of a definition served before it returns, if it can be. It
// takes a state that is about to be stored, made from the stored one; when that is
// no longer the newest, nothing happens.
func (d *Definitions) Install(crd *apiextensionsv1.CustomResourceDefinition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	item, err := d.store.Get(store.Key{Resource: definitionsResource, Name: crd.Name})
	if err != nil || item.Object.GetUID() != crd.UID || item.Object.GetResourceVersion() != crd.ResourceVersion {
		return
	}
	d.ahead[crd.Name] = crd.ResourceVersion
	d.applyLocked(map[string]*apiextensionsv1.CustomResourceDefinition{crd.Name: crd})
}

// applyLocked makes the catalogue follow definitions, by name; nil for one that is gone.
func (d *Definitions) applyLocked(changed map[string]*apiextensionsv1.CustomResourceDefinition) {
	var add []*apis.Resource
	var remove []schema.GroupResource
	var ended []*definition
	for name, crd := range changed {
		old := d.installed[name]
		next, resource := d.compiled(crd, old)
		if next == old {
			continue
		}
		if old != nil {
			ended = append(ended, old)
			delete(d.installed, name)
			remove = append(remove, old.groupResource())
		}
		if resource != nil {
			add = append(add, resource)
			d.installed[name] = next
		}
	}
	if len(add)+len(remove) > 0 {
		d.change(add, remove)
	}
	for _, old := range ended {
		old.end()
	}
}

// compiled is what a definition's name stands for from now on: old when nothing
// that matters changed, nil when nothing is served.
func (d *Definitions) compiled(crd *apiextensionsv1.CustomResourceDefinition, old *definition) (*definition, *apis.Resource) {
	if crd == nil || !served(crd) {
		return nil, nil
	}
	if old != nil && old.state == stateOf(crd) {
		return old, nil
	}
	gr := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Status.AcceptedNames.Plural}
	if r, ok := d.catalogue.Stored(gr); ok && r.Custom == nil {
		return nil, nil // a built-in kind stays what it is
	}
	next, resource, err := prepare(crd, d.services)
	if err != nil {
		slog.Error("custom resource definition cannot be served", "name", crd.Name, "err", err)
	}
	return next, resource
}

// prepare makes the kind of a definition; none when it is not served. A definition is
// stored and read again at every start, so that one that upstream's code, or ours, panics
// over is only not served.
func prepare(crd *apiextensionsv1.CustomResourceDefinition, services backend.Resolver) (d *definition, r *apis.Resource, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			d, r, err = nil, nil, fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	if d, err = compile(crd, services); err != nil {
		return nil, nil, err
	}
	if r = d.resource(); r == nil {
		d.end()
		return nil, nil, nil
	}
	return d, r, nil
}

// change changes the catalogue, leaving out what claims a path that is taken.
func (d *Definitions) change(add []*apis.Resource, remove []schema.GroupResource) {
	if d.catalogue.Change(add, remove) == nil {
		return
	}
	_ = d.catalogue.Change(nil, remove) // takes no path
	for _, r := range add {
		if err := d.catalogue.Change([]*apis.Resource{r}, nil); err != nil {
			slog.Error("custom resource definition cannot be served", "name", r.Custom.Definition, "err", err)
		}
	}
}
