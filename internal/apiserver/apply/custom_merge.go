package apply

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"proa/internal/apis"
	"proa/internal/apiserver/wire"
)

// mergeCustom is merge for a custom resource. The result has in common with the
// object and the configuration what the merge left as it was there, so that the
// next steps of a write see at a glance that it is the same.
//
// What a configuration names depends on its shape alone, so the record of that is
// made once for all configurations of one template. A manager that names all it named
// before takes nothing away, but where it names something by nothing in it:
// structured-merge-diff then forgets that it is there if only empty lists are left.
func (m *Manager) mergeCustom(live apis.Object, config *unstructured.Unstructured, manager string, force bool) (apis.Object, bool) {
	from, ok := m.ownedBefore(live, manager)
	if !ok || !m.plainConfiguration(config) {
		return nil, false
	}
	record, mine, ok := m.applied(config)
	if !ok {
		return nil, false
	}
	w := treeMerger{}
	merged, _ := w.object(m.custom.root.object, from.object, config.Object)
	if from.own >= 0 && (w.hollow || !from.owners[from.own].set.Difference(mine).Empty()) {
		if merged, ok = m.pruneCustom(merged, config, from); !ok {
			return nil, false
		}
		w.changed = !equal(from.object, merged)
	}
	if manager == "kubectl" && annotated(merged) {
		return nil, false // the annotation has to follow the configuration
	}
	obj := &unstructured.Unstructured{Object: from.object}
	if w.changed {
		if !m.yieldCustom(from, merged, force) {
			return nil, false
		}
		completed, err := m.load(&unstructured.Unstructured{Object: merged})
		if err != nil {
			return nil, false
		}
		obj = completed.(*unstructured.Unstructured)
	}
	obj = wire.Detached(obj).(*unstructured.Unstructured)
	entries, ok := m.owned(from.owners, from.own, mine, record, manager, w.changed)
	return obj, ok && m.custom.set(obj, entries, from.entries, from.raw)
}

// ownedObject is a custom resource that is applied to, and who owns what of it.
type ownedObject struct {
	object  map[string]any // shared
	raw     []any          // its managedFields, and the same decoded
	entries []metav1.ManagedFieldsEntry
	owners  []owner // of the entries
	own     int     // which of them is the applier's, -1 for none
}

// ownedBefore takes a custom resource apart, nil for one that does not exist.
func (m *Manager) ownedBefore(live apis.Object, manager string) (ownedObject, bool) {
	if live == nil {
		return ownedObject{object: m.custom.empty, own: -1}, true
	}
	u := live.(*unstructured.Unstructured)
	x := ownedObject{object: u.Object}
	x.raw, _ = rawEntries(u)
	ok := false
	if x.entries, ok = m.read(x.raw); !ok || !m.custom.valid(u) {
		return x, false
	}
	x.owners, x.own, ok = m.owners(x.entries, manager, m.custom.root.fits)
	return x, ok
}

// plainConfiguration says that a configuration has nothing wrong with it.
func (m *Manager) plainConfiguration(config *unstructured.Unstructured) bool {
	_, sent := rawEntries(config)
	return !sent && config.GetAPIVersion() == m.version && config.GetKind() == m.kind && m.custom.valid(config)
}

// annotated says that an object has the annotation that has to follow kubectl's configuration.
func annotated(object map[string]any) bool {
	meta, _ := object["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	_, has := annotations[corev1.LastAppliedConfigAnnotation]
	return has
}

// applied is what the applier of a valid configuration owns, and its JSON: nil for nothing.
func (m *Manager) applied(config *unstructured.Unstructured) ([]byte, *fieldpath.Set, bool) {
	w := shapeWriters.Get().(*shapeWriter)
	defer shapeWriters.Put(w)
	w.buf, w.keys = w.buf[:0], w.keys[:0]
	w.outlineFields(m.custom.root.object, config.Object)
	record, ok := m.configurations.get(w.buf)
	if !ok {
		named, ok := m.names(config)
		if !ok {
			return nil, nil, false
		}
		if mine := named.Difference(stripped); !mine.Empty() {
			var err error
			if record, err = mine.ToJSON(); err != nil {
				return nil, nil, false
			}
		}
		m.configurations.put(w.buf, record)
	}
	if record == nil {
		return nil, fieldpath.NewSet(), true
	}
	mine, err := m.sets.read(record)
	return record, mine.Set, err == nil
}

// names are the fields of a valid configuration, without those that are not the
// subresource's.
func (m *Manager) names(config *unstructured.Unstructured) (*fieldpath.Set, bool) {
	l := treeLister{path: make(fieldpath.Path, 0, 16)}
	if !l.fields(m.custom.root.object, config.Object) {
		return nil, false
	}
	if m.filter != nil {
		return m.filter.Filter(&l.set.set), true
	}
	return &l.set.set, true
}

// yieldCustom takes what changed from all others, and what went from everybody.
// It answers false where that would need force.
func (m *Manager) yieldCustom(from ownedObject, merged map[string]any, force bool) bool {
	diff, ok := m.custom.compare(from.object, merged)
	if !ok {
		return false
	}
	touched, removed := union(&diff.modified.set, &diff.added.set), &diff.removed.set
	if m.filter != nil {
		touched, removed = m.filter.Filter(touched), m.filter.Filter(removed)
	}
	if !yield(from.owners, from.own, touched, force) {
		return false
	}
	for i := range from.owners {
		o := &from.owners[i]
		if i != from.own && !o.left.Intersection(removed).Empty() {
			o.left = o.left.Difference(removed)
		}
	}
	return true
}

// pruneCustom takes out of a merged object what the applier named last time, does
// not name any more, and nobody else owns.
func (m *Manager) pruneCustom(merged map[string]any, config *unstructured.Unstructured, from ownedObject) (map[string]any, bool) {
	owned, ok := m.names(config)
	if !ok {
		return nil, false
	}
	for i := range from.owners {
		if i != from.own {
			owned = owned.Union(from.owners[i].set)
		}
	}
	p := pruner{root: m.custom.root, complete: m.custom.complete}
	return p.prune(merged, from.owners[from.own].set, owned)
}

// complete adds the named fields above its members to a set.
func (c *customTracker) complete(s *fieldpath.Set) *fieldpath.Set {
	return s.EnsureNamedFieldsAreMembers(c.schema, c.ref)
}
