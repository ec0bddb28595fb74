// Package objects keeps the ConfigMaps and Secrets that this node's pods refer
// to, each by a watch of its own: the node may read these and no others. A
// change is reported with the pods it concerns, so mounted files follow it at
// once.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"proa/internal/client"
)

const retryAfter = time.Second

// Config of a Cache. API is required.
type Config struct {
	API   client.API
	Clock clock.Clock // default: the wall clock
	// Changed is called, from one goroutine per object, with the pods that
	// refer to an object that was added, changed or deleted. Optional.
	Changed func(pods []types.UID)
}

// Cache of the objects that tracked pods refer to. It implements
// environment.Source.
type Cache struct {
	api     client.API
	clock   clock.Clock
	changed func([]types.UID)

	wg   sync.WaitGroup
	mu   sync.Mutex // guards what follows
	refs map[ref]*entry
	pods map[types.UID]sets.Set[ref]
	done bool
}

type ref struct{ resource, namespace, name string }

// entry is one watched object. Its fields are guarded by Cache.mu; ready is
// closed once the first read has been answered.
type entry struct {
	pods   sets.Set[types.UID]
	cancel context.CancelFunc
	ready  chan struct{}
	synced bool
	object client.Object // nil: does not exist
	err    error         // of the last read, until one succeeds
}

// New returns an empty cache. Close ends its watches.
func New(c Config) *Cache {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Changed == nil {
		c.Changed = func([]types.UID) {}
	}
	return &Cache{api: c.API, clock: c.Clock, changed: c.Changed, refs: map[ref]*entry{}, pods: map[types.UID]sets.Set[ref]{}}
}

// Track watches everything a pod refers to and drops what it no longer does.
func (c *Cache) Track(pod *corev1.Pod) {
	want := references(pod)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	for r := range want.Difference(c.pods[pod.UID]) {
		c.addLocked(r, pod.UID)
	}
	for r := range c.pods[pod.UID].Difference(want) {
		c.removeLocked(r, pod.UID)
	}
	c.pods[pod.UID] = want
}

// Forget ends the watches that only this pod needed.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.pods[uid] {
		c.removeLocked(r, uid)
	}
	delete(c.pods, uid)
}

// Close ends all watches and waits for them.
func (c *Cache) Close() {
	c.mu.Lock()
	c.done = true
	for _, e := range c.refs {
		e.cancel()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// ConfigMap returns a ConfigMap, from the cache when a tracked pod refers to it.
func (c *Cache) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	return get[*corev1.ConfigMap](ctx, c, ref{"configmaps", namespace, name})
}

// Secret returns a Secret, from the cache when a tracked pod refers to it.
func (c *Cache) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return get[*corev1.Secret](ctx, c, ref{"secrets", namespace, name})
}

func get[T client.Object](ctx context.Context, c *Cache, r ref) (T, error) {
	var zero T
	obj, err := c.lookup(ctx, r)
	if err != nil {
		return zero, err
	}
	t, ok := obj.(T)
	if !ok {
		return zero, fmt.Errorf("%s %s/%s: unexpected %T", r.resource, r.namespace, r.name, obj)
	}
	return t, nil
}

func (c *Cache) lookup(ctx context.Context, r ref) (client.Object, error) {
	c.mu.Lock()
	e := c.refs[r]
	c.mu.Unlock()
	if e == nil {
		return c.api.Get(ctx, r.clientRef(r.name), metav1.GetOptions{})
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.object != nil:
		return e.object, nil
	case e.err != nil:
		return nil, e.err
	}
	return nil, apierrors.NewNotFound(corev1.Resource(r.resource), r.name)
}

func (c *Cache) addLocked(r ref, uid types.UID) {
	if e, ok := c.refs[r]; ok {
		e.pods.Insert(uid)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &entry{pods: sets.New(uid), cancel: cancel, ready: make(chan struct{})}
	c.refs[r] = e
	c.wg.Go(func() { c.follow(ctx, r, e) })
}

func (c *Cache) removeLocked(r ref, uid types.UID) {
	e := c.refs[r]
	if e == nil {
		return
	}
	if e.pods.Delete(uid); e.pods.Len() == 0 {
		e.cancel()
		delete(c.refs, r)
	}
}

// follow keeps one entry up to date until its context ends.
func (c *Cache) follow(ctx context.Context, r ref, e *entry) {
	for ctx.Err() == nil {
		err := c.listAndWatch(ctx, r, e)
		if ctx.Err() != nil {
			break
		}
		if err != nil && !apierrors.IsResourceExpired(err) {
			c.fail(e, err)
			slog.Debug("watch object", "resource", r.resource, "namespace", r.namespace, "name", r.name, "err", err)
			c.pause(ctx)
		}
	}
	c.fail(e, context.Canceled)
}

func (c *Cache) listAndWatch(ctx context.Context, r ref, e *entry) error {
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", r.name).String()}
	list, err := c.api.List(ctx, r.clientRef(""), only)
	if err != nil {
		return err
	}
	var current client.Object
	if len(list.Items) > 0 {
		current = list.Items[0]
	}
	c.put(e, current)
	only.ResourceVersion = list.ResourceVersion
	only.AllowWatchBookmarks = true
	for {
		version, err := c.watch(ctx, r, e, only)
		if version != "" {
			only.ResourceVersion = version
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if version == "" && !c.pause(ctx) {
			return ctx.Err() // a server that closes idle watches at once is not hammered
		}
	}
}

// pause reports whether the context still lives after the retry delay.
func (c *Cache) pause(ctx context.Context) bool {
	timer := c.clock.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// watch returns the last version it saw, to resume from.
func (c *Cache) watch(ctx context.Context, r ref, e *entry, opts metav1.ListOptions) (version string, err error) {
	w, err := c.api.Watch(ctx, r.clientRef(""), opts)
	if err != nil {
		return "", err
	}
	defer w.Stop()
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return version, err
		}
		for _, ev := range events {
			version = ev.Object.GetResourceVersion()
			switch ev.Type {
			case watch.Added, watch.Modified:
				c.put(e, ev.Object)
			case watch.Deleted:
				c.put(e, nil)
			}
		}
	}
}

// put stores the object's state and reports a change.
func (c *Cache) put(e *entry, obj client.Object) {
	c.mu.Lock()
	same := e.synced && version(e.object) == version(obj)
	e.object, e.err, e.synced = obj, nil, true
	c.openLocked(e)
	pods := e.pods.UnsortedList()
	c.mu.Unlock()
	if !same {
		c.changed(pods)
	}
}

func (c *Cache) fail(e *entry, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !e.synced {
		e.err = err
	}
	c.openLocked(e)
}

func (c *Cache) openLocked(e *entry) {
	select {
	case <-e.ready:
	default:
		close(e.ready)
	}
}

func version(obj client.Object) string {
	if obj == nil {
		return ""
	}
	return string(obj.GetUID()) + "/" + obj.GetResourceVersion()
}

func (r ref) clientRef(name string) client.Ref {
	return client.Ref{Resource: corev1.SchemeGroupVersion.WithResource(r.resource), Namespace: r.namespace, Name: name}
}

// references returns the ConfigMaps and Secrets a pod names anywhere the node
// reads them: variables and volumes of all kinds of containers, pull secrets.
func references(pod *corev1.Pod) sets.Set[ref] {
	out := sets.New[ref]()
	configMap := func(name string) { out.Insert(ref{"configmaps", pod.Namespace, name}) }
	secret := func(name string) { out.Insert(ref{"secrets", pod.Namespace, name}) }
	for _, s := range pod.Spec.ImagePullSecrets {
		if s.Name != "" {
			secret(s.Name)
		}
	}
	visitContainers(&pod.Spec, func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, f := range from {
			if f.ConfigMapRef != nil {
				configMap(f.ConfigMapRef.Name)
			}
			if f.SecretRef != nil {
				secret(f.SecretRef.Name)
			}
		}
		for _, v := range env {
			if v.ValueFrom == nil {
				continue
			}
			if k := v.ValueFrom.ConfigMapKeyRef; k != nil {
				configMap(k.Name)
			}
			if k := v.ValueFrom.SecretKeyRef; k != nil {
				secret(k.Name)
			}
		}
	})
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.ConfigMap != nil:
			configMap(v.ConfigMap.Name)
		case v.Secret != nil:
			secret(v.Secret.SecretName)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil {
					configMap(s.ConfigMap.Name)
				}
				if s.Secret != nil {
					secret(s.Secret.Name)
				}
			}
		case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
			secret(v.CSI.NodePublishSecretRef.Name)
		}
	}
	return out
}

func visitContainers(spec *corev1.PodSpec, visit func([]corev1.EnvVar, []corev1.EnvFromSource)) {
	for i := range spec.InitContainers {
		visit(spec.InitContainers[i].Env, spec.InitContainers[i].EnvFrom)
	}
	for i := range spec.Containers {
		visit(spec.Containers[i].Env, spec.Containers[i].EnvFrom)
	}
	for i := range spec.EphemeralContainers {
		visit(spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom)
	}
}
