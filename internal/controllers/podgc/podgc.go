// Package podgc removes pods that nobody else would: the oldest ended ones
// beyond a threshold, those of nodes that are gone or out of service, and those
// deleted before they had a node.
package podgc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/podcondition"
	"proa/internal/controllers/podcontrol"
)

const (
	period           = 20 * time.Second
	quarantine       = 40 * time.Second // that a node is missed before its pods go
	defaultThreshold = 12500
)

// Controller looks at all pods every 20 seconds.
type Controller struct {
	pods      *client.Informer[*corev1.Pod]
	nodes     *client.Informer[*corev1.Node]
	clock     clock.WithTicker
	threshold int
	missed    map[string]time.Time // nodes that pods name and that are not there

	removals, failures *prometheus.CounterVec // by namespace and reason
}

// Why a pod is removed, in metrics.
const (
	ended        = "terminated"
	outOfService = "out-of-service"
	orphaned     = "orphaned"
	unscheduled  = "unscheduled"
)

// New returns a controller that lets threshold ended pods stay: 0 means 12500, a
// negative one that no number is too high.
func New(c controllers.Config, threshold int) *Controller {
	if threshold == 0 {
		threshold = defaultThreshold
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pod_gc_collector_" + name, Help: "[ALPHA] " + help}, []string{"namespace", "reason"})
	}
	g := &Controller{
		pods:  client.Shared[*corev1.Pod](c.Cache),
		nodes: client.Shared[*corev1.Node](c.Cache),
		clock: c.Clock, threshold: threshold, missed: map[string]time.Time{},
		removals: counter("force_delete_pods_total", "Pods that were to be removed at once."),
		failures: counter("force_delete_pod_errors_total", "Pods that could not be removed at once."),
	}
	c.Register(g.removals, g.failures)
	return g
}

// Run works until ctx ends.
func (g *Controller) Run(ctx context.Context) error {
	ticker := g.clock.NewTicker(period)
	defer ticker.Stop()
	for {
		if err := g.collect(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "pod garbage collection", "err", err)
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return nil
		}
	}
}

func (g *Controller) collect(ctx context.Context) error {
	pods := g.pods.Select("", labels.Everything())
	var errs []error
	for _, pod := range surplus(pods, g.threshold) {
		errs = append(errs, g.remove(ctx, pod, ended, nil))
	}
	gone, err := g.goneNodes(ctx, pods)
	errs = append(errs, err)
	for _, pod := range pods {
		switch name := pod.Spec.NodeName; {
		case name == "" && pod.DeletionTimestamp != nil:
			errs = append(errs, g.remove(ctx, pod, unscheduled, nil))
		case gone[name]:
			errs = append(errs, g.remove(ctx, pod, orphaned, &corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists",
			}))
		case pod.DeletionTimestamp != nil && g.outOfService(name):
			errs = append(errs, g.remove(ctx, pod, outOfService, nil))
		}
	}
	return errors.Join(errs...)
}

// surplus returns the ended pods beyond the threshold: evicted ones first, then the oldest.
func surplus(pods []*corev1.Pod, threshold int) []*corev1.Pod {
	if threshold < 0 {
		return nil
	}
	var over []*corev1.Pod
	for _, pod := range pods {
		if podcontrol.Ended(pod) {
			over = append(over, pod)
		}
	}
	if len(over) <= threshold {
		return nil
	}
	slices.SortFunc(over, func(a, b *corev1.Pod) int {
		if ea, eb := evicted(a), evicted(b); ea != eb {
			if ea {
				return -1
			}
			return 1
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return over[:len(over)-threshold]
}

func evicted(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted"
}

// goneNodes returns the nodes that pods name and that have been missed for the
// quarantine, which the API confirms.
func (g *Controller) goneNodes(ctx context.Context, pods []*corev1.Pod) (map[string]bool, error) {
	gone, missing := map[string]bool{}, map[string]time.Time{}
	var errs []error
	for _, pod := range pods {
		name := pod.Spec.NodeName
		if _, seen := missing[name]; seen || name == "" {
			continue
		}
		if _, exists := g.nodes.Cached("", name); exists {
			continue
		}
		since, ok := g.missed[name]
		if !ok {
			since = g.clock.Now()
		}
		missing[name] = since
		if g.clock.Since(since) < quarantine {
			continue
		}
		_, err := g.nodes.Get(ctx, "", name)
		gone[name] = apierrors.IsNotFound(err)
		if err != nil && !gone[name] {
			errs = append(errs, err)
		}
	}
	g.missed = missing
	return gone, errors.Join(errs...)
}

func (g *Controller) outOfService(name string) bool {
	node, ok := g.nodes.Cached("", name)
	if !ok {
		return false
	}
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return !ready && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// remove deletes a pod at once, and counts it.
func (g *Controller) remove(ctx context.Context, pod *corev1.Pod, reason string, condition *corev1.PodCondition) error {
	g.removals.WithLabelValues(pod.Namespace, reason).Inc()
	err := g.end(ctx, pod, condition)
	if err != nil {
		g.failures.WithLabelValues(pod.Namespace, reason).Inc()
	}
	return err
}

// end deletes a pod at once. One that has not ended fails first, so that its
// controller can tell why.
func (g *Controller) end(ctx context.Context, pod *corev1.Pod, condition *corev1.PodCondition) error {
	if !podcontrol.Ended(pod) {
		if err := podcondition.Patch(ctx, g.pods, pod, condition, corev1.PodFailed, metav1.NewTime(g.clock.Now())); err != nil {
			return err
		}
	}
	_, err := g.pods.Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
