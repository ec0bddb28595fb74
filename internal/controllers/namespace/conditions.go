package namespace

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fine are the conditions of a namespace whose deletion meets no obstacle, in
// the order that they are shown in.
var fine = []corev1.NamespaceCondition{
	{Type: corev1.NamespaceDeletionDiscoveryFailure, Reason: "ResourcesDiscovered", Message: "All resources successfully discovered"},
	{Type: corev1.NamespaceDeletionGVParsingFailure, Reason: "ParsedGroupVersions", Message: "All legacy kube types successfully parsed"},
	{Type: corev1.NamespaceDeletionContentFailure, Reason: "ContentDeleted", Message: "All content successfully deleted, may be waiting on finalization"},
	{Type: corev1.NamespaceContentRemaining, Reason: "ContentRemoved", Message: "All content successfully removed"},
	{Type: corev1.NamespaceFinalizersRemaining, Reason: "ContentHasNoFinalizers", Message: "All content-preserving finalizers finished"},
}

// conditions says what holds the deletion up.
func (left *remains) conditions() []corev1.NamespaceCondition {
	var out []corev1.NamespaceCondition
	add := func(kind corev1.NamespaceConditionType, reason, message string) {
		out = append(out, corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message})
	}
	if len(left.unknown) > 0 {
		add(corev1.NamespaceDeletionDiscoveryFailure, "DiscoveryFailed", left.discoveryFailure())
	}
	if len(left.failures) > 0 {
		texts := make([]string, len(left.failures))
		for i, err := range left.failures {
			texts[i] = err.Error()
		}
		add(corev1.NamespaceDeletionContentFailure, "ContentDeletionFailed",
			fmt.Sprintf("Failed to delete all resource types, %d remaining: %v", len(texts), strings.Join(texts, ", ")))
	}
	if len(left.objects) > 0 {
		var texts []string
		for gvr, n := range left.objects {
			texts = append(texts, fmt.Sprintf("%s.%s has %d resource instances", gvr.Resource, gvr.Group, n))
		}
		slices.Sort(texts)
		add(corev1.NamespaceContentRemaining, "SomeResourcesRemain", "Some resources are remaining: "+strings.Join(texts, ", "))
	}
	if len(left.finalizers) > 0 {
		var texts []string
		for _, finalizer := range slices.Sorted(maps.Keys(left.finalizers)) {
			texts = append(texts, fmt.Sprintf("%s in %d resource instances", finalizer, left.finalizers[finalizer]))
		}
		add(corev1.NamespaceFinalizersRemaining, "SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+strings.Join(texts, ", "))
	}
	return out
}

// setConditions makes a status have the found conditions and, for the rest, the
// fine ones. It tells whether that changed anything.
func setConditions(status *corev1.NamespaceStatus, found []corev1.NamespaceCondition, now metav1.Time) (changed bool) {
	for _, want := range fine {
		want.Status, want.LastTransitionTime = corev1.ConditionFalse, now
		for _, c := range found {
			if c.Type == want.Type {
				want = c
				want.LastTransitionTime = now
			}
		}
		i := slices.IndexFunc(status.Conditions, func(c corev1.NamespaceCondition) bool { return c.Type == want.Type })
		if i < 0 {
			status.Conditions, changed = append(status.Conditions, want), true
			continue
		}
		old := &status.Conditions[i]
		if old.Status == want.Status && old.Reason == want.Reason && old.Message == want.Message {
			continue
		}
		if old.Status == want.Status {
			want.LastTransitionTime = old.LastTransitionTime
		}
		*old, changed = want, true
	}
	return changed
}
