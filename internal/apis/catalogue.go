// Package apis says what exists. A kind is one Resource value in a Catalogue:
// routes, discovery, OpenAPI, tables, selectors, defaulting, validation and the
// storage codec all derive from it. A CustomResourceDefinition becomes the same
// value at run time, so there is no second request path for custom resources.
//
// The package knows no server and no store. A folder per API group holds a file
// per kind.
package apis

import (
	"context"
	"fmt"
	"reflect"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Object is any API object. An object that a Store has committed is shared by
// every reader in the process and must not be changed; copy it first.
type Object interface {
	runtime.Object
	metav1.Object
}

// Scope says whether objects of a kind live in a namespace.
type Scope int

const (
	Namespaced Scope = iota
	Cluster
)

// Resource is one kind as the API serves it. Group, Version and Kind name the
// hub version: the type New returns, which the store keeps and every component
// works with. Other served versions convert to and from it (Also).
type Resource struct {
	Group, Version, Kind string
	Plural, Singular     string // Singular defaults to the lower-case Kind
	Short                []string
	Categories           []string
	Scope                Scope

	// Gate names the feature gate without which the kind is not served at all.
	Gate string

	// Unserved is set while the hub version itself is switched off: HTTP clients
	// see versions of Also only, the program's own parts still the hub.
	Unserved bool

	New     func() Object
	NewList func() runtime.Object

	// Verbs defaults to create, delete, deletecollection, get, list, patch,
	// update and watch. Review kinds (SubjectAccessReview, ...) have create only
	// and are never stored; the registry calls the handler registered for them.
	Verbs []string

	Subresources []Subresource

	// Resets are the fields that a write to the object itself cannot change and
	// so cannot own. Nil: status, of kinds that write it as a subresource.
	Resets []string

	// Also lists the other group versions that serve the same stored objects.
	Also []Served

	// Storage names the version of Also or Readable that values are stored in, as
	// upstream's do for one release after a version is new, so that the release
	// before can read them. Empty: the hub's.
	Storage string
	// Readable are the versions besides those of Also that values may lie in the
	// store in: Proa serves them nowhere, or not now.
	Readable []Served

	// Custom is set for the kind of a CustomResourceDefinition, Versions for its
	// further served versions, each of which has a Custom, too, and no Versions.
	Custom   *Custom
	Versions []*Resource

	// Default fills absent fields of the hub version as upstream's versioned
	// defaulting does. Nil where the kind has no defaults.
	Default func(Object)

	// PrepareCreate and PrepareUpdate drop what a client may not set (status on
	// the main resource) and carry over what it may not change. They must not
	// touch metadata.generation: the registry raises it when spec changed.
	// PrepareCreate runs after name, namespace and uid are set.
	PrepareCreate func(Object)
	PrepareUpdate func(obj, old Object)

	// Requestor writes into a new object who asked for it. It runs after
	// PrepareCreate. Nil where a kind does not say.
	Requestor func(obj Object, by user.Info)

	// Stamp sets the times of changes that the server, not the client, tells
	// (conditions of CertificateSigningRequests, phases of PersistentVolumes).
	// It runs after PrepareCreate (old nil), PrepareUpdate and a subresource's
	// PrepareUpdate. Nil where the kind has none.
	Stamp func(obj, old Object, now time.Time)

	// Validate and ValidateUpdate return upstream's field errors, metadata
	// beyond the common ObjectMeta rules included; the registry itself checks
	// ObjectMeta with ValidateName. ValidateUpdate gets a valid old object and
	// is called for the main resource only.
	Validate       func(ctx context.Context, obj Object) field.ErrorList
	ValidateUpdate func(ctx context.Context, obj, old Object) field.ErrorList

	// ValidateName returns messages as apimachinery's name validators do. Nil
	// means a DNS subdomain.
	ValidateName func(name string, prefix bool) []string

	// ChecksNameOnUpdate has ValidateName judge generateName on updates, too, as
	// upstream's kinds do whose update validates the whole object again.
	ChecksNameOnUpdate bool

	// ChecksMeta is set for kinds whose Validate and ValidateUpdate judge metadata,
	// too: of a new object they alone, of an update they besides. What both find is
	// told twice, as upstream does of kinds without declared rules.
	ChecksMeta bool

	// Settle gives an object that is valid the form it is stored in. It may not
	// change what the object means. Nil: it stays as it is.
	Settle func(Object)

	// Warnings returns texts for the Warning header. Nil: none. Old is nil on create.
	Warnings func(obj, old Object) []string

	// Fields are what a field selector may match besides metadata.name and
	// metadata.namespace, by name. Nil: nothing else.
	Fields map[string]func(Object) string

	// FieldAliases are older names of Fields.
	FieldAliases map[string]string

	// Indexed names those of Fields that the store keeps an index of: a list or
	// watch that asks for one value of them costs what it finds.
	Indexed []string

	// NoGeneration is set for kinds whose metadata.generation stays 0 (Events,
	// Secrets, ConfigMaps, ... : those upstream never counts).
	NoGeneration bool

	// GenerationFromZero is set for kinds that count changes but not their
	// creation, FixedGeneration for those whose generation stays 1.
	GenerationFromZero, FixedGeneration bool

	// AnyFinalizer is set for kinds whose finalizers need no domain.
	AnyFinalizer bool

	// AnnotationsCount raises the generation when annotations change, too.
	AnnotationsCount bool

	// LabelsCount raises the generation when labels change, too.
	LabelsCount bool

	// GracefulDelete returns the grace period in seconds that a delete of obj
	// gets, 0 for at once. Nil: always at once. Only Pods have one.
	GracefulDelete func(obj Object, opts *metav1.DeleteOptions) int64

	// AllowCreateOnUpdate lets PUT create a missing object, as upstream does for
	// a few kinds (Lease, Event, Node-less ones...).
	AllowCreateOnUpdate bool

	// ConditionalUpdate refuses a PUT that carries no resourceVersion.
	ConditionalUpdate bool

	// Dependents says what becomes of an object's dependents when a delete does
	// not say.
	Dependents Dependents

	// Columns and Row print the kind in a Table: one cell per column, as of now
	// (ages). Nil Columns: Name and Created At.
	Columns []metav1.TableColumnDefinition
	Row     func(obj Object, now time.Time) []any
	// RowConditions says what a client may want to show a row differently for. Nil: nothing.
	RowConditions func(obj Object) []metav1.TableRowCondition
}

// Dependents is what becomes of the objects that name a deleted one as their owner.
type Dependents int

const (
	// DependentsDeleted deletes them in the background.
	DependentsDeleted Dependents = iota
	// DependentsOrphaned keeps them, as upstream does for old kinds.
	DependentsOrphaned
	// NoDependents is for kinds that own nothing: what a delete asks for is ignored.
	NoDependents
)

// Subresource is a path below an object.
type Subresource struct {
	Name string // "status", "scale", "log", "binding", ...

	// Group, Version, Kind of the body where it differs from the parent's:
	// autoscaling/v1 Scale, policy/v1 Eviction, authentication.k8s.io/v1 TokenRequest.
	Group, Version, Kind string
	New                  func() Object // nil: the parent's New
	// Accepts are further versions that the body may be in. Only New and ToHub count.
	Accepts []Served

	Verbs []string // "get", "patch", "update" for status and scale; "create" for binding...

	// PrepareUpdate and ValidateUpdate work on the parent object for
	// subresources that write it (status, ephemeralcontainers, resize, approval,
	// finalize): PrepareUpdate copies everything but the subresource's part from old.
	PrepareUpdate  func(obj, old Object)
	ValidateUpdate func(ctx context.Context, obj, old Object) field.ErrorList

	// Resets are the fields, as paths with dots, that a write here cannot change
	// and so cannot own. Nil: spec for status, none for all else.
	Resets []string

	// Scale reads and writes the scale subresource. Nil unless Name is "scale".
	Scale *Scale
}

// Scale maps a kind to autoscaling/v1 Scale.
type Scale struct {
	// Paths are where replicas are, by the apiVersion of an object; nil:
	// spec.replicas. Missing says that an object has none; nil: it always has.
	Paths   map[string][]string
	Missing func(Object) bool

	Replicas       func(Object) int32
	SetReplicas    func(Object, int32)
	StatusReplicas func(Object) int32
	Selector       func(Object) string
}

// Served is one more group version of a Resource's objects.
type Served struct {
	Group, Version, Kind string
	New                  func() Object
	NewList              func() runtime.Object
	// ToHub and FromHub return new objects and lose nothing on a round trip.
	ToHub, FromHub func(Object) (Object, error)
	Default        func(Object) // of the served version, before ToHub

	// Strict holds names to DNS subdomains and finalizers to domains in this
	// version, whatever the Resource says.
	Strict bool

	// Validate and ValidateUpdate take the place of the Resource's for writes in
	// this version. Nil: the Resource's hold for it, too.
	Validate       func(ctx context.Context, obj Object) field.ErrorList
	ValidateUpdate func(ctx context.Context, obj, old Object) field.ErrorList
}

// GroupResource is the name the store keys objects by.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}

// GroupVersionKind names the hub version.
func (r *Resource) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
}

// GroupVersionResource names the hub version.
func (r *Resource) GroupVersionResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Plural}
}

// Subresource returns the named subresource, nil when the kind has none.
func (r *Resource) Subresource(name string) *Subresource {
	for i := range r.Subresources {
		if r.Subresources[i].Name == name {
			return &r.Subresources[i]
		}
	}
	return nil
}

// View is a Resource seen in one of its served versions. Served is nil for the hub.
type View struct {
	*Resource
	Served *Served
}

// Catalogue is the set of resources a server serves. Reads take no lock: the
// index is replaced whole when a resource is added or removed.
type Catalogue struct {
	mu    sync.Mutex // serialises writers
	index atomic.Pointer[index]
}

type index struct {
	all        []*Resource
	byResource map[schema.GroupVersionResource]View
	byKind     map[schema.GroupVersionKind]View
	byStorage  map[schema.GroupResource]*Resource
	byType     map[reflect.Type]*Resource
	replaced   chan struct{} // closed when another index takes this one's place
}

// NewCatalogue returns a catalogue of the given resources. It panics when two
// claim the same path: the built-in list is part of the program.
func NewCatalogue(resources ...*Resource) *Catalogue {
	c := &Catalogue{}
	idx, err := buildIndex(resources)
	if err != nil {
		panic(err)
	}
	c.index.Store(idx)
	return c
}

// Add serves one more resource, replacing the one of the same group and plural.
func (c *Catalogue) Add(r *Resource) error { return c.Change([]*Resource{r}, nil) }

// Remove stops serving a resource.
func (c *Catalogue) Remove(gr schema.GroupResource) {
	_ = c.Change(nil, []schema.GroupResource{gr}) // nothing new: no path can be taken
}

// Change adds and removes resources at once. An added one replaces that of the
// same group and plural. With an error nothing changes: a path is already served.
func (c *Catalogue) Change(add []*Resource, remove []schema.GroupResource) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := map[schema.GroupResource]bool{}
	for _, gr := range remove {
		gone[gr] = true
	}
	for _, r := range add {
		gone[r.GroupResource()] = true
	}
	all := make([]*Resource, 0, len(c.index.Load().all)+len(add))
	for _, r := range c.index.Load().all {
		if !gone[r.GroupResource()] {
			all = append(all, r)
		}
	}
	idx, err := buildIndex(append(all, add...))
	if err != nil {
		return err
	}
	close(c.index.Swap(idx).replaced)
	return nil
}

// Lookup finds the resource served at a group, version and plural name.
func (c *Catalogue) Lookup(gvr schema.GroupVersionResource) (View, bool) {
	v, ok := c.index.Load().byResource[gvr]
	return v, ok
}

// Kind finds the resource that serves a kind.
func (c *Catalogue) Kind(gvk schema.GroupVersionKind) (View, bool) {
	v, ok := c.index.Load().byKind[gvk]
	return v, ok
}

// Stored finds the resource that the store keys by gr.
func (c *Catalogue) Stored(gr schema.GroupResource) (*Resource, bool) {
	r, ok := c.index.Load().byStorage[gr]
	return r, ok
}

// Of finds the resource whose hub type is obj's. Custom resources share a type
// and are not found this way.
func (c *Catalogue) Of(obj runtime.Object) (*Resource, bool) {
	r, ok := c.index.Load().byType[reflect.TypeOf(obj)]
	return r, ok
}

// All returns every resource, ordered by group and plural name. The slice is shared.
func (c *Catalogue) All() []*Resource { return c.index.Load().all }

// Changed returns a channel that is closed when a resource is added or removed.
// Ask for it before All, so as to miss nothing.
func (c *Catalogue) Changed() <-chan struct{} { return c.index.Load().replaced }

// buildIndex fails when two resources claim the same path.
func buildIndex(all []*Resource) (*index, error) {
	sort.Slice(all, func(i, j int) bool {
		if all[i].Group != all[j].Group {
			return all[i].Group < all[j].Group
		}
		return all[i].Plural < all[j].Plural
	})
	idx := &index{
		all:        all,
		byResource: map[schema.GroupVersionResource]View{},
		byKind:     map[schema.GroupVersionKind]View{},
		byStorage:  map[schema.GroupResource]*Resource{},
		byType:     map[reflect.Type]*Resource{},
		replaced:   make(chan struct{}),
	}
	for _, r := range all {
		if err := idx.add(r); err != nil {
			return nil, err
		}
		for _, v := range r.Versions {
			if err := idx.add(v); err != nil {
				return nil, err
			}
		}
		idx.byStorage[r.GroupResource()] = r
		if obj := r.New(); !isUnstructured(obj) {
			idx.byType[reflect.TypeOf(obj)] = r
		}
	}
	return idx, nil
}

func isUnstructured(obj runtime.Object) bool {
	_, ok := obj.(runtime.Unstructured)
	return ok
}

// add indexes the paths and kinds of one resource.
func (idx *index) add(r *Resource) error {
	err := idx.serve(View{Resource: r}, r.GroupVersionKind())
	for i := range r.Also {
		s := &r.Also[i]
		if err == nil {
			err = idx.serve(View{Resource: r, Served: s}, schema.GroupVersionKind{Group: s.Group, Version: s.Version, Kind: s.Kind})
		}
	}
	return err
}

func (idx *index) serve(v View, kind schema.GroupVersionKind) error {
	gvr := kind.GroupVersion().WithResource(v.Plural)
	if _, taken := idx.byResource[gvr]; taken {
		return fmt.Errorf("resource %s: group, version and plural already served", gvr)
	}
	idx.byResource[gvr] = v
	idx.byKind[kind] = v
	return nil
}
