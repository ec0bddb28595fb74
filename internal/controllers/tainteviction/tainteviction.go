// Package tainteviction deletes pods from nodes with NoExecute taints that they
// do not tolerate, or no longer.
package tainteviction

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/podcondition"
)

const nodeIndex = "spec.nodeName"

// Controller evicts pods.
type Controller struct {
	loop   *controllers.Loop
	nodes  *client.Informer[*corev1.Node]
	pods   *client.Informer[*corev1.Pod]
	clock  clock.PassiveClock
	events controllers.EventRecorder

	deleted prometheus.Counter
	took    prometheus.Histogram // from when a pod had to go, in seconds

	mu      sync.Mutex              // guards pending
	pending map[types.UID]time.Time // since when the pod's tolerations count down
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	t := &Controller{
		nodes:  client.Shared[*corev1.Node](c.Cache),
		pods:   client.Shared[*corev1.Pod](c.Cache),
		clock:  c.Clock,
		events: c.Events("taint-eviction-controller"),

		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "taint_eviction_controller_pod_deletions_total", Help: "[ALPHA] Total number of Pods deleted by TaintEvictionController since its start.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "taint_eviction_controller_pod_deletion_duration_seconds",
			Help:    "[ALPHA] Latency, in seconds, between the time when a taint effect has been activated for the Pod and its deletion via TaintEvictionController.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
		}),
		pending: map[types.UID]time.Time{},
	}
	c.Register(t.deleted, t.took)
	t.pods.AddIndex(nodeIndex, func(pod *corev1.Pod) []string { return []string{pod.Spec.NodeName} })
	t.loop = controllers.NewLoop("noexec_taint_pod", c, t.reconcile)
	t.nodes.OnChange(t.nodeChanged)
	t.pods.OnChange(func(old, pod *corev1.Pod) {
		if pod == nil {
			t.settle(old.UID)
			return
		}
		if pod.Spec.NodeName == "" || old != nil && old.Spec.NodeName != "" && equality.Semantic.DeepEqual(old.Spec.Tolerations, pod.Spec.Tolerations) {
			return
		}
		t.loop.EnqueueObject(pod)
	})
	return t
}

// Run works until ctx ends.
func (t *Controller) Run(ctx context.Context) error { return t.loop.Run(ctx) }

func (t *Controller) nodeChanged(old, node *corev1.Node) {
	if node == nil || old != nil && equality.Semantic.DeepEqual(noExecute(old), noExecute(node)) {
		return
	}
	if old == nil && len(noExecute(node)) == 0 {
		return
	}
	for _, pod := range t.pods.ByIndex(nodeIndex, node.Name) {
		t.loop.EnqueueObject(pod)
	}
}

// noExecute are the node's NoExecute taints, without the times they were added.
func noExecute(node *corev1.Node) (taints []corev1.Taint) {
	for _, taint := range node.Spec.Taints {
		if taint.Effect == corev1.TaintEffectNoExecute {
			taint.TimeAdded = nil
			taints = append(taints, taint)
		}
	}
	return taints
}

// tolerated says for how long a pod with these tolerations may stay beside
// taints. Forever wins over nothing else: a taint without a match has it leave now.
func tolerated(taints []corev1.Taint, tolerations []corev1.Toleration) (limit time.Duration, forever bool) {
	forever = true
	for i := range taints {
		matched := false
		for j := range tolerations {
			if !tolerates(&tolerations[j], &taints[i]) {
				continue
			}
			matched = true
			if s := tolerations[j].TolerationSeconds; s != nil {
				d := time.Duration(max(*s, 0)) * time.Second
				if forever || d < limit {
					limit, forever = d, false
				}
			}
		}
		if !matched {
			return 0, false
		}
	}
	return limit, forever
}

func tolerates(toleration *corev1.Toleration, taint *corev1.Taint) bool {
	return toleration.ToleratesTaint(klog.Background(), taint, true)
}

func (t *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	pod, ok := t.pods.Cached(key.Namespace, key.Name)
	if !ok || pod.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	node, ok := t.nodes.Cached("", pod.Spec.NodeName)
	if !ok {
		return controllers.Result{}, nil
	}
	limit, forever := tolerated(noExecute(node), pod.Spec.Tolerations)
	if forever {
		if t.settle(pod.UID) {
			t.events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s", key)
		}
		return controllers.Result{}, nil
	}
	due := t.since(pod.UID).Add(limit)
	if left := due.Sub(t.clock.Now()); left > 0 {
		return controllers.Result{After: left}, nil
	}
	return controllers.Result{}, t.evict(ctx, pod, due)
}

// settle ends the count and tells whether there was one.
func (t *Controller) settle(uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, counting := t.pending[uid]
	delete(t.pending, uid)
	return counting
}

// since starts the count, unless it runs.
func (t *Controller) since(uid types.UID) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, counting := t.pending[uid]; !counting {
		t.pending[uid] = t.clock.Now()
	}
	return t.pending[uid]
}

func (t *Controller) evict(ctx context.Context, pod *corev1.Pod, due time.Time) error {
	t.events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s", pod.Namespace, pod.Name)
	condition := &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint",
	}
	if err := podcondition.Patch(ctx, t.pods, pod, condition, "", metav1.NewTime(t.clock.Now())); err != nil {
		return fmt.Errorf("mark for deletion: %w", err)
	}
	_, err := t.pods.Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	if err == nil {
		t.deleted.Inc()
		t.took.Observe(t.clock.Since(due).Seconds())
		t.settle(pod.UID)
	}
	return err
}
