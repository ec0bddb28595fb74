package apply

import (
	"reflect"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// prune takes out of a merged object what the applying manager applied before,
// does not name any more, and nobody else owns. Everything below an item or field
// that goes is lost for all owners.
//
// What goes is found on sets of paths, in the three steps that
// structured-merge-diff takes on objects: without the fields of the last apply;
// then the merged object without what is neither left by that nor owned; then the
// merged object without what is missing in that and was applied last time.
func (m *Manager) prune(obj reflect.Value, owners []owner, own int, named *fieldpath.Set, hollow bool) (pruned, ok bool) {
	last := owners[own].set
	if last.Empty() || last.Difference(named).Empty() {
		return false, true
	}
	if hollow {
		return false, false // the paths of the struct are not those of what was merged
	}
	s, ref := m.differ.schema, m.differ.ref
	w := lister{path: make(fieldpath.Path, 0, 16)}
	if !w.record(m.differ.root, obj) {
		return false, false
	}
	merged := w.set.set.EnsureNamedFieldsAreMembers(s, ref)
	owned := named
	for i := range owners {
		if i != own {
			owned = owned.Union(owners[i].set)
		}
	}
	owned, last = owned.EnsureNamedFieldsAreMembers(s, ref), last.EnsureNamedFieldsAreMembers(s, ref)
	unowned := merged.Difference(merged.RecursiveDifference(last).Union(owned))
	gone := merged.Difference(merged.RecursiveDifference(unowned)).Intersection(last)
	root := m.differ.root
	if root.cutsKeys(last, merged) || root.cutsKeys(unowned, merged) || root.cutsKeys(gone, merged) {
		return false, false
	}
	if gone.Empty() {
		return false, true
	}
	for i := range owners {
		left := owners[i].set.RecursiveDifference(gone)
		if !owners[i].set.Difference(left).Difference(merged).Empty() {
			return false, false // an owner of what does not exist
		}
		owners[i].left = left
	}
	_, ok = root.remove(obj, gone)
	return ok, ok
}

// cutsKeys says that a set has fields of a list's item without which the item
// would be another, or nothing, but not the item. Merged is what there is.
func (n *node) cutsKeys(s, merged *fieldpath.Set) (cuts bool) {
	s.Children.Iterate(func(pe fieldpath.PathElement) {
		below, _ := s.Children.Get(pe)
		sub := n.below(pe)
		have := merged.WithPrefix(pe)
		cuts = cuts || sub == nil || n.shape == keyed && !s.Members.Has(pe) && n.identifies(pe, below, have) || sub.cutsKeys(below, have)
	})
	return cuts
}

// identifies says whether a set of an item's fields has all of them, or one of its
// keys other than with the key's default.
func (n *node) identifies(item fieldpath.PathElement, fields, have *fieldpath.Set) bool {
	if item.Key == nil || have.RecursiveDifference(fields).Empty() {
		return true
	}
	for i := range n.keys {
		k := &n.keys[i]
		if !fields.Members.Has(fieldpath.FieldNameElement(k.name)) {
			continue
		}
		for _, f := range *item.Key {
			if f.Name == k.name && (k.def == nil || !value.Equals(f.Value, value.NewValueInterface(k.def))) {
				return true
			}
		}
	}
	return false
}

// below is the node at an element of a path, nil if there is none.
func (n *node) below(pe fieldpath.PathElement) *node {
	if n.shape != record {
		return n.elem
	}
	if pe.FieldName == nil {
		return nil
	}
	if f := n.named[*pe.FieldName]; f != nil {
		return f.node
	}
	return nil
}

// remove takes the members of a set out of a value. It says whether nothing is
// left then of a value that had something.
func (n *node) remove(v reflect.Value, gone *fieldpath.Set) (emptied, ok bool) {
	switch v = deref(v); {
	case !v.IsValid() || n.shape == leaf:
		return false, false
	case n.shape == record:
		return n.removeFields(v, gone)
	case n.shape == mapping:
		return n.removeKeys(v, gone)
	}
	return n.removeItems(v, gone)
}

func (n *node) removeFields(v reflect.Value, gone *fieldpath.Set) (emptied, ok bool) {
	before, removed := 0, 0
	for i := range n.fields {
		f := &n.fields[i]
		if !f.at(v).IsValid() {
			continue
		}
		before++
		to := field(v, f.index)
		if gone.Members.Has(f.element) {
			to.SetZero()
			removed++
			continue
		}
		below, has := gone.Children.Get(f.element)
		if !has {
			continue
		}
		emptied, ok := f.node.remove(to, below)
		if !ok {
			return false, false
		}
		if emptied {
			to.SetZero()
		}
	}
	return before > 0 && removed == before, true
}

func (n *node) removeKeys(v reflect.Value, gone *fieldpath.Set) (emptied, ok bool) {
	for it := v.MapRange(); it.Next(); {
		name := it.Key().String()
		pe := fieldpath.PathElement{FieldName: &name}
		if gone.Members.Has(pe) {
			v.SetMapIndex(it.Key(), reflect.Value{})
			continue
		}
		below, has := gone.Children.Get(pe)
		if !has {
			continue
		}
		made := reflect.New(v.Type().Elem()).Elem()
		made.Set(it.Value())
		if emptied, ok := n.elem.remove(made, below); emptied || !ok {
			return false, false
		}
		v.SetMapIndex(it.Key(), made)
	}
	return v.Len() == 0, true
}

func (n *node) removeItems(v reflect.Value, gone *fieldpath.Set) (emptied, ok bool) {
	kept := 0
	for i := range v.Len() {
		at, ok := elementOf(n, v.Index(i))
		if !ok {
			return false, false
		}
		if gone.Members.Has(at) {
			continue
		}
		if below, has := gone.Children.Get(at); has {
			if emptied, ok := n.elem.remove(v.Index(i), below); emptied || !ok {
				return false, false
			}
		}
		if kept < i {
			v.Index(kept).Set(v.Index(i))
		}
		kept++
	}
	v.Set(v.Slice(0, kept))
	return kept == 0, true
}

// lister collects the paths of a struct as structured-merge-diff does of a typed value.
type lister struct {
	path fieldpath.Path
	set  sink
}

// value collects what lies at the path.
func (w *lister) value(n *node, v reflect.Value) bool {
	if n.shape == leaf {
		w.set.insert(w.path)
		return true
	}
	if v = deref(v); !v.IsValid() {
		return true
	}
	switch n.shape {
	case record:
		return w.record(n, v)
	case mapping:
		return w.mapping(n, v)
	}
	return w.list(n, v)
}

func (w *lister) record(n *node, v reflect.Value) bool {
	for i := range n.fields {
		f := &n.fields[i]
		have := f.at(v)
		if !have.IsValid() {
			continue
		}
		ok := w.at(f.element, f.node, have, isNull(have) || f.node.isMap() && length(f.node, have) == 0)
		if !ok {
			return false
		}
	}
	return true
}

func (n *node) isMap() bool { return n.shape == record || n.shape == mapping }

// at collects what lies at an element below the path, and that itself if member is set.
func (w *lister) at(pe fieldpath.PathElement, n *node, v reflect.Value, member bool) bool {
	w.path = append(w.path, pe)
	ok := w.value(n, v)
	if member {
		w.set.insert(w.path)
	}
	w.path = w.path[:len(w.path)-1]
	w.set.leave(len(w.path))
	return ok
}

func (w *lister) mapping(n *node, v reflect.Value) bool {
	for it := v.MapRange(); it.Next(); {
		key := it.Key().String()
		if !w.at(fieldpath.PathElement{FieldName: &key}, n.elem, it.Value(), true) {
			return false
		}
	}
	return true
}

func (w *lister) list(n *node, v reflect.Value) bool {
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return v.IsNil()
	}
	items, ok := elements(v.Len(), func(i int) (fieldpath.PathElement, bool) { return elementOf(n, v.Index(i)) })
	for i := 0; ok && i < len(items.all); i++ {
		ok = w.at(items.all[i], n.elem, v.Index(i), true)
	}
	return ok
}
