package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis/core"
	"proa/internal/store"
)

// PodTolerationRestriction gives pods the tolerations of their namespace and
// refuses those that it does not allow. Its annotations say which, else the
// configuration does. Off unless enabled.
type PodTolerationRestriction struct {
	Store            *store.Store
	defaults, allows []corev1.Toleration
}

const (
	defaultTolerationsAnnotation = "scheduler.alpha.kubernetes.io/defaultTolerations"
	allowedTolerationsAnnotation = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// NewPodTolerationRestriction reads the configuration; nil says nothing.
func NewPodTolerationRestriction(s *store.Store, config []byte) (PodTolerationRestriction, error) {
	var c struct {
		metav1.TypeMeta `json:",inline"`
		Default         []corev1.Toleration `json:"default"`
		Whitelist       []corev1.Toleration `json:"whitelist"`
	}
	if config != nil {
		if err := pluginDocument(config, "podtolerationrestriction.admission.k8s.io/v1alpha1", &c); err != nil {
			return PodTolerationRestriction{}, err
		}
	}
	return PodTolerationRestriction{s, c.Default, c.Whitelist}, nil
}

func (PodTolerationRestriction) Name() string { return "PodTolerationRestriction" }

func (p PodTolerationRestriction) Admit(_ context.Context, a *Attributes) error {
	pod, ok := a.podWritten()
	if !ok {
		return nil
	}
	var extra []corev1.Toleration
	if a.Operation == admissionv1.Create {
		own, err := p.of(a.Namespace, defaultTolerationsAnnotation)
		if err != nil {
			return err
		}
		if extra = own; own == nil {
			extra = p.defaults
		}
	}
	if core.QOSClass(pod) != corev1.PodQOSBestEffort {
		extra = append(slices.Clip(extra), corev1.Toleration{
			Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
		})
	}
	if len(extra) > 0 {
		pod.Spec.Tolerations = mergeTolerations(append(slices.Clip(pod.Spec.Tolerations), extra...))
	}
	return nil
}

func (p PodTolerationRestriction) Validate(_ context.Context, a *Attributes) error {
	pod, ok := a.podWritten()
	if !ok || len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	allowed, err := p.of(a.Namespace, allowedTolerationsAnnotation)
	if err != nil {
		return err
	}
	scope := "namespace"
	if allowed == nil {
		allowed, scope = p.allows, "cluster"
	}
	for i := range pod.Spec.Tolerations {
		covers := func(w corev1.Toleration) bool { return tolerationCovers(&w, &pod.Spec.Tolerations[i]) }
		if len(allowed) > 0 && !slices.ContainsFunc(allowed, covers) {
			return a.forbidden(fmt.Errorf("pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope))
		}
	}
	return nil
}

// of reads an annotation of a namespace; nil when it has none.
func (p PodTolerationRestriction) of(namespace, annotation string) ([]corev1.Toleration, error) {
	ns, err := find[*corev1.Namespace](p.Store.Snapshot(), namespaces, "", namespace)
	if err != nil {
		return nil, err
	}
	text, ok := ns.Annotations[annotation]
	if !ok {
		return nil, nil
	}
	list := []corev1.Toleration{}
	if text != "" {
		err = json.Unmarshal([]byte(text), &list)
	}
	return list, err
}

// mergeTolerations leaves out what another one covers; of equal ones the first stays.
func mergeTolerations(list []corev1.Toleration) (merged []corev1.Toleration) {
	for i := range list {
		t := &list[i]
		covered := slices.ContainsFunc(merged, func(m corev1.Toleration) bool { return tolerationCovers(&m, t) }) ||
			slices.ContainsFunc(list[i+1:], func(l corev1.Toleration) bool {
				return !equality.Semantic.DeepEqual(&l, t) && tolerationCovers(&l, t)
			})
		if !covered {
			merged = append(merged, *t)
		}
	}
	return merged
}

// tolerationCovers reports whether whatever t tolerates, all does too.
func tolerationCovers(all, t *corev1.Toleration) bool {
	switch {
	case equality.Semantic.DeepEqual(all, t):
		return true
	case t.Key != all.Key && (all.Key != "" || all.Operator != corev1.TolerationOpExists),
		t.Effect != all.Effect && all.Effect != "":
		return false
	case all.Effect == corev1.TaintEffectNoExecute && all.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *all.TolerationSeconds):
		return false
	}
	switch all.Operator {
	case corev1.TolerationOpEqual, "":
		return t.Operator == corev1.TolerationOpEqual && t.Value == all.Value
	case corev1.TolerationOpExists:
		return true
	}
	return false
}

// ExtendedResourceToleration lets pods that ask for extended resources onto nodes
// that are tainted with their names. Off unless enabled.
type ExtendedResourceToleration struct{}

func (ExtendedResourceToleration) Name() string { return "ExtendedResourceToleration" }

func (ExtendedResourceToleration) Admit(_ context.Context, a *Attributes) error {
	pod, ok := a.podWritten()
	if !ok {
		return nil
	}
	wanted := map[corev1.ResourceName]bool{}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		for name := range c.Resources.Requests {
			if core.IsExtended(name) {
				wanted[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		t := corev1.Toleration{Key: string(name), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
		same := func(have corev1.Toleration) bool { return t.MatchToleration(&have) }
		if i := slices.IndexFunc(pod.Spec.Tolerations, same); i >= 0 {
			pod.Spec.Tolerations[i] = t
		} else {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
		}
	}
	return nil
}

// LimitPodHardAntiAffinityTopology keeps pods from claiming more than a node for
// themselves. Off unless enabled.
type LimitPodHardAntiAffinityTopology struct{}

func (LimitPodHardAntiAffinityTopology) Name() string { return "LimitPodHardAntiAffinityTopology" }

func (LimitPodHardAntiAffinityTopology) Validate(_ context.Context, a *Attributes) error {
	pod, ok := a.podWritten()
	if !ok || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return a.forbidden(fmt.Errorf("affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed", term.TopologyKey, corev1.LabelHostname))
		}
	}
	return nil
}
