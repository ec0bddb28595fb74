package review

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis"
	"proa/internal/store"
)

// Compiled keeps what is made from the objects of one kind, until one of them
// changes. A request sees the configuration of the very state it is made on: no
// watch runs behind, and where no object exists nothing is kept or allocated.
type Compiled[T any] struct {
	Resource schema.GroupResource
	Make     func(apis.Object) T

	mu      sync.Mutex // serialises making
	current atomic.Pointer[generation[T]]
}

// generation is what was made of one set of objects, in the order of their names.
type generation[T any] struct {
	items []*store.Item
	made  []T
}

// None says that the newest state has no object of the kind.
func (c *Compiled[T]) None(s *store.Store) bool {
	return s.Snapshot().Len(c.Resource, "") == 0 // the snapshot stays on the stack
}

// Of returns what the objects of a state make, in the order of their names.
func (c *Compiled[T]) Of(sn *store.Snapshot) []T {
	if sn.Len(c.Resource, "") == 0 {
		return nil
	}
	if g := c.current.Load(); g != nil && c.holds(g, sn) {
		return g.made
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.current.Load()
	if g == nil || !c.holds(g, sn) {
		g = c.renew(g, sn)
		c.current.Store(g)
	}
	return g.made
}

// holds says that a generation was made from exactly the objects of a state.
func (c *Compiled[T]) holds(g *generation[T], sn *store.Snapshot) bool {
	n, same := 0, sn.Len(c.Resource, "") == len(g.items)
	if same {
		sn.Range(c.Resource, "", store.Key{}, func(item *store.Item) bool {
			same = n < len(g.items) && g.items[n] == item
			n++
			return same
		})
	}
	return same
}

type made struct {
	uid        types.UID
	generation int64
}

// renew makes a generation, taking over what did not change in more than its status.
func (c *Compiled[T]) renew(old *generation[T], sn *store.Snapshot) *generation[T] {
	kept := map[made]T{}
	if old != nil {
		for i, item := range old.items {
			kept[made{item.Object.GetUID(), item.Object.GetGeneration()}] = old.made[i]
		}
	}
	g := &generation[T]{}
	sn.Range(c.Resource, "", store.Key{}, func(item *store.Item) bool {
		t, ok := kept[made{item.Object.GetUID(), item.Object.GetGeneration()}]
		if !ok {
			t = c.Make(item.Object.(apis.Object))
		}
		g.items, g.made = append(g.items, item), append(g.made, t)
		return true
	})
	return g
}
