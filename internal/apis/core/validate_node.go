package core

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"proa/internal/apis/validate"
)

func validateNode(n *corev1.Node) field.ErrorList {
	errs := validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints")) // upstream's path
	errs = append(errs, validateNodeResources(n)...)
	return append(errs, validatePodCIDRs(n.Spec.PodCIDRs)...)
}

func validateTaints(taints []corev1.Taint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, t := range taints {
		at := path.Index(i)
		errs = append(errs, validate.LabelName(at.Child("key"), t.Key)...)
		errs = append(errs, validate.Invalid(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
		if t.Effect == "" {
			errs = append(errs, field.Required(at.Child("effect"), ""))
		} else {
			errs = append(errs, validateTaintEffect(t.Effect, at.Child("effect"))...)
		}
		key := string(t.Effect) + "/" + t.Key
		if seen.Has(key) {
			duplicate := field.Duplicate(at, t)
			duplicate.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, duplicate)
		}
		seen.Insert(key)
	}
	return errs
}

func validateNodeResources(n *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	check := func(list corev1.ResourceList, child string) {
		for _, name := range validate.SortedKeys(list) {
			errs = append(errs, validateQuantity(name, list[name], field.NewPath("status", child, string(name)))...)
		}
	}
	check(n.Status.Capacity, "capacity")
	check(n.Status.Allocatable, "allocatable")
	return errs
}

func validatePodCIDRs(cidrs []string) field.ErrorList {
	path := field.NewPath("spec", "podCIDRs")
	var errs field.ErrorList
	for i, c := range cidrs {
		errs = append(errs, validation.IsValidCIDRForLegacyField(path.Index(i), c, true, nil)...)
	}
	if len(cidrs) > 1 {
		dual, err := netutils.IsDualStackCIDRStrings(cidrs)
		if err != nil {
			errs = append(errs, field.InternalError(path, fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%v", err)))
		}
		if !dual || len(cidrs) > 2 {
			errs = append(errs, field.Invalid(path, cidrs, "may specify no more than one CIDR for each IP family"))
		}
	}
	return errs
}

// validateNodeUpdate: pod ranges and the provider's id are set once; besides
// them labels, taints, capacity and unschedulable may change.
func validateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	errs := validateNode(n)
	addresses := sets.New[corev1.NodeAddress]()
	for i, a := range n.Status.Addresses {
		if addresses.Has(a) {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), a))
		}
		addresses.Insert(a)
	}
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	switch at := field.NewPath("spec", "providerID"); {
	case old.Spec.ProviderID != "" && n.Spec.ProviderID == "":
		errs = append(errs, field.Invalid(at, nil, "field cannot be cleared once set"))
	case old.Spec.ProviderID != "" && n.Spec.ProviderID != old.Spec.ProviderID:
		errs = append(errs, field.Invalid(at, nil, "field cannot be modified once set"))
	}
	munged := n.Spec.DeepCopy()
	munged.PodCIDR, munged.PodCIDRs, munged.ProviderID = old.Spec.PodCIDR, old.Spec.PodCIDRs, old.Spec.ProviderID
	munged.Taints, munged.Unschedulable, munged.ConfigSource = old.Spec.Taints, old.Spec.Unschedulable, old.Spec.ConfigSource
	munged.PodPreemptionPolicy = old.Spec.PodPreemptionPolicy
	if !apiequality.Semantic.DeepEqual(*munged, old.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath(""), "node updates may only change labels, taints, or capacity (or configSource, if the DynamicKubeletConfig feature gate is enabled)\n"+diff.Diff(validate.Hub(old.Spec), validate.Hub(*munged))))
	}
	return errs
}
