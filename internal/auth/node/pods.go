package node

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

var pods = schema.GroupResource{Resource: "pods"}

// podIndex knows the pods of each node. It has no goroutine: a reader brings it
// up to the store's newest revision by applying the events since the last time,
// so it is never stale and costs nothing while no node asks.
type podIndex struct {
	store *store.Store

	mu     sync.Mutex // guards the rest
	watch  *store.Watch
	byNode map[string]map[store.Key]*corev1.Pod
}

// each calls fn with the pods of a node until it returns true, and reports
// whether it did.
func (x *podIndex) each(ctx context.Context, node string, fn func(*corev1.Pod) bool) (bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.catchUpLocked(ctx); err != nil {
		return false, fmt.Errorf("pods of node %s: %w", node, err)
	}
	for _, pod := range x.byNode[node] {
		if fn(pod) {
			return true, nil
		}
	}
	return false, nil
}

func (x *podIndex) catchUpLocked(ctx context.Context) error {
	target := x.store.Revision()
	for x.watch != nil && x.watch.Revision() < target {
		events, err := x.watch.Next(ctx) // does not block: there are events up to target
		if errors.Is(err, store.ErrCompacted) {
			x.watch.Stop()
			x.watch = nil
			break
		}
		if err != nil {
			return err
		}
		for _, e := range events {
			x.applyLocked(e)
		}
	}
	if x.watch == nil {
		return x.loadLocked()
	}
	return nil
}

func (x *podIndex) loadLocked() error {
	sn := x.store.Snapshot()
	watch, err := x.store.Watch(pods, "", sn.Revision())
	if err != nil {
		return err
	}
	x.watch, x.byNode = watch, map[string]map[store.Key]*corev1.Pod{}
	sn.Range(pods, "", store.Key{}, func(item *store.Item) bool {
		x.addLocked(item)
		return true
	})
	return nil
}

func (x *podIndex) applyLocked(e store.Event) {
	if e.Prev != nil {
		if old, ok := e.Prev.Object.(*corev1.Pod); ok {
			delete(x.byNode[old.Spec.NodeName], e.Prev.Key)
			if len(x.byNode[old.Spec.NodeName]) == 0 {
				delete(x.byNode, old.Spec.NodeName)
			}
		}
	}
	if e.Type != store.Deleted {
		x.addLocked(e.Item)
	}
}

func (x *podIndex) addLocked(item *store.Item) {
	pod, ok := item.Object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return
	}
	if x.byNode[pod.Spec.NodeName] == nil {
		x.byNode[pod.Spec.NodeName] = map[store.Key]*corev1.Pod{}
	}
	x.byNode[pod.Spec.NodeName][item.Key] = pod
}
