package quota

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// inScopes reports whether every scope of a quota takes the object in. A quota
// with scopes limits pods and claims only.
func inScopes(q *corev1.ResourceQuota, obj runtime.Object) bool {
	return !slices.ContainsFunc(scopesOf(q), func(r corev1.ScopedResourceSelectorRequirement) bool { return !inScope(r, obj) })
}

// scopesOf are all scopes of a quota, in the longer way to say them.
func scopesOf(q *corev1.ResourceQuota) (all []corev1.ScopedResourceSelectorRequirement) {
	for _, s := range q.Spec.Scopes {
		all = append(all, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists})
	}
	if q.Spec.ScopeSelector != nil {
		all = append(all, q.Spec.ScopeSelector.MatchExpressions...)
	}
	return all
}

func inScope(r corev1.ScopedResourceSelectorRequirement, obj runtime.Object) bool {
	switch o := obj.(type) {
	case *corev1.Pod:
		return podInScope(r, o)
	case *corev1.PersistentVolumeClaim:
		if r.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
			return false
		}
		return slices.ContainsFunc(append(attributesClasses(o), ""), func(class string) bool { return class != "" && selects(r, class) }) ||
			len(attributesClasses(o)) == 0 && selects(r, "")
	}
	return false
}

func podInScope(r corev1.ScopedResourceSelectorRequirement, pod *corev1.Pod) bool {
	switch r.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return pod.Spec.ActiveDeadlineSeconds != nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return pod.Spec.ActiveDeadlineSeconds == nil
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod)
	case corev1.ResourceQuotaScopePriorityClass:
		return selects(r, pod.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossNamespace(pod.Spec.Affinity)
	}
	return false
}

// selects applies the operator of a scope to a name; "" means none.
func selects(r corev1.ScopedResourceSelectorRequirement, name string) bool {
	switch r.Operator {
	case corev1.ScopeSelectorOpExists:
		return name != ""
	case corev1.ScopeSelectorOpDoesNotExist:
		return name == ""
	case corev1.ScopeSelectorOpIn:
		return slices.Contains(r.Values, name)
	case corev1.ScopeSelectorOpNotIn:
		return !slices.Contains(r.Values, name)
	}
	return false
}

// attributesClasses are the classes a claim has, is getting or asks for.
func attributesClasses(c *corev1.PersistentVolumeClaim) (out []string) {
	if n := c.Spec.VolumeAttributesClassName; n != nil && *n != "" {
		out = append(out, *n)
	}
	if n := c.Status.CurrentVolumeAttributesClassName; n != nil && *n != "" {
		out = append(out, *n)
	}
	if m := c.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		out = append(out, m.TargetVolumeAttributesClassName)
	}
	return out
}

// bestEffort reports whether no container asks for or is limited in cpu or memory.
func bestEffort(pod *corev1.Pod) bool {
	lists := []corev1.ResourceList{}
	if r := pod.Spec.Resources; r != nil {
		lists = append(lists, r.Requests, r.Limits)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			lists = append(lists, containers[i].Resources.Requests, containers[i].Resources.Limits)
		}
	}
	for _, list := range lists {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q, ok := list[name]; ok && !q.IsZero() {
				return false
			}
		}
	}
	return true
}

func crossNamespace(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		terms = append(terms, required...)
		for i := range preferred {
			terms = append(terms, preferred[i].PodAffinityTerm)
		}
	}
	if p := a.PodAffinity; p != nil {
		add(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		add(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil })
}
