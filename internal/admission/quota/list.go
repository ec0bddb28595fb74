package quota

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Add returns the sum of two lists.
func Add(a, b corev1.ResourceList) corev1.ResourceList {
	out := a.DeepCopy()
	if out == nil {
		out = corev1.ResourceList{}
	}
	for name, q := range b {
		sum := out[name].DeepCopy()
		sum.Add(q)
		out[name] = sum
	}
	return out
}

// Growth returns what now has more than before; nothing that shrank.
func Growth(now, before corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range now {
		diff := q.DeepCopy()
		diff.Sub(before[name])
		if diff.Sign() > 0 {
			out[name] = diff
		}
	}
	return out
}

// Mask returns the part of a list that has one of the names in keep.
func Mask(list, keep corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range list {
		if _, ok := keep[name]; ok {
			out[name] = q
		}
	}
	return out
}

// exceeding returns the names in list whose quantity is above hard's.
func exceeding(list, hard corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range list {
		if limit, ok := hard[name]; ok && q.Cmp(limit) > 0 {
			out[name] = q
		}
	}
	return out
}

func names(list corev1.ResourceList) []corev1.ResourceName { return slices.Sorted(maps.Keys(list)) }

// text prints a list as name=quantity, sorted and joined by commas.
func text(list corev1.ResourceList) string {
	parts := make([]string, 0, len(list))
	for _, name := range names(list) {
		q := list[name]
		parts = append(parts, string(name)+"="+q.String())
	}
	return strings.Join(parts, ",")
}

func count(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }
