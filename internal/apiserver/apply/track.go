package apply

import (
	"bytes"
	"reflect"
	"sort"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	if manager == "" {
		manager = "unknown"
	}
	mine := touched.Difference(stripped)
	var tracked []metav1.ManagedFieldsEntry
	claimed := mine.Empty()
	gone := union(touched, removed)
	for i := range entries {
		e := entries[i]
		owned := &fieldpath.Set{}
		if err := owned.FromJSON(bytes.NewReader(e.FieldsV1.Raw)); err != nil {
			return nil, false
		}
		left := owned.Difference(gone)
		if !claimed && e.Manager == manager && e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == m.subresource {
			entry, ok := m.entry(manager, left.Union(mine))
			if !ok {
				return nil, false
			}
			tracked, claimed = append(tracked, entry), true
			continue
		}
		if left.Empty() {
			continue
		}
		if !left.Equals(owned) {
			raw, err := left.ToJSON()
			if err != nil {
				return nil, false
			}
			e.FieldsV1 = &metav1.FieldsV1{Raw: raw}
		}
		tracked = append(tracked, e)
	}
	if !claimed {
		entry, ok := m.entry(manager, mine)
		if !ok {
			return nil, false
		}
		tracked = append(tracked, entry)
	}
	sortEntries(tracked)
	return tracked, true
}

func (m *Manager) entry(manager string, owned *fieldpath.Set) (metav1.ManagedFieldsEntry, bool) {
	raw, err := owned.ToJSON()
	now := metav1.NewTime(m.clock.Now()).Rfc3339Copy()
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: m.version, Time: &now,
		FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: raw}, Subresource: m.subresource,
	}, err == nil
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
