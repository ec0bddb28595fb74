// Package nodelifecycle notices nodes that stopped reporting and says so: in
// their conditions, as taints, and in the readiness of their pods. Evicting the
// pods is left to the taints.
package nodelifecycle

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/podcondition"
)

const (
	nodeIndex     = "spec.nodeName"
	gracePeriod   = 50 * time.Second
	startupGrace  = 60 * time.Second
	monitorPeriod = 5 * time.Second
	conflictWait  = 20 * time.Millisecond
)

// Periods are the times that node lifecycle goes by. Zero values are upstream's.
type Periods struct {
	Grace   time.Duration // how long a node may be silent; 50 s
	Startup time.Duration // and a new one; 1 min
	Monitor time.Duration // when a taint that must wait for the zone's state is thought of again; 5 s
}

// Controller watches over nodes.
type Controller struct {
	loop   *controllers.Loop
	nodes  *client.Informer[*corev1.Node]
	pods   *client.Informer[*corev1.Pod]
	clock  clock.PassiveClock
	events controllers.EventRecorder
	beats  heartbeats
	zones  zones
	times  Periods

	evictions *prometheus.CounterVec // nodes that got a NoExecute taint, by zone
	judging   prometheus.Histogram
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config, p Periods) *Controller {
	p.Grace, p.Startup, p.Monitor = cmp.Or(p.Grace, gracePeriod), cmp.Or(p.Startup, startupGrace), cmp.Or(p.Monitor, monitorPeriod)
	n := &Controller{
		times:  p,
		nodes:  client.Shared[*corev1.Node](c.Cache),
		pods:   client.Shared[*corev1.Pod](c.Cache),
		clock:  c.Clock,
		events: c.Events("node-controller"),
		beats:  heartbeats{clock: c.Clock, nodes: map[string]*heartbeat{}},
		zones:  newZones(p.Monitor),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "node_collector_evictions_total", Help: "[STABLE] Nodes whose pods were to be evicted.",
		}, []string{"zone"}),
		judging: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "node_collector_update_node_health_duration_seconds", Help: "[ALPHA] Time to look after one node, in seconds.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
	}
	c.Register(n.evictions, n.judging, &n.zones)
	n.pods.AddIndex(nodeIndex, func(pod *corev1.Pod) []string { return []string{pod.Spec.NodeName} })
	n.loop = controllers.NewLoop("node_lifecycle_controller", c, n.reconcile)
	n.nodes.OnChange(n.nodeChanged)
	client.Shared[*coordinationv1.Lease](c.Cache).OnChange(func(_, lease *coordinationv1.Lease) {
		if lease != nil && lease.Namespace == corev1.NamespaceNodeLease {
			n.beats.lease(lease)
		}
	})
	return n
}

// Run works until ctx ends.
func (n *Controller) Run(ctx context.Context) error { return n.loop.Run(ctx) }

func (n *Controller) nodeChanged(old, node *corev1.Node) {
	switch {
	case node == nil:
		n.events.Eventf(reference(old), corev1.EventTypeNormal, "RemovingNode", "Node %s event: Removing Node %s from Controller", old.Name, old.Name)
		n.beats.forget(old.Name)
	case old == nil:
		n.events.Eventf(reference(node), corev1.EventTypeNormal, "RegisteredNode", "Node %s event: Registered Node %s in Controller", node.Name, node.Name)
		n.beats.node(node)
	default:
		n.beats.node(node)
		if status(old) == corev1.ConditionTrue && status(node) != corev1.ConditionTrue {
			n.events.Eventf(reference(node), corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
		}
	}
	switched := n.zones.update(old, node)
	if switched {
		if !n.zones.allDisrupted() {
			n.beats.all() // nobody was blamed meanwhile: give everyone a new start
		}
		for _, each := range n.nodes.Select("", labels.Everything()) {
			n.loop.EnqueueObject(each)
		}
	}
	if node != nil && (old == nil || concerns(old, node)) {
		n.loop.EnqueueObject(node)
	}
}

// concerns tells whether a change matters here; most are heartbeats.
func concerns(old, node *corev1.Node) bool {
	return old.Spec.Unschedulable != node.Spec.Unschedulable || !equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) ||
		!maps.Equal(statuses(old), statuses(node)) || zoneOf(old) != zoneOf(node)
}

func statuses(node *corev1.Node) map[corev1.NodeConditionType]corev1.ConditionStatus {
	out := map[corev1.NodeConditionType]corev1.ConditionStatus{}
	for _, c := range node.Status.Conditions {
		out[c.Type] = c.Status
	}
	return out
}

func reference(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

func (n *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	node, ok := n.nodes.Cached("", key.Name)
	if !ok || node.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	defer func(start time.Time) { n.judging.Observe(n.clock.Since(start).Seconds()) }(n.clock.Now())
	node, silent, err := n.judge(ctx, node)
	if err != nil {
		return overtaken(err)
	}
	wait, err := n.taint(ctx, node)
	if err != nil {
		return overtaken(err)
	}
	if status(node) != corev1.ConditionTrue {
		if err := n.markPods(ctx, node); err != nil {
			return controllers.Result{}, err
		}
	}
	return controllers.Result{After: sooner(silent, wait)}, nil
}

// overtaken ends a reconcile whose write failed. The node may only have sent a
// heartbeat meanwhile, which does not bring it back here.
func overtaken(err error) (controllers.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return controllers.Result{After: conflictWait}, nil
	case apierrors.IsNotFound(err):
		return controllers.Result{}, nil
	}
	return controllers.Result{}, err
}

func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// judge makes the conditions of a node that is silent for too long Unknown. It
// returns the node as it then is, and when to judge again.
func (n *Controller) judge(ctx context.Context, node *corev1.Node) (*corev1.Node, time.Duration, error) {
	grace := n.times.Grace
	if condition(node, corev1.NodeReady) == nil {
		grace = n.times.Startup
	}
	grace += n.beats.longer(node.Name)
	if left := grace - n.clock.Since(n.beats.last(node)); left > 0 {
		return node, left, nil
	}
	updated := node.DeepCopy()
	if !silence(updated, metav1.NewTime(n.clock.Now())) {
		return node, 0, nil // its next heartbeat changes a condition
	}
	node, err := n.nodes.UpdateStatus(ctx, updated)
	return node, 0, err
}

var watchedConditions = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// silence makes the watched conditions Unknown and tells whether any was not.
func silence(node *corev1.Node, now metav1.Time) (changed bool) {
	for _, kind := range watchedConditions {
		c := condition(node, kind)
		switch {
		case c == nil:
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: now,
			})
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = now
		default:
			continue
		}
		changed = true
	}
	return changed
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// status is that of the Ready condition; a node that has none is not known.
func status(node *corev1.Node) corev1.ConditionStatus {
	if c := condition(node, corev1.NodeReady); c != nil {
		return c.Status
	}
	return corev1.ConditionUnknown
}

// markPods takes the readiness from the node's pods.
func (n *Controller) markPods(ctx context.Context, node *corev1.Node) error {
	for _, pod := range n.pods.ByIndex(nodeIndex, node.Name) {
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		if i < 0 || pod.Status.Conditions[i].Status != corev1.ConditionTrue {
			continue
		}
		unready := pod.Status.Conditions[i]
		unready.Status = corev1.ConditionFalse
		if err := podcondition.Patch(ctx, n.pods, pod, &unready, "", metav1.NewTime(n.clock.Now())); err != nil {
			return fmt.Errorf("mark pod %s/%s not ready: %w", pod.Namespace, pod.Name, err)
		}
		n.events.Eventf(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	return nil
}
