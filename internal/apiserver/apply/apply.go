// Package apply keeps the record of who set which field of an object
// (metadata.managedFields) and merges server-side apply configurations by it
// (KEP-555). It keeps one manager for each kind, version and subresource. Usual writes
// are merged and compared on Go structs and JSON trees as they are; the rest is left to
// structured-merge-diff, which gets the kinds of the catalogue from here, and to which
// the tests hold everything else.
package apply

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"proa/internal/apis"
	"proa/internal/apiserver/wire"
)

// Managers holds the field managers of every kind, made on first use.
type Managers struct {
	clock  clock.PassiveClock
	byKind sync.Map // kindKey -> *Manager
}

type kindKey struct {
	resource    *apis.Resource
	served      *apis.Served
	subresource string
}

// Types is the merge schema of the built-in kinds.
func Types() managedfields.TypeConverter { return builtinConverter() }

// New returns an empty set of managers.
func New(c clock.PassiveClock) *Managers { return &Managers{clock: c} }

// For returns the manager of one served version of a kind and a subresource ("" for none).
func (m *Managers) For(v apis.View, subresource string) (*Manager, error) {
	key := kindKey{v.Resource, v.Served, subresource}
	if found, ok := m.byKind.Load(key); ok {
		return found.(*Manager), nil
	}
	made, err := m.make(v, subresource)
	if err != nil {
		return nil, err
	}
	found, known := m.byKind.LoadOrStore(key, made)
	if c := v.Custom; c != nil && !known {
		context.AfterFunc(c.Lifetime, func() { m.byKind.Delete(key) })
	}
	return found.(*Manager), nil
}

func (m *Managers) make(v apis.View, subresource string) (*Manager, error) {
	form := wire.Of(v)
	conv := &converter{resource: v.Resource}
	types := m.types(v.Resource, form)
	fields, err := managedfields.NewDefaultCRDFieldManager(types, conv, conv, conv,
		form.GroupVersionKind, v.GroupVersionKind().GroupVersion(), subresource, resetFields(v.Resource, subresource))
	if err != nil {
		return nil, fmt.Errorf("field manager of %s: %w", form.GroupVersionKind, err)
	}
	made := &Manager{empty: conv.empty, form: form, fields: fields, clock: m.clock, subresource: subresource, version: form.GroupVersion().String(), kind: form.Kind}
	made.filter = resetFields(v.Resource, subresource)[fieldpath.APIVersion(made.version)]
	if v.Served == nil && !form.IsUnstructured() {
		made.nothing = reflect.ValueOf(conv.empty()).Elem()
		made.differ = differOf(types, wire.Typed(conv.empty(), form.GroupVersionKind))
	}
	if v.Custom != nil {
		made.custom = newCustomTracker(types, conv.empty())
		made.load = v.Custom.Load
	}
	return made, nil
}

// differOf returns nil for a kind that has none.
func differOf(types managedfields.TypeConverter, empty apis.Object) *differ {
	typed, err := types.ObjectToTyped(empty)
	if err != nil {
		return nil
	}
	d, err := newDiffer(reflect.TypeOf(empty).Elem(), typed.Schema(), typed.TypeRef())
	if err != nil {
		return nil
	}
	return d
}

func (m *Managers) types(r *apis.Resource, form wire.Form) managedfields.TypeConverter {
	if r.Custom != nil {
		return r.Custom.Merge()
	}
	if form.IsUnstructured() {
		return managedfields.NewDeducedTypeConverter()
	}
	return known{builtinConverter(), managedfields.NewDeducedTypeConverter()}
}

// resetFields are what a write through a subresource (or past it) cannot change
// and so cannot own.
func resetFields(r *apis.Resource, subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	fields := resetsOf(r, subresource)
	if len(fields) == 0 {
		return nil
	}
	reset := fieldpath.NewSet()
	for _, field := range fields {
		var path fieldpath.Path
		for _, name := range strings.Split(field, ".") {
			path = append(path, fieldpath.PathElement{FieldName: &name})
		}
		reset.Insert(path)
	}
	filters := map[fieldpath.APIVersion]fieldpath.Filter{}
	filter := fieldpath.NewExcludeSetFilter(reset)
	filters[fieldpath.APIVersion(r.GroupVersionKind().GroupVersion().String())] = filter
	for _, s := range r.Also {
		filters[fieldpath.APIVersion(schema.GroupVersion{Group: s.Group, Version: s.Version}.String())] = filter
	}
	return filters
}

func resetsOf(r *apis.Resource, subresource string) []string {
	if subresource == "" {
		if r.Resets == nil && r.Subresource("status") != nil {
			return []string{"status"}
		}
		return r.Resets
	}
	if sub := r.Subresource(subresource); sub != nil && sub.Resets != nil {
		return sub.Resets
	}
	switch {
	case subresource != "status":
		return nil
	case r.Custom != nil:
		return []string{"spec", "metadata"}
	}
	return []string{"spec"}
}

// Manager records and merges writes to one kind in one served version.
type Manager struct {
	empty  func() apis.Object // a hub object with nothing in it
	form   wire.Form
	fields *managedfields.FieldManager
	clock  clock.PassiveClock

	differ         *differ                                // the fast way on Go structs; nil where there is none
	custom         *customTracker                         // the same for custom resources
	load           func(apis.Object) (apis.Object, error) // completes a custom resource, without changing it
	nothing        reflect.Value                          // an empty object, to compare with
	shapes         shapes                                 // of created objects
	configurations shapes                                 // of what was applied
	sets           sets                                   // of the records that were read
	filter         fieldpath.Filter                       // what a write cannot own; nil: nothing
	kind           string
	version        string
	subresource    string
}

// Created records in obj, a hub object about to be created, that manager set all its fields.
func (m *Manager) Created(obj apis.Object, manager string) {
	if !m.created(obj, manager) {
		m.Updated(obj, m.empty(), manager)
	}
}

// Updated records in obj which fields manager changed from old. When that fails
// the record of old is kept: a write never fails for it.
func (m *Manager) Updated(obj, old apis.Object, manager string) {
	if m.track(obj, old, manager) {
		return
	}
	m.updated(obj, old, manager)
}

// updated is Updated by structured-merge-diff.
func (m *Manager) updated(obj, old apis.Object, manager string) {
	before := old.GetManagedFields()
	if _, err := m.fields.Update(old, obj, manager); err != nil {
		obj.SetManagedFields(before)
		return
	}
	m.stamp(obj, before)
}

// Apply merges an apply configuration into live, which it does not change; a nil
// live object means that there is none yet. The error is a StatusError, with a
// cause for each field that another manager owns, or says what is wrong with the configuration.
func (m *Manager) Apply(live apis.Object, config *unstructured.Unstructured, manager string, force bool) (apis.Object, error) {
	if obj, ok := m.merge(live, config, manager, force); ok {
		return obj, nil
	}
	var before []metav1.ManagedFieldsEntry
	if live == nil {
		live = m.empty()
	} else {
		before = live.GetManagedFields()
	}
	return m.apply(live, before, config, manager, force)
}

// apply is Apply by structured-merge-diff.
func (m *Manager) apply(live apis.Object, before []metav1.ManagedFieldsEntry, config *unstructured.Unstructured, manager string, force bool) (apis.Object, error) {
	merged, err := m.fields.Apply(live, config, manager, force)
	if err != nil {
		return nil, err
	}
	obj, ok := merged.(apis.Object)
	if !ok {
		return nil, fmt.Errorf("apply made a %T", merged)
	}
	obj = wire.Bare(obj)
	m.stamp(obj, before)
	return obj, nil
}

// stamp gives the entries that a write made or renewed the injected clock's time.
// One that an apply made which changed nothing has none.
func (m *Manager) stamp(obj apis.Object, before []metav1.ManagedFieldsEntry) {
	entries := obj.GetManagedFields()
	now := metav1.NewTime(m.clock.Now()).Rfc3339Copy()
	for i := range entries {
		if entries[i].Time != nil && !hasTime(before, &entries[i]) {
			entries[i].Time = &now
		}
	}
	obj.SetManagedFields(entries)
}

func hasTime(before []metav1.ManagedFieldsEntry, e *metav1.ManagedFieldsEntry) bool {
	for i := range before {
		b := &before[i]
		if b.Manager == e.Manager && b.Operation == e.Operation && b.Subresource == e.Subresource &&
			b.APIVersion == e.APIVersion {
			return b.Time.Equal(e.Time)
		}
	}
	return false
}
