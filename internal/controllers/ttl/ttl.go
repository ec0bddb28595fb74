// Package ttl says on every node how long its agent may keep what it has read of
// Secrets and ConfigMaps: the larger the cluster, the longer. The node agent here
// follows them by watch; agents that poll go by the annotation.
package ttl

import (
	"context"
	"math"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/client"
	"proa/internal/controllers"
)

// step is what holds for clusters of a size. Sizes overlap, so that a cluster on
// the edge does not change all its nodes with every one that comes or goes.
type step struct {
	least, most int // nodes
	seconds     int
}

var steps = []step{{0, 100, 0}, {90, 500, 15}, {450, 1000, 30}, {900, 2000, 60}, {1800, math.MaxInt, 300}}

// Controller annotates nodes.
type Controller struct {
	loop  *controllers.Loop
	nodes *client.Informer[*corev1.Node]

	mu    sync.Mutex // guards what follows
	count int
	step  int
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	t := &Controller{nodes: client.Shared[*corev1.Node](c.Cache)}
	t.loop = controllers.NewLoop("ttlcontroller", c, t.reconcile)
	t.nodes.OnChange(func(old, node *corev1.Node) {
		switch {
		case node == nil:
			t.counted(-1)
		case old == nil:
			t.counted(1)
			t.loop.EnqueueObject(node)
		case old.Annotations[corev1.ObjectTTLAnnotationKey] != node.Annotations[corev1.ObjectTTLAnnotationKey]:
			t.loop.EnqueueObject(node)
		}
	})
	return t
}

// Run works until ctx ends.
func (t *Controller) Run(ctx context.Context) error { return t.loop.Run(ctx) }

// counted notes that nodes came or went. All are looked at when that leads to
// another step.
func (t *Controller) counted(by int) {
	t.mu.Lock()
	t.count += by
	was := t.step
	switch {
	case t.count > steps[t.step].most:
		t.step++
	case t.count < steps[t.step].least:
		t.step--
	}
	moved := t.step != was
	t.mu.Unlock()
	if moved {
		for _, node := range t.nodes.Select("", labels.Everything()) {
			t.loop.EnqueueObject(node)
		}
	}
}

func (t *Controller) seconds() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strconv.Itoa(steps[t.step].seconds)
}

func (t *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	node, ok := t.nodes.Cached("", key.Name)
	seconds := t.seconds()
	if !ok || node.Annotations[corev1.ObjectTTLAnnotationKey] == seconds {
		return controllers.Result{}, nil
	}
	_, err := t.nodes.MergePatch(ctx, "", key.Name, map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{corev1.ObjectTTLAnnotationKey: seconds}},
	})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return controllers.Result{}, err
}
