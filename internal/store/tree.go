package store

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store/sharing"
)

// tree holds the items of one resource, ordered by namespace and name. Copies
// share nodes until one of them changes.
type tree = btree.BTreeG[*Item]

func newTree() *tree {
	return btree.NewBTreeGOptions(itemLess, btree.Options{NoLocks: true})
}

func itemLess(a, b *Item) bool { return compareKeys(a.Key, b.Key) < 0 }

// compareKeys orders keys of one resource.
func compareKeys(a, b Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func treeGet(t *tree, key Key) *Item {
	if t == nil {
		return nil
	}
	item, _ := t.Get(&Item{Key: key})
	return item
}

// before returns the item that precedes key, nil when there is none.
func before(t *tree, key Key) *Item {
	var found *Item
	if t != nil {
		t.Descend(&Item{Key: key}, func(item *Item) bool {
			found = item
			return false
		})
	}
	return found
}

// rank counts the items that come before key.
func rank(t *tree, key Key) int {
	return sort.Search(t.Len(), func(i int) bool {
		item, _ := t.GetAt(i)
		return compareKeys(item.Key, key) >= 0
	})
}

// state is the whole content at one revision. A published state never changes.
type state struct {
	revision int64
	index    map[schema.GroupResource]int // into trees; shared by states, never changed
	trees    []*tree

	indexes *indexes
	fields  []*fieldTree // one for each index

	unreadable map[Key]*Unreadable // shared by states, never changed
}

func (s *state) tree(gr schema.GroupResource) *tree {
	if i, ok := s.index[gr]; ok {
		return s.trees[i]
	}
	return nil
}

func (s *state) get(key Key) *Item { return treeGet(s.tree(key.Resource), key) }

// draft is a state being changed by its one owner. Its trees are its own; dirty
// names those that changed since the last freeze.
type draft struct {
	state
	dirty  map[int]struct{}
	broken []schema.GroupResource // whose unreadable objects changed since
}

func newDraft(x *indexes) *draft {
	d := &draft{state: state{index: map[schema.GroupResource]int{}, indexes: x}, dirty: map[int]struct{}{}}
	for range x.all {
		d.fields = append(d.fields, newFieldTree())
	}
	return d
}

// mutable returns the tree of a resource for a change.
func (d *draft) mutable(gr schema.GroupResource) *tree {
	i, ok := d.index[gr]
	if !ok {
		i = len(d.trees)
		d.index = maps.Clone(d.index)
		d.index[gr] = i
		d.trees = append(d.trees, newTree())
	}
	d.dirty[i] = struct{}{}
	return d.trees[i]
}

func (d *draft) set(item *Item) {
	if d.unreadable[item.Key] != nil {
		d.forget(item.Key)
	}
	was, _ := d.mutable(item.Key.Resource).Set(item)
	d.indexes.move(d.fields, item.Key.Resource, was, item)
}

func (d *draft) remove(key Key) {
	was, _ := d.mutable(key.Resource).Delete(&Item{Key: key})
	d.indexes.move(d.fields, key.Resource, was, nil)
}

// freeze returns the draft's content as a state. from is what the last freeze
// returned, nil the first time: trees that did not change since are taken from it.
func (d *draft) freeze(from *state) *state {
	out := &state{revision: d.revision, index: d.index, trees: make([]*tree, len(d.trees))}
	out.indexes, out.fields = d.indexes, make([]*fieldTree, len(d.fields))
	out.unreadable = d.unreadable
	if from != nil {
		copy(out.trees, from.trees)
		copy(out.fields, from.fields)
	}
	for i := range d.dirty {
		out.trees[i] = d.trees[i].Copy()
	}
	for i, index := range d.indexes.all {
		if t, ok := d.index[index.Resource]; !ok || has(d.dirty, t) || out.fields[i] == nil {
			out.fields[i] = d.fields[i].Copy()
		}
	}
	clear(d.dirty)
	return out
}

// load fills an empty draft.
func (d *draft) load(items []*Item) {
	slices.SortFunc(items, func(a, b *Item) int {
		return cmp.Or(
			strings.Compare(a.Key.Resource.Resource, b.Key.Resource.Resource),
			strings.Compare(a.Key.Resource.Group, b.Key.Resource.Group),
			compareKeys(a.Key, b.Key))
	})
	share(items)
	for _, item := range items {
		d.mutable(item.Key.Resource).Load(item)
	}
	for i := range d.indexes.all {
		if t := d.tree(d.indexes.all[i].Resource); t != nil {
			d.indexes.all[i].fill(d.fields[i], t)
		}
	}
}

// share gives objects that stand side by side their equal parts in common. Every
// processor takes a run of them.
func share(items []*Item) {
	var runs sync.WaitGroup
	for run := range slices.Chunk(items, len(items)/runtime.GOMAXPROCS(0)+1) {
		runs.Go(func() {
			for i := 1; i < len(run); i++ {
				sharing.Parts(run[i].Object, run[i-1].Object)
			}
		})
	}
	runs.Wait()
}

func has(set map[int]struct{}, i int) bool {
	_, ok := set[i]
	return ok
}
