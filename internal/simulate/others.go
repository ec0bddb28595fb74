package simulate

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/internal/simulate/lifecycle"
)

var catalogue = sync.OnceValue(builtin.Everything)

const namespaced = apis.Namespaced

// kindStore holds the objects of a kind other than nodes and pods that has stages.
type kindStore struct {
	follower client.Follower

	mu      sync.Mutex // guards objects
	objects map[types.NamespacedName]lifecycle.Object
}

func (o *kindStore) get(name types.NamespacedName) lifecycle.Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	if obj, ok := o.objects[name]; ok {
		return obj
	}
	return nil
}

func (o *kindStore) run(ctx context.Context) { _ = o.follower.Run(ctx) } // it ends with ctx only

func (s *Simulator) followOthers() error {
	for _, kind := range s.stages.Kinds() {
		if kind == nodeKind || kind == podKind {
			continue
		}
		gvr, ok := resourceOf(kind)
		if !ok {
			return fmt.Errorf("stages of %s: there is no such built-in kind", kind)
		}
		s.others[kind] = s.newKindStore(kind, gvr)
	}
	return nil
}

func (s *Simulator) newKindStore(kind schema.GroupKind, gvr schema.GroupVersionResource) *kindStore {
	o := &kindStore{objects: map[types.NamespacedName]lifecycle.Object{}}
	var listed map[types.NamespacedName]struct{} // while the full list comes
	o.follower = client.Follower{
		API: s.config.Cache.API(), Resource: gvr, Clock: s.clock,
		Begin: func() { listed = map[types.NamespacedName]struct{}{} },
		Change: func(obj client.Object, removed bool) error {
			k := keyOf(kind, obj)
			o.mu.Lock()
			defer o.mu.Unlock()
			if removed {
				delete(o.objects, k.NamespacedName)
			} else {
				o.objects[k.NamespacedName] = obj
			}
			if listed != nil {
				listed[k.NamespacedName] = struct{}{}
			}
			s.queue.Add(k)
			return nil
		},
		Complete: func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			for name := range o.objects {
				if _, ok := listed[name]; !ok {
					delete(o.objects, name)
				}
			}
			listed = nil
		},
	}
	return o
}
