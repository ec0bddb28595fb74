// Package endpointslice keeps the EndpointSlices of every Service with a
// selector. What a slice says is upstream's own library, k8s.io/endpointslice;
// this package says when to ask it and gives it our client.
package endpointslice

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/endpointslice"
	endpointslicemetrics "k8s.io/endpointslice/metrics"
	"k8s.io/endpointslice/topologycache"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	name                 = "endpointslice-controller.k8s.io"
	maxEndpointsPerSlice = 100
	serviceIndex         = "service"
)

// Controller keeps slices in step with Services, Pods and Nodes.
type Controller struct {
	loop       *controllers.Loop
	services   *client.Informer[*corev1.Service]
	pods       *client.Informer[*corev1.Pod]
	slices     *client.Informer[*discoveryv1.EndpointSlice]
	nodes      *client.Informer[*corev1.Node]
	clientset  *slicesOnly
	tracker    *endpointsliceutil.EndpointSliceTracker
	triggers   *endpointsliceutil.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	reconciler *endpointslice.Reconciler
	clock      clock.WithTicker
	moved      chan struct{} // nodes have changed in what hints are computed from
}

// topologyPause is the least time between two looks at all nodes: many change at
// once when a cluster grows or a zone fails.
const topologyPause = 100 * time.Millisecond

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	e := &Controller{
		services: client.Shared[*corev1.Service](c.Cache),
		pods:     client.Shared[*corev1.Pod](c.Cache),
		slices:   client.Shared[*discoveryv1.EndpointSlice](c.Cache),
		nodes:    client.Shared[*corev1.Node](c.Cache),
		tracker:  endpointsliceutil.NewEndpointSliceTracker(),
		triggers: endpointsliceutil.NewTriggerTimeTracker(),
		topology: topologycache.NewTopologyCache(),
		clock:    c.Clock,
		moved:    make(chan struct{}, 1),
	}
	e.slices.AddIndex(serviceIndex, func(s *discoveryv1.EndpointSlice) []string {
		if s.Labels[discoveryv1.LabelManagedBy] != name {
			return nil
		}
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}
	})
	e.clientset = &slicesOnly{slices: e.slices}
	e.reconciler = endpointslice.NewReconciler(e.clientset, nodeLister{e.nodes}, maxEndpointsPerSlice,
		e.tracker, e.topology, c.Events("endpoint-slice-controller"), name,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	if c.Metrics != nil {
		endpointslicemetrics.RegisterMetrics() // upstream's library measures for the whole process
	}
	e.loop = controllers.NewLoop("endpoint_slice", c, e.reconcile)
	e.services.OnChange(e.serviceChanged)
	e.pods.OnChange(e.podChanged)
	e.slices.OnChange(e.sliceChanged)
	e.nodes.OnChange(e.nodeChanged)
	return e
}

// Run works until ctx ends.
func (e *Controller) Run(ctx context.Context) error {
	e.clientset.ctx = ctx
	e.setNodes()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { e.followNodes(ctx) })
	return e.loop.Run(ctx)
}

// followNodes keeps the zones for topology hints until ctx ends.
func (e *Controller) followNodes(ctx context.Context) {
	for {
		select {
		case <-e.moved:
			e.setNodes()
		case <-ctx.Done():
			return
		}
		select {
		case <-e.clock.After(topologyPause):
		case <-ctx.Done():
			return
		}
	}
}

func (e *Controller) setNodes() {
	e.topology.SetNodes(klog.Background(), e.nodes.Select("", labels.Everything()))
	for _, key := range e.topology.GetOverloadedServices() {
		e.loop.Enqueue(parseKey(key))
	}
}

func (e *Controller) serviceChanged(old, svc *corev1.Service) {
	if svc == nil {
		svc = old
	}
	e.loop.EnqueueObject(svc)
}

// podChanged asks for the Services that select the pod as it was or is.
func (e *Controller) podChanged(old, pod *corev1.Pod) {
	var oldKey, key *endpointsliceutil.PodProjectionKey
	switch {
	case old == nil:
		key = endpointsliceutil.GetPodUpdateProjectionKey(nil, pod)
	case pod == nil:
		oldKey = endpointsliceutil.GetPodUpdateProjectionKey(nil, old)
	default:
		key = endpointsliceutil.GetPodUpdateProjectionKey(old, pod)
	}
	for _, k := range []*endpointsliceutil.PodProjectionKey{oldKey, key} {
		if k == nil {
			continue
		}
		keys, err := endpointsliceutil.GetServicesToUpdate(serviceLister{e.services}, k)
		if err != nil {
			continue // the lister reads memory and does not fail
		}
		for key := range keys {
			e.loop.Enqueue(parseKey(key))
		}
	}
}

// sliceChanged notices slices that somebody else changed or deleted.
func (e *Controller) sliceChanged(old, slice *discoveryv1.EndpointSlice) {
	switch {
	case slice == nil:
		if old.Labels[discoveryv1.LabelManagedBy] == name && e.tracker.Has(old) && !e.tracker.HandleDeletion(old) {
			e.enqueueOwner(old)
		}
	case slice.Labels[discoveryv1.LabelManagedBy] == name:
		if e.tracker.ShouldSync(slice) {
			e.enqueueOwner(slice)
		}
	case old != nil && old.Labels[discoveryv1.LabelManagedBy] == name:
		e.enqueueOwner(old)
	}
}

func (e *Controller) enqueueOwner(slice *discoveryv1.EndpointSlice) {
	if service := slice.Labels[discoveryv1.LabelServiceName]; service != "" {
		e.loop.Enqueue(controllers.Key{Namespace: slice.Namespace, Name: service})
	}
}

// nodeChanged notes a change in what topology hints are computed from: other
// changes of a node's status come every few minutes on every node.
func (e *Controller) nodeChanged(old, node *corev1.Node) {
	if old != nil && node != nil && sameTopology(old, node) {
		return
	}
	select {
	case e.moved <- struct{}{}:
	default:
	}
}

func (e *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	svc, ok := e.services.Cached(key.Namespace, key.Name)
	if !ok {
		// Garbage collection deletes the slices with their owner.
		e.triggers.DeleteService(key.Namespace, key.Name)
		e.reconciler.DeleteService(key.Namespace, key.Name)
		e.tracker.DeleteService(key.Namespace, key.Name)
		return controllers.Result{}, nil
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.Selector == nil {
		return controllers.Result{}, nil
	}
	pods := e.pods.Select(svc.Namespace, labels.SelectorFromSet(svc.Spec.Selector))
	slices := e.slices.ByIndex(serviceIndex, key.String())
	live := slices[:0]
	for _, s := range slices {
		if s.DeletionTimestamp == nil {
			live = append(live, s)
		}
	}
	if e.tracker.StaleSlices(svc, live) {
		return controllers.Result{}, errors.New("EndpointSlices in the cache are older than the last write")
	}
	trigger := e.triggers.ComputeEndpointLastChangeTriggerTime(svc.Namespace, svc, pods)
	err := e.reconciler.Reconcile(klog.FromContext(ctx), svc, pods, live, trigger)
	return controllers.Result{}, err
}
