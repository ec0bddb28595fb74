package store

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Index lets the items of a resource be listed and watched by the value of one
// of their fields. Value is called often, on shared objects.
type Index struct {
	Resource schema.GroupResource
	Field    string
	Value    func(Object) string
}

// indexes are a store's, in a fixed order.
type indexes struct {
	all []Index
	of  map[schema.GroupResource][]int // into all
}

func newIndexes(all []Index) *indexes {
	x := &indexes{all: all, of: map[schema.GroupResource][]int{}}
	for i, index := range all {
		x.of[index.Resource] = append(x.of[index.Resource], i)
	}
	return x
}

// find returns the position of an index, -1 when there is none.
func (x *indexes) find(gr schema.GroupResource, field string) int {
	for _, i := range x.of[gr] {
		if x.all[i].Field == field {
			return i
		}
	}
	return -1
}

// fieldTree holds the items of a resource, ordered by a field's value, namespace
// and name.
type fieldTree = btree.BTreeG[fieldEntry]

type fieldEntry struct {
	value string
	item  *Item
}

func newFieldTree() *fieldTree {
	return btree.NewBTreeGOptions(func(a, b fieldEntry) bool {
		return cmp.Or(strings.Compare(a.value, b.value), compareKeys(a.item.Key, b.item.Key)) < 0
	}, btree.Options{NoLocks: true, Degree: 12}) // a change copies a path of nodes
}

// move puts an item into the trees of its resource in place of an earlier one; either may be nil.
func (x *indexes) move(trees []*fieldTree, gr schema.GroupResource, was, is *Item) {
	for _, i := range x.of[gr] {
		var before, after string
		if was != nil {
			before = x.all[i].Value(was.Object)
		}
		if is != nil {
			after = x.all[i].Value(is.Object)
		}
		if was != nil && (is == nil || before != after) {
			trees[i].Delete(fieldEntry{before, was})
		}
		if is != nil {
			trees[i].Set(fieldEntry{after, is})
		}
	}
}

// fill loads an empty tree with the items of another one.
func (index *Index) fill(into *fieldTree, from *tree) {
	entries := make([]fieldEntry, 0, from.Len())
	from.Scan(func(item *Item) bool {
		entries = append(entries, fieldEntry{index.Value(item.Object), item})
		return true
	})
	slices.SortStableFunc(entries, func(a, b fieldEntry) int { return strings.Compare(a.value, b.value) })
	for _, e := range entries {
		into.Load(e)
	}
}

// touches says whether an event concerns a watch for a value of the field.
func (index *Index) touches(e *Event, value string) bool {
	return index.Value(e.Item.Object) == value || e.Prev != nil && index.Value(e.Prev.Object) == value
}
