package nodelifecycle

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// taintOf is the NoSchedule taint that a condition's status brings.
var taintOf = map[corev1.NodeConditionType]map[corev1.ConditionStatus]string{
	corev1.NodeReady: {
		corev1.ConditionFalse:   corev1.TaintNodeNotReady,
		corev1.ConditionUnknown: corev1.TaintNodeUnreachable,
	},
	corev1.NodeMemoryPressure:     {corev1.ConditionTrue: corev1.TaintNodeMemoryPressure},
	corev1.NodeDiskPressure:       {corev1.ConditionTrue: corev1.TaintNodeDiskPressure},
	corev1.NodeNetworkUnavailable: {corev1.ConditionTrue: corev1.TaintNodeNetworkUnavailable},
	corev1.NodePIDPressure:        {corev1.ConditionTrue: corev1.TaintNodePIDPressure},
}

// noSchedule are the keys of the NoSchedule taints that the node is to have of those kept here.
func noSchedule(node *corev1.Node) []string {
	var keys []string
	for _, c := range node.Status.Conditions {
		if key := taintOf[c.Type][c.Status]; key != "" {
			keys = append(keys, key)
		}
	}
	if node.Spec.Unschedulable {
		keys = append(keys, corev1.TaintNodeUnschedulable)
	}
	slices.Sort(keys)
	return keys
}

// kept tells whether a taint is one that this controller sets and removes.
func kept(t corev1.Taint) bool {
	switch t.Key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	case corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure, corev1.TaintNodeNetworkUnavailable,
		corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable:
		return t.Effect == corev1.TaintEffectNoSchedule
	}
	return false
}

// taint makes the node's taints say what its conditions do. A NoExecute taint
// may have to wait: then it returns for how long.
func (n *Controller) taint(ctx context.Context, node *corev1.Node) (time.Duration, error) {
	now := metav1.NewTime(n.clock.Now())
	var want []corev1.Taint
	for _, key := range noSchedule(node) {
		want = append(want, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	execute, wait := n.noExecute(node, now.Time)
	if execute != "" {
		want = append(want, corev1.Taint{Key: execute, Effect: corev1.TaintEffectNoExecute})
	}
	taints, changed := merge(node.Spec.Taints, want, now)
	if !changed {
		return wait, nil
	}
	_, err := n.nodes.MergePatch(ctx, "", node.Name, map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err == nil && execute != "" && !evicts(node.Spec.Taints) {
		n.evictions.WithLabelValues(zoneOf(node)).Inc()
	}
	return wait, err
}

// noExecute is the key of the NoExecute taint that the node is to have now, and
// when to ask again if that is not yet settled.
func (n *Controller) noExecute(node *corev1.Node, now time.Time) (key string, wait time.Duration) {
	c := condition(node, corev1.NodeReady)
	if c == nil || c.Status == corev1.ConditionTrue || n.zones.allDisrupted() {
		return "", 0
	}
	key = taintOf[corev1.NodeReady][c.Status]
	if evicts(node.Spec.Taints) {
		return key, 0
	}
	wait, ok := n.zones.admit(zoneOf(node), now)
	if !ok {
		return "", wait
	}
	return key, 0
}

// evicts tells whether a node that is not ready has the taint that ends its pods.
func evicts(taints []corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
	})
}

// merge replaces the kept taints among all by want, and tells whether that is a change.
func merge(all, want []corev1.Taint, now metav1.Time) (merged []corev1.Taint, changed bool) {
	merged = []corev1.Taint{}
	for _, t := range all {
		if kept(t) && !slices.ContainsFunc(want, func(w corev1.Taint) bool { return w.MatchTaint(&t) }) {
			changed = true
			continue
		}
		merged = append(merged, t)
	}
	for _, w := range want {
		if !slices.ContainsFunc(merged, func(t corev1.Taint) bool { return t.MatchTaint(&w) }) {
			w.TimeAdded = &now
			merged, changed = append(merged, w), true
		}
	}
	return merged, changed
}
