package store

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Snapshot is the whole content at one revision. Reading it takes no lock, and
// it stays as it is for as long as it is held.
type Snapshot struct{ state *state }

// Revision is the revision that the snapshot shows.
func (sn *Snapshot) Revision() int64 { return sn.state.revision }

// Get returns the item at key, ErrNotFound, or an *Unreadable.
func (sn *Snapshot) Get(key Key) (*Item, error) {
	if item := sn.state.get(key); item != nil {
		return item, nil
	}
	if u := sn.state.unreadable[key]; u != nil {
		return nil, u
	}
	return nil, ErrNotFound
}

// Range calls fn in key order (namespace, name) for the items of a resource in
// one namespace, or in all of them if namespace is empty, strictly after a key
// (the zero Key: from the start) until fn returns false.
func (sn *Snapshot) Range(gr schema.GroupResource, namespace string, after Key, fn func(*Item) bool) {
	t := sn.state.tree(gr)
	if t == nil {
		return
	}
	start := Key{Namespace: after.Namespace, Name: after.Name}
	if start.Namespace < namespace {
		start = Key{Namespace: namespace}
	}
	t.Ascend(&Item{Key: start}, func(item *Item) bool {
		if namespace != "" && item.Key.Namespace != namespace {
			return item.Key.Namespace < namespace
		}
		if compareKeys(item.Key, after) == 0 {
			return true
		}
		return fn(item)
	})
}

// RangeField is Range for the items whose indexed field has a value. It returns
// false, and calls nothing, when the store has no such index.
func (sn *Snapshot) RangeField(gr schema.GroupResource, field, value, namespace string, after Key, fn func(*Item) bool) bool {
	i := sn.state.indexes.find(gr, field)
	if i < 0 {
		return false
	}
	start := Key{Namespace: after.Namespace, Name: after.Name}
	if start.Namespace < namespace {
		start = Key{Namespace: namespace}
	}
	sn.state.fields[i].Ascend(fieldEntry{value, &Item{Key: start}}, func(e fieldEntry) bool {
		switch {
		case e.value != value, namespace != "" && e.item.Key.Namespace != namespace:
			return false
		case compareKeys(e.item.Key, after) == 0:
			return true
		}
		return fn(e.item)
	})
	return true
}

// Len counts the items of a resource in one namespace, or in all of them if
// namespace is empty.
func (sn *Snapshot) Len(gr schema.GroupResource, namespace string) int {
	return sn.LenAfter(gr, namespace, Key{})
}

// LenAfter counts what Range would visit, without visiting it.
func (sn *Snapshot) LenAfter(gr schema.GroupResource, namespace string, after Key) int {
	t := sn.state.tree(gr)
	if t == nil {
		return 0
	}
	start, end := 0, t.Len()
	if namespace != "" {
		start = rank(t, Key{Namespace: namespace})
		end = rank(t, Key{Namespace: namespace + "\x00"})
	}
	if after.Namespace != "" || after.Name != "" {
		start = max(start, rank(t, Key{Namespace: after.Namespace, Name: after.Name + "\x00"}))
	}
	return max(0, end-start)
}

// Unchanged reports whether both snapshots show the same content of a resource,
// without looking at it. What is compiled from the one then holds for the other.
func (sn *Snapshot) Unchanged(gr schema.GroupResource, since *Snapshot) bool {
	return sn.state == since.state || sn.state.tree(gr) == since.state.tree(gr)
}
