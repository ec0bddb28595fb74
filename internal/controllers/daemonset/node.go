package daemonset

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"proa/internal/controllers/podcontrol"
)

const templateGenerationLabel = "pod-template-generation"

// fit says what a node is to a set: its pods are to run there, or may at least
// stay where they run already.
type fit struct{ run, stay bool }

func fitAll(ds *appsv1.DaemonSet, nodes []*corev1.Node) []fit {
	pod := &corev1.Pod{Spec: ds.Spec.Template.Spec}
	pod.Spec.Tolerations = tolerations(&pod.Spec)
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	fits := make([]fit, len(nodes))
	for i, node := range nodes {
		fits[i] = fitNode(pod, affinity, node)
	}
	return fits
}

func fitNode(pod *corev1.Pod, affinity nodeaffinity.RequiredNodeAffinity, node *corev1.Node) fit {
	if name := pod.Spec.NodeName; name != "" && name != node.Name {
		return fit{}
	}
	if matches, err := affinity.Match(node); err != nil || !matches {
		return fit{}
	}
	f := fit{run: true, stay: true}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || tolerated(pod.Spec.Tolerations, taint) {
			continue
		}
		f.run = false
		if taint.Effect == corev1.TaintEffectNoExecute {
			f.stay = false
		}
	}
	return f
}

func tolerated(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range tolerations {
		if tolerations[i].ToleratesTaint(klog.Background(), taint, false) {
			return true
		}
	}
	return false
}

// tolerations adds to a template's own what every daemon puts up with: it shall
// run wherever a node exists, ready or not.
func tolerations(spec *corev1.PodSpec) []corev1.Toleration {
	out := append([]corev1.Toleration(nil), spec.Tolerations...)
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		for i := range out {
			if out[i].MatchToleration(&t) {
				out[i] = t
				return
			}
		}
		out = append(out, t)
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	if spec.HostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
	return out
}

// newPod is a pod of the current revision for one node.
func (s *sync) newPod(ref *metav1.OwnerReference, node string) *corev1.Pod {
	pod := podcontrol.FromTemplate(s.ds, ref, &s.ds.Spec.Template)
	pod.Labels = maps.Clone(pod.Labels)
	if generation, ok := s.ds.Annotations[appsv1.DeprecatedTemplateGeneration]; ok {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, templateGenerationLabel, generation)
	}
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, s.hash)
	pod.Spec.Tolerations = tolerations(&pod.Spec)
	pin(&pod.Spec, node)
	return pod
}

// pin makes every term of the required node affinity name the node as well.
func pin(spec *corev1.PodSpec, node string) {
	fields := []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if *required == nil || len((*required).NodeSelectorTerms) == 0 {
		*required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: fields}}}
		return
	}
	for i := range (*required).NodeSelectorTerms {
		(*required).NodeSelectorTerms[i].MatchFields = fields
	}
}

// targetNode is the node that a pod runs on or was made for, "" if neither is known.
func targetNode(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}
