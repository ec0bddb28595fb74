package core

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// eachContainer visits containers of every kind and may change them.
func eachContainer(s *corev1.PodSpec, visit func(*corev1.Container)) {
	for i := range s.InitContainers {
		visit(&s.InitContainers[i])
	}
	for i := range s.Containers {
		visit(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		c := corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon)
		visit(&c)
		s.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
}

// mergeLabelKeys writes matchLabelKeys and mismatchLabelKeys (KEP-3633, KEP-3243)
// into the label selectors they qualify, with the values of this pod's labels.
func mergeLabelKeys(p *corev1.Pod) {
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			mergeTerms(p.Labels, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a.PodAntiAffinity != nil {
			mergeTerms(p.Labels, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		mergeKeys(p.Labels, c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

func mergeTerms(labels map[string]string, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
	merge := func(t *corev1.PodAffinityTerm) {
		mergeKeys(labels, t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		mergeKeys(labels, t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	for i := range required {
		merge(&required[i])
	}
	for i := range preferred {
		merge(&preferred[i].PodAffinityTerm)
	}
}

func mergeKeys(labels map[string]string, selector *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
	if selector == nil {
		return
	}
	for _, key := range keys {
		value, has := labels[key]
		merged := metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}}
		known := slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
			return r.Key == key && r.Operator == op && slices.Equal(r.Values, merged.Values)
		})
		if has && !known {
			selector.MatchExpressions = append(selector.MatchExpressions, merged)
		}
	}
}

const appArmorAnnotation = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix

// syncAppArmor takes the profile of a container from the old annotation where
// the field is absent; the field alone is written since 1.30.
func syncAppArmor(p *corev1.Pod) {
	if p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		return
	}
	eachContainer(&p.Spec, func(c *corev1.Container) {
		profile := appArmorProfile(p.Annotations[appArmorAnnotation+c.Name])
		if profile == nil || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return
		}
		if p.Spec.SecurityContext != nil && p.Spec.SecurityContext.AppArmorProfile != nil && *p.Spec.SecurityContext.AppArmorProfile == *profile {
			return
		}
		if c.SecurityContext == nil {
			c.SecurityContext = &corev1.SecurityContext{}
		}
		c.SecurityContext.AppArmorProfile = profile
	})
}

func appArmorProfile(annotation string) *corev1.AppArmorProfile {
	const local = corev1.DeprecatedAppArmorBetaProfileNamePrefix
	switch {
	case annotation == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case annotation == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case len(annotation) > len(local) && annotation[:len(local)] == local:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: new(annotation[len(local):])}
	}
	return nil
}
