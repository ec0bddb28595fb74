package daemonset

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhereADaemonFits(t *testing.T) {
	taint := func(key string, effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
	}
	template := func(change func(*corev1.PodSpec)) func(*appsv1.DaemonSet) {
		return func(ds *appsv1.DaemonSet) { change(&ds.Spec.Template.Spec) }
	}
	tests := []struct {
		name string
		ds   func(*appsv1.DaemonSet)
		node func(*corev1.Node)
		want fit
	}{
		{"any node by default", nil, nil, fit{true, true}},
		{"not on a node without the selected label", template(func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"disk": "ssd"} }), nil, fit{}},
		{"on a node with it", template(func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"disk": "ssd"} }),
			func(n *corev1.Node) { n.Labels = map[string]string{"disk": "ssd"} }, fit{true, true}},
		{"only on the node that the template names", template(func(s *corev1.PodSpec) { s.NodeName = "other" }), nil, fit{}},
		{"stays where it was when new pods are kept off", nil, taint("special", corev1.TaintEffectNoSchedule), fit{false, true}},
		{"leaves a node that evicts", nil, taint("special", corev1.TaintEffectNoExecute), fit{}},
		{"is not kept off by a mere preference", nil, taint("special", corev1.TaintEffectPreferNoSchedule), fit{true, true}},
		{"puts up with a node that is not ready", nil, taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), fit{true, true}},
		{"puts up with a cordoned node", nil, taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), fit{true, true}},
		{"waits for the pod network", nil, taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), fit{false, true}},
		{"unless it uses the host's", template(func(s *corev1.PodSpec) { s.HostNetwork = true }),
			taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), fit{true, true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ds, node := &appsv1.DaemonSet{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			if tt.ds != nil {
				tt.ds(ds)
			}
			if tt.node != nil {
				tt.node(node)
			}
			if got := fitAll(ds, []*corev1.Node{node})[0]; got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestAPodIsPinnedInEveryTermOfItsAffinity(t *testing.T) {
	spec := &corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "b", Operator: corev1.NodeSelectorOpExists}}},
		}},
	}}}
	pin(spec, "n")
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if len(term.MatchFields) != 1 || term.MatchFields[0].Values[0] != "n" || len(term.MatchExpressions) != 1 {
			t.Errorf("term %+v", term)
		}
	}
	if got := targetNode(&corev1.Pod{Spec: *spec}); got != "n" {
		t.Errorf("meant for %q", got)
	}
}
