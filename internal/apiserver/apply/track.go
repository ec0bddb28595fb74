package apply

import (
	"bytes"
	"cmp"
	"reflect"
	"sort"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"proa/internal/apis"
)

// maxUpdaters is how many managers of plain writes an object keeps before the oldest are merged.
const maxUpdaters = 10

// stripped are the fields that nobody owns.
var stripped = fieldpath.NewSet(
	fieldpath.MakePathOrDie("apiVersion"), fieldpath.MakePathOrDie("kind"), fieldpath.MakePathOrDie("metadata"),
	fieldpath.MakePathOrDie("metadata", "name"), fieldpath.MakePathOrDie("metadata", "namespace"),
	fieldpath.MakePathOrDie("metadata", "creationTimestamp"), fieldpath.MakePathOrDie("metadata", "selfLink"),
	fieldpath.MakePathOrDie("metadata", "uid"), fieldpath.MakePathOrDie("metadata", "generation"),
	fieldpath.MakePathOrDie("metadata", "managedFields"), fieldpath.MakePathOrDie("metadata", "resourceVersion"),
)

// track records a plain write by the differ. It answers false, with nothing
// changed, where it does not cover the case.
func (m *Manager) track(obj, old apis.Object, manager string) bool {
	if m.custom != nil {
		return m.trackCustom(obj.(*unstructured.Unstructured), old.(*unstructured.Unstructured), manager)
	}
	entries := old.GetManagedFields()
	if m.differ == nil || !m.covers(obj, entries) {
		return false
	}
	if len(entries) == 0 && old.GetUID() != "" {
		obj.SetManagedFields(nil) // never tracked: not from now on either
		return true
	}
	diff, ok := m.differ.compare(reflect.ValueOf(old).Elem(), reflect.ValueOf(obj).Elem())
	if !ok {
		return false
	}
	touched, removed := union(&diff.modified.set, &diff.added.set), &diff.removed.set
	if m.filter != nil {
		touched, removed = m.filter.Filter(touched), m.filter.Filter(removed)
	}
	tracked, ok := m.claim(entries, touched, removed, manager)
	if ok {
		obj.SetManagedFields(tracked)
	}
	return ok
}

// created is track for an object that did not exist before.
func (m *Manager) created(obj apis.Object, manager string) bool {
	if m.custom != nil {
		return m.createdCustom(obj.(*unstructured.Unstructured), manager)
	}
	if m.differ == nil || len(obj.GetManagedFields()) > 0 {
		return false
	}
	w := shapeWriters.Get().(*shapeWriter)
	defer shapeWriters.Put(w)
	w.buf, w.keys, w.ends, w.failed = w.buf[:0], w.keys[:0], w.ends[:0], false
	w.walk(m.differ.root, m.nothing, reflect.ValueOf(obj).Elem())
	if w.failed {
		return false
	}
	record, ok := m.shapes.get(w.buf)
	if !ok {
		diff, ok := m.differ.compare(m.nothing, reflect.ValueOf(obj).Elem())
		if !ok {
			return false
		}
		if record, ok = m.record(diff); !ok {
			return false
		}
		m.shapes.put(w.buf, record)
	}
	obj.SetManagedFields(nil)
	if record != nil {
		obj.SetManagedFields([]metav1.ManagedFieldsEntry{m.entry(cmp.Or(manager, unnamed), record)})
	}
	return true
}

// record is what the creator of an object owns, nil for nothing.
func (m *Manager) record(diff *differences) ([]byte, bool) {
	touched := union(&diff.modified.set, &diff.added.set)
	if m.filter != nil {
		touched = m.filter.Filter(touched)
	}
	mine := touched.Difference(stripped)
	if mine.Empty() {
		return nil, true
	}
	record, err := mine.ToJSON()
	return record, err == nil
}

// unnamed is who writes without a name.
const unnamed = "unknown"

// union copies nothing when one of the sets is empty.
func union(a, b *fieldpath.Set) *fieldpath.Set {
	switch {
	case a.Empty():
		return b
	case b.Empty():
		return a
	}
	return a.Union(b)
}

// covers leaves writes that edit managedFields and entries of other versions to the general way.
func (m *Manager) covers(obj apis.Object, entries []metav1.ManagedFieldsEntry) bool {
	sent := obj.GetManagedFields()
	if m.subresource == "" && sent != nil && !sameEntries(sent, entries) {
		return false
	}
	updaters := 0
	for i := range entries {
		e := &entries[i]
		if e.APIVersion != m.version || e.FieldsV1 == nil {
			return false
		}
		if e.Operation == metav1.ManagedFieldsOperationUpdate {
			updaters++
		}
	}
	return updaters < maxUpdaters
}

func sameEntries(a, b []metav1.ManagedFieldsEntry) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Manager != b[i].Manager || a[i].Operation != b[i].Operation || a[i].APIVersion != b[i].APIVersion ||
			a[i].Subresource != b[i].Subresource || !a[i].Time.Equal(b[i].Time) ||
			a[i].FieldsV1 == nil || b[i].FieldsV1 == nil || !bytes.Equal(a[i].FieldsV1.Raw, b[i].FieldsV1.Raw) {
			return false
		}
	}
	return true
}

// claim moves the touched fields to the writer and takes the removed ones from everybody.
func (m *Manager) claim(entries []metav1.ManagedFieldsEntry, touched, removed *fieldpath.Set, manager string) ([]metav1.ManagedFieldsEntry, bool) {
	manager = cmp.Or(manager, unnamed)
	mine := touched.Difference(stripped)
	var tracked []metav1.ManagedFieldsEntry
	claimed := mine.Empty()
	gone := union(touched, removed)
	for i := range entries {
		e := entries[i]
		owned, err := m.sets.read(e.FieldsV1.Raw)
		if err != nil {
			return nil, false
		}
		lost := owned.Intersection(gone)
		if !claimed && e.Manager == manager && e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == m.subresource {
			record := e.FieldsV1.Raw
			if !owned.canonical || !lost.Difference(mine).Empty() || !mine.Difference(owned.Set).Empty() {
				if record, err = owned.Difference(gone).Union(mine).ToJSON(); err != nil {
					return nil, false
				}
			}
			tracked, claimed = append(tracked, m.entry(manager, record)), true
			continue
		}
		left := owned.Set
		if !lost.Empty() {
			left = owned.Difference(gone)
			raw, err := left.ToJSON()
			if err != nil {
				return nil, false
			}
			e.FieldsV1 = &metav1.FieldsV1{Raw: raw}
		}
		if !left.Empty() {
			tracked = append(tracked, e)
		}
	}
	if !claimed {
		record, err := mine.ToJSON()
		if err != nil {
			return nil, false
		}
		tracked = append(tracked, m.entry(manager, record))
	}
	sortEntries(tracked)
	return tracked, true
}

// sets remembers records that were read: those of one template are the same. A
// set that it returned is shared and must not be changed.
type sets struct {
	mu    sync.RWMutex
	known map[string]knownSet
}

// knownSet is a set that was read. It is canonical if it was written as the set is.
type knownSet struct {
	*fieldpath.Set
	canonical bool
}

// maxSets bounds the records that are remembered of one kind, and maxRecord the
// bytes of one. When there are more, all are forgotten.
const (
	maxSets   = 256
	maxRecord = 16 << 10
)

func (s *sets) read(text []byte) (knownSet, error) {
	s.mu.RLock()
	known, ok := s.known[string(text)]
	s.mu.RUnlock()
	if ok {
		return known, nil
	}
	r := knownSet{Set: &fieldpath.Set{}}
	if err := r.FromJSON(bytes.NewReader(text)); err != nil {
		return knownSet{}, err
	}
	again, err := r.ToJSON()
	r.canonical = err == nil && bytes.Equal(again, text)
	if len(text) > maxRecord {
		return r, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxSets {
		s.known = map[string]knownSet{}
	}
	s.known[string(text)] = r
	return r, nil
}

func (m *Manager) entry(manager string, record []byte) metav1.ManagedFieldsEntry {
	now := metav1.NewTime(m.clock.Now()).Rfc3339Copy()
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: m.version, Time: &now,
		FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: record}, Subresource: m.subresource,
	}
}

// sortEntries orders entries by operation, second, manager, version and subresource.
func sortEntries(entries []metav1.ManagedFieldsEntry) {
	seconds := func(e *metav1.ManagedFieldsEntry) int64 {
		if e.Time == nil {
			return 0
		}
		return e.Time.Unix()
	}
	sort.SliceStable(entries, func(i, j int) bool {
		a, b := &entries[i], &entries[j]
		switch {
		case a.Operation != b.Operation:
			return a.Operation < b.Operation
		case seconds(a) != seconds(b):
			return seconds(a) < seconds(b)
		case a.Manager != b.Manager:
			return a.Manager < b.Manager
		case a.APIVersion != b.APIVersion:
			return a.APIVersion < b.APIVersion
		}
		return a.Subresource < b.Subresource
	})
}
