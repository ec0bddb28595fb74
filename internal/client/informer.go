package client

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Informer keeps the objects of one kind at hand, indexed, and tells handlers of
// every change. Writes made through it return only when its own reads show them,
// so a reconcile that follows never acts on a state older than its last write.
type Informer[T Object] struct {
	Resource[T] // what writes go through
	*reflected[T]
}

// reflected is the state that the informers of all users share.
type reflected[T Object] struct {
	source Resource[T] // what is listed and watched
	opts   metav1.ListOptions
	clock  clock.Clock

	mu       sync.RWMutex // guards what follows
	objects  map[types.NamespacedName]T
	indexes  map[string]*objectIndex[T]
	handlers []func(old, new T)
	revision int64         // newest resourceVersion seen
	moved    chan struct{} // closed and replaced when revision grows
	ready    chan struct{} // closed after the initial list was handled
	started  bool
}

type objectIndex[T Object] struct {
	values func(T) []string
	byKey  map[string]map[types.NamespacedName]struct{}
}

// namespaceIndex is the index that every informer has.
const namespaceIndex = "namespace"

func newReflected[T Object](api API, clk clock.Clock, opts metav1.ListOptions) *reflected[T] {
	i := &reflected[T]{
		source:  Of[T](api),
		opts:    opts,
		clock:   clk,
		objects: map[types.NamespacedName]T{},
		indexes: map[string]*objectIndex[T]{},
		moved:   make(chan struct{}),
		ready:   make(chan struct{}),
	}
	i.AddIndex(namespaceIndex, func(obj T) []string { return []string{obj.GetNamespace()} })
	return i
}

// AddIndex makes ByIndex(name, v) return the objects for which values gives v.
// Adding a name again is a no-op, so that every user of a shared informer can
// ask for the index it needs. Call before the cache runs.
func (i *reflected[T]) AddIndex(name string, values func(T) []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, ok := i.indexes[name]; ok {
		return
	}
	if i.started {
		panic("client: AddIndex after the cache runs")
	}
	i.indexes[name] = &objectIndex[T]{values: values, byKey: map[string]map[types.NamespacedName]struct{}{}}
}

// OnChange registers a handler. Calls come one at a time, in order; old is the
// zero T for a new object, new is the zero T for a removed one. A handler only
// takes note (enqueues a key); it must not write or block.
func (i *reflected[T]) OnChange(handler func(old, new T)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.started {
		panic("client: OnChange after the cache runs")
	}
	i.handlers = append(i.handlers, handler)
}

// Cached returns the object as last seen.
func (i *reflected[T]) Cached(namespace, name string) (T, bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	obj, ok := i.objects[types.NamespacedName{Namespace: namespace, Name: name}]
	return obj, ok
}

// Select returns the objects of a namespace ("" for all) that match, ordered by name.
func (i *reflected[T]) Select(namespace string, selector labels.Selector) []T {
	var found []T
	take := func(obj T) {
		if selector.Matches(labels.Set(obj.GetLabels())) {
			found = append(found, obj)
		}
	}
	i.mu.RLock()
	if namespace == "" {
		for _, obj := range i.objects {
			take(obj)
		}
	} else {
		for key := range i.indexes[namespaceIndex].byKey[namespace] {
			take(i.objects[key])
		}
	}
	i.mu.RUnlock()
	sortByName(found)
	return found
}

// ByIndex returns the objects that an index of AddIndex holds under value, ordered by name.
func (i *reflected[T]) ByIndex(name, value string) []T {
	i.mu.RLock()
	keys := i.indexes[name].byKey[value]
	found := make([]T, 0, len(keys))
	for key := range keys {
		found = append(found, i.objects[key])
	}
	i.mu.RUnlock()
	sortByName(found)
	return found
}

func sortByName[T Object](objs []T) {
	sort.Slice(objs, func(a, b int) bool {
		if na, nb := objs[a].GetNamespace(), objs[b].GetNamespace(); na != nb {
			return na < nb
		}
		return objs[a].GetName() < objs[b].GetName()
	})
}

// Synced tells whether the initial list was handled.
func (i *reflected[T]) Synced() bool {
	select {
	case <-i.ready:
		return true
	default:
		return false
	}
}

func (i *reflected[T]) synced() <-chan struct{} { return i.ready }

// WaitFor blocks until the informer has seen resourceVersion.
func (i *reflected[T]) WaitFor(ctx context.Context, resourceVersion string) error {
	want, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("resourceVersion %q: %w", resourceVersion, err)
	}
	return i.waitUntil(ctx, func() bool { return i.revision >= want })
}

// waitUntil blocks until what the informer holds meets done, which is called with mu held.
func (i *reflected[T]) waitUntil(ctx context.Context, done func() bool) error {
	for {
		i.mu.RLock()
		met, moved := done(), i.moved
		i.mu.RUnlock()
		if met {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (i *Informer[T]) written(ctx context.Context, obj T, err error) (T, error) {
	if err != nil {
		return obj, err
	}
	return obj, i.WaitFor(ctx, obj.GetResourceVersion())
}

// Create is Resource.Create; the informer shows the object when it returns.
func (i *Informer[T]) Create(ctx context.Context, obj T) (T, error) {
	obj, err := i.Resource.Create(ctx, obj)
	return i.written(ctx, obj, err)
}

// Update is Resource.Update; the informer shows the object when it returns.
func (i *Informer[T]) Update(ctx context.Context, obj T) (T, error) {
	obj, err := i.Resource.Update(ctx, obj)
	return i.written(ctx, obj, err)
}

// UpdateStatus is Resource.UpdateStatus; the informer shows the object when it returns.
func (i *Informer[T]) UpdateStatus(ctx context.Context, obj T) (T, error) {
	obj, err := i.Resource.UpdateStatus(ctx, obj)
	return i.written(ctx, obj, err)
}

// Patch is Resource.Patch; the informer shows the object when it returns.
func (i *Informer[T]) Patch(ctx context.Context, namespace, name string, pt types.PatchType, data []byte, subresource ...string) (T, error) {
	obj, err := i.Resource.Patch(ctx, namespace, name, pt, data, subresource...)
	return i.written(ctx, obj, err)
}

// MergePatch is Resource.MergePatch; the informer shows the object when it returns.
func (i *Informer[T]) MergePatch(ctx context.Context, namespace, name string, patch any, subresource ...string) (T, error) {
	obj, err := i.Resource.MergePatch(ctx, namespace, name, patch, subresource...)
	return i.written(ctx, obj, err)
}

// Delete is Resource.Delete; the informer shows the deletion, or its start,
// when it returns.
func (i *Informer[T]) Delete(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) (T, error) {
	obj, err := i.Resource.Delete(ctx, namespace, name, opts)
	if err != nil {
		return obj, err
	}
	return obj, i.waitUntil(ctx, func() bool {
		cached, ok := i.objects[types.NamespacedName{Namespace: namespace, Name: name}]
		return !ok || cached.GetUID() != obj.GetUID() || cached.GetDeletionTimestamp() != nil
	})
}

// run keeps the informer current until ctx ends.
func (i *reflected[T]) run(ctx context.Context) error {
	i.mu.Lock()
	i.started = true
	i.mu.Unlock()
	listed := map[types.NamespacedName]struct{}{} // nil after the list is complete
	f := Follower{
		API: i.source.api, Resource: i.source.gvr, Options: i.opts, Clock: i.clock,
		Begin: func() { listed = map[types.NamespacedName]struct{}{} },
		Change: func(obj Object, removed bool) error {
			t, err := typed[T](obj, nil)
			if err != nil {
				return err
			}
			if listed != nil {
				listed[keyOf(t)] = struct{}{}
			}
			i.set(t, removed)
			return nil
		},
		Complete: func() {
			i.replaceMissing(listed)
			listed = nil
			i.markReady()
		},
		Reached: i.advance,
	}
	return f.Run(ctx)
}

func keyOf(obj Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// set takes in one object, or its removal, and tells the handlers.
func (i *reflected[T]) set(obj T, deleted bool) {
	var zero T
	key := keyOf(obj)
	i.mu.Lock()
	old, had := i.objects[key]
	if had && !deleted && old.GetResourceVersion() == obj.GetResourceVersion() {
		i.mu.Unlock()
		return
	}
	switch {
	case had && deleted:
		i.unindexLocked(key, old)
		delete(i.objects, key)
	case had:
		i.objects[key] = obj
		i.reindexLocked(key, old, obj)
	case !deleted:
		i.objects[key] = obj
		i.indexLocked(key, obj)
	}
	handlers := i.handlers
	i.mu.Unlock()
	for _, handle := range handlers {
		switch {
		case deleted && had:
			handle(obj, zero)
		case !deleted && had:
			handle(old, obj)
		case !deleted:
			handle(zero, obj)
		}
	}
}

// replaceMissing removes what a fresh initial list no longer has.
func (i *reflected[T]) replaceMissing(initial map[types.NamespacedName]struct{}) {
	i.mu.RLock()
	var gone []T
	for key, obj := range i.objects {
		if _, ok := initial[key]; !ok {
			gone = append(gone, obj)
		}
	}
	i.mu.RUnlock()
	sortByName(gone)
	for _, obj := range gone {
		i.set(obj, true)
	}
}

func (i *reflected[T]) indexLocked(key types.NamespacedName, obj T) {
	for _, idx := range i.indexes {
		idx.add(key, idx.values(obj))
	}
}

func (i *reflected[T]) unindexLocked(key types.NamespacedName, obj T) {
	for _, idx := range i.indexes {
		idx.remove(key, idx.values(obj))
	}
}

// reindexLocked follows an update. Most change nothing that an index is about.
func (i *reflected[T]) reindexLocked(key types.NamespacedName, old, obj T) {
	for _, idx := range i.indexes {
		if was, is := idx.values(old), idx.values(obj); !slices.Equal(was, is) {
			idx.remove(key, was)
			idx.add(key, is)
		}
	}
}

func (idx *objectIndex[T]) add(key types.NamespacedName, values []string) {
	for _, value := range values {
		keys := idx.byKey[value]
		if keys == nil {
			keys = map[types.NamespacedName]struct{}{}
			idx.byKey[value] = keys
		}
		keys[key] = struct{}{}
	}
}

func (idx *objectIndex[T]) remove(key types.NamespacedName, values []string) {
	for _, value := range values {
		delete(idx.byKey[value], key)
		if len(idx.byKey[value]) == 0 {
			delete(idx.byKey, value)
		}
	}
}

func (i *reflected[T]) advance(resourceVersion string) {
	seen, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if seen > i.revision {
		i.revision = seen
		close(i.moved)
		i.moved = make(chan struct{})
	}
}

func (i *reflected[T]) markReady() {
	select {
	case <-i.ready:
	default:
		close(i.ready)
	}
}
