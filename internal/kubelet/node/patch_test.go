package node

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

func TestAStatusPatchLeavesAloneWhatOthersWrite(t *testing.T) {
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status}
	}
	from := &corev1.Node{Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{condition(corev1.NodeReady, corev1.ConditionFalse)},
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
	}}
	to := from.DeepCopy()
	to.Status.Conditions[0].Status = corev1.ConditionTrue
	to.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.3"}}
	patch, err := statusPatch(from, to)
	if err != nil {
		t.Fatal(err)
	}
	// Meanwhile the control plane tainted the node and the network told of its routes.
	now := from.DeepCopy()
	now.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	now.Status.Conditions = append(now.Status.Conditions, condition(corev1.NodeNetworkUnavailable, corev1.ConditionFalse))
	raw, err := json.Marshal(now)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = strategicpatch.StrategicMergePatch(raw, patch, &corev1.Node{}); err != nil {
		t.Fatal(err)
	}
	got := &corev1.Node{}
	if err := json.Unmarshal(raw, got); err != nil {
		t.Fatal(err)
	}
	if len(got.Spec.Taints) != 1 || statusOfCondition(got, corev1.NodeNetworkUnavailable) != corev1.ConditionFalse || statusOfCondition(got, corev1.NodeReady) != corev1.ConditionTrue {
		t.Errorf("node %+v %+v", got.Spec, got.Status.Conditions)
	}
	if a := got.Status.Addresses; len(a) != 2 || a[0].Address != "10.0.0.2" || a[1].Address != "10.0.0.3" {
		t.Errorf("addresses %v", a)
	}
}

func statusOfCondition(n *corev1.Node, kind corev1.NodeConditionType) corev1.ConditionStatus {
	if c := condition(&n.Status, kind); c != nil {
		return c.Status
	}
	return ""
}
