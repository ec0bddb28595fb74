// Package resourcequota reports how much of each ResourceQuota is used. Admission
// adds to the figure with every create; this package corrects it when something
// goes, shrinks or was there before the quota.
package resourcequota

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/admission/quota"
	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	resync       = 5 * time.Minute
	conflictWait = 10 * time.Millisecond
)

// Controller keeps the status of quotas.
type Controller struct {
	loop      *controllers.Loop
	api       client.API
	config    controllers.Config
	catalogue *apis.Catalogue
	quotas    *client.Informer[*corev1.ResourceQuota]
	counter   quota.Counter // of what has nothing to do with devices

	running   sync.WaitGroup // followers
	mu        sync.Mutex     // guards following
	following map[schema.GroupResource]bool
}

// New returns a controller of quotas on the kinds in catalogue.
func New(c controllers.Config, catalogue *apis.Catalogue) *Controller {
	q := &Controller{
		api: c.Cache.API(), config: c, catalogue: catalogue,
		quotas:    client.Shared[*corev1.ResourceQuota](c.Cache),
		counter:   quota.Counter{Clock: c.Clock},
		following: map[schema.GroupResource]bool{},
	}
	q.loop = controllers.NewLoop("resourcequota_primary", c, q.reconcile)
	q.quotas.OnChange(func(old, rq *corev1.ResourceQuota) {
		if rq != nil && (old == nil || !equality.Semantic.DeepEqual(old.Spec, rq.Spec) || !equality.Semantic.DeepEqual(old.Status, rq.Status)) {
			q.loop.EnqueueObject(rq)
		}
	})
	watchUsage[*corev1.Pod](q, c.Cache)
	watchUsage[*corev1.Service](q, c.Cache)
	watchUsage[*corev1.PersistentVolumeClaim](q, c.Cache)
	return q
}

// watchUsage notices what objects of a kind use less than before. Of other kinds
// only their number counts.
func watchUsage[T client.Object](q *Controller, cache *client.Cache) {
	gr := client.ResourceOf[T]().GroupResource()
	q.following[gr] = true
	client.Shared[T](cache).OnChange(func(old, obj T) {
		if client.Object(old) == client.Object(*new(T)) {
			return // admission counted it
		}
		limiting := q.limiting(old.GetNamespace(), gr)
		if len(limiting) == 0 {
			return // as almost always: what the object uses need not be added up
		}
		if client.Object(obj) == client.Object(*new(T)) || !equality.Semantic.DeepEqual(q.counter.Usage(gr, old), q.counter.Usage(gr, obj)) || terminates(old) != terminates(obj) {
			q.enqueue(limiting)
		}
	})
}

// terminates tells which of the Terminating scopes has a pod.
func terminates(obj client.Object) bool {
	pod, ok := obj.(*corev1.Pod)
	return ok && pod.Spec.ActiveDeadlineSeconds != nil
}

// limiting are the quotas of a namespace that limit a kind.
func (q *Controller) limiting(namespace string, gr schema.GroupResource) (found []*corev1.ResourceQuota) {
	for _, rq := range q.quotas.Select(namespace, labels.Everything()) {
		if slices.Contains(quota.Tracked(rq), gr) {
			found = append(found, rq)
		}
	}
	return found
}

func (q *Controller) enqueue(quotas []*corev1.ResourceQuota) {
	for _, rq := range quotas {
		q.loop.EnqueueObject(rq)
	}
}

// replenish asks for the quotas of a namespace that limit a kind.
func (q *Controller) replenish(namespace string, gr schema.GroupResource) {
	q.enqueue(q.limiting(namespace, gr))
}

// Run works until ctx ends.
func (q *Controller) Run(ctx context.Context) error {
	err := q.loop.Run(ctx)
	q.running.Wait()
	return err
}

// follow has deletions of a kind noticed from now on, as long as it is served.
func (q *Controller) follow(ctx context.Context, r *apis.Resource) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.following[r.GroupResource()] {
		return
	}
	q.following[r.GroupResource()] = true
	f := client.Follower{
		API: q.api, Resource: r.GroupVersionResource(), Clock: q.config.Clock,
		Begin: func() {}, Complete: func() {},
		Change: func(obj client.Object, removed bool) error {
			if removed {
				q.replenish(obj.GetNamespace(), r.GroupResource())
			}
			return nil
		},
	}
	ctx, stop := context.WithCancel(ctx)
	q.running.Go(func() {
		defer stop()
		q.whileServed(ctx, r)
	})
	q.running.Go(func() {
		_ = f.Run(ctx)
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.following, r.GroupResource())
	})
}

// whileServed returns when a kind is no longer served, or in another version.
func (q *Controller) whileServed(ctx context.Context, r *apis.Resource) {
	for ctx.Err() == nil {
		changed := q.catalogue.Changed()
		if now, ok := q.catalogue.Stored(r.GroupResource()); !ok || now.GroupVersionResource() != r.GroupVersionResource() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (q *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	rq, ok := q.quotas.Cached(key.Namespace, key.Name)
	if !ok || rq.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	used, err := q.used(ctx, rq)
	if err != nil {
		return controllers.Result{}, err
	}
	if sameList(rq.Status.Hard, rq.Spec.Hard) && sameList(rq.Status.Used, used) {
		return controllers.Result{After: resync}, nil
	}
	updated := rq.DeepCopy()
	updated.Status = corev1.ResourceQuotaStatus{Hard: updated.Spec.Hard.DeepCopy(), Used: used}
	_, err = q.quotas.UpdateStatus(ctx, updated)
	switch {
	case apierrors.IsConflict(err): // admission counted something meanwhile
		return controllers.Result{After: conflictWait}, nil
	case apierrors.IsNotFound(err):
		return controllers.Result{}, nil
	}
	return controllers.Result{After: resync}, err
}

func sameList(a, b corev1.ResourceList) bool { return equality.Semantic.DeepEqual(a, b) }

// used adds up what the namespace's objects use of the quota. It reads them after
// the quota: an object that admission counted in it is there.
func (q *Controller) used(ctx context.Context, rq *corev1.ResourceQuota) (corev1.ResourceList, error) {
	counter, err := q.counting(ctx, rq)
	if err != nil {
		return nil, err
	}
	total := corev1.ResourceList{}
	for _, gr := range quota.Tracked(rq) {
		r, ok := q.catalogue.Stored(gr)
		if !ok || r.Scope != apis.Namespaced {
			continue // nothing can be counted, so nothing is reported
		}
		q.follow(ctx, r)
		limited := counter.Limited(rq, gr)
		total = quota.Add(total, quota.Mask(quota.Zero(rq), limited))
		objs, err := q.list(ctx, r, rq.Namespace)
		if err != nil {
			return nil, err
		}
		for _, obj := range objs {
			if counter.Matches(rq, gr, obj) {
				total = quota.Add(total, quota.Mask(counter.Usage(gr, obj), limited))
			}
		}
	}
	return total, nil
}

func (q *Controller) list(ctx context.Context, r *apis.Resource, namespace string) ([]client.Object, error) {
	list, err := q.api.List(ctx, client.Ref{Resource: r.GroupVersionResource(), Namespace: namespace}, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", r.GroupResource(), err)
	}
	return list.Items, nil
}

// devices are the objects that decide which devices a quota counts.
type devices struct {
	classes []*resourcev1.DeviceClass
	claims  []*resourcev1.ResourceClaim
	pods    map[string]*corev1.Pod
}

func (d *devices) Classes() []*resourcev1.DeviceClass            { return d.classes }
func (d *devices) Claims(string) []*resourcev1.ResourceClaim     { return d.claims }
func (d *devices) Pod(_, name string) (pod *corev1.Pod, ok bool) { pod, ok = d.pods[name]; return }

var (
	deviceClasses  = schema.GroupResource{Group: resourcev1.GroupName, Resource: "deviceclasses"}
	resourceClaims = schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceclaims"}
)

// counting is the counter for one quota. What devices have to do with is read for
// those alone that may limit them.
func (q *Controller) counting(ctx context.Context, rq *corev1.ResourceQuota) (quota.Counter, error) {
	counter := q.counter
	if !slices.Contains(quota.Tracked(rq), resourceClaims) {
		return counter, nil
	}
	d := &devices{pods: map[string]*corev1.Pod{}}
	counter.Devices = d
	for gr, namespace := range map[schema.GroupResource]string{deviceClasses: "", resourceClaims: rq.Namespace, {Resource: "pods"}: rq.Namespace} {
		r, ok := q.catalogue.Stored(gr)
		if !ok {
			continue
		}
		objs, err := q.list(ctx, r, namespace)
		if err != nil {
			return counter, err
		}
		for _, obj := range objs {
			switch o := obj.(type) {
			case *resourcev1.DeviceClass:
				d.classes = append(d.classes, o)
			case *resourcev1.ResourceClaim:
				d.claims = append(d.claims, o)
			case *corev1.Pod:
				d.pods[o.Name] = o
			}
		}
	}
	return counter, nil
}
