package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

const (
	whileScheduling = "requiredDuringSchedulingIgnoredDuringExecution"
	ifPossible      = "preferredDuringSchedulingIgnoredDuringExecution"
)

func validateAffinity(a *corev1.Affinity, at *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if n := a.NodeAffinity; n != nil {
		at := at.Child("nodeAffinity")
		if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			errs = append(errs, validateNodeSelector(n.RequiredDuringSchedulingIgnoredDuringExecution, at.Child(whileScheduling))...)
		}
		for i, term := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			at := at.Child(ifPossible).Index(i)
			errs = append(errs, validateWeight(term.Weight, at)...)
			errs = append(errs, validatePreference(term.Preference, at.Child("preference"))...)
		}
	}
	if p := a.PodAffinity; p != nil {
		errs = append(errs, validatePodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAffinity"))...)
	}
	if p := a.PodAntiAffinity; p != nil {
		errs = append(errs, validatePodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAntiAffinity"))...)
	}
	return errs
}

func validateWeight(w int32, at *field.Path) field.ErrorList {
	if w <= 0 || w > 100 {
		return field.ErrorList{field.Invalid(at.Child("weight"), w, "must be in the range 1-100")}
	}
	return nil
}

// ValidateNodeSelector checks which nodes a volume or a device is on.
func ValidateNodeSelector(s *corev1.NodeSelector, at *field.Path) field.ErrorList {
	return validateNodeSelector(s, at)
}

func validateNodeSelector(s *corev1.NodeSelector, at *field.Path) field.ErrorList {
	terms := at.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		return field.ErrorList{field.Required(terms, "must have at least one node selector term")}
	}
	var errs field.ErrorList
	for i, term := range s.NodeSelectorTerms {
		errs = append(errs, validateNodeTerm(term, terms.Index(i))...)
	}
	return errs
}

// validatePreference lets values be what no label can be: that only warns.
func validatePreference(t corev1.NodeSelectorTerm, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, r := range t.MatchExpressions {
		errs = append(errs, validateNodeOperator(r, at.Child("matchExpressions").Index(i))...)
	}
	for i, r := range t.MatchFields {
		errs = append(errs, validateFieldRequirement(r, at.Child("matchFields").Index(i))...)
	}
	return errs
}

func validateNodeTerm(t corev1.NodeSelectorTerm, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, r := range t.MatchExpressions {
		errs = append(errs, validateNodeRequirement(r, at.Child("matchExpressions").Index(i))...)
	}
	for i, r := range t.MatchFields {
		errs = append(errs, validateFieldRequirement(r, at.Child("matchFields").Index(i))...)
	}
	return errs
}

func validateNodeRequirement(r corev1.NodeSelectorRequirement, at *field.Path) field.ErrorList {
	errs := validateNodeOperator(r, at)
	for i, v := range r.Values {
		errs = append(errs, validate.Invalid(at.Child("values").Index(i), v, validation.IsValidLabelValue(v))...)
	}
	return errs
}

// validateNodeOperator checks a requirement but for what its values look like.
func validateNodeOperator(r corev1.NodeSelectorRequirement, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	values := at.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(values, "must be specified when `operator` is 'In' or 'NotIn'"))
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs, field.Forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'"))
		}
	default:
		errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	return append(errs, validate.LabelName(at.Child("key"), r.Key)...)
}

func validateFieldRequirement(r corev1.NodeSelectorRequirement, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			errs = append(errs, field.Required(at.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
		}
	default:
		errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	if r.Key != metav1.ObjectNameField {
		return append(errs, field.Invalid(at.Child("key"), r.Key, "not a valid field selector key"))
	}
	for i, v := range r.Values {
		errs = append(errs, validate.NodeName(at.Child("values").Index(i), v)...)
	}
	return errs
}

func validatePodTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range required {
		errs = append(errs, validatePodTerm(t, at.Child(whileScheduling).Index(i))...)
	}
	for i, t := range preferred {
		at := at.Child(ifPossible).Index(i)
		errs = append(errs, validateWeight(t.Weight, at)...)
		errs = append(errs, validatePodTerm(t.PodAffinityTerm, at.Child("podAffinityTerm"))...)
	}
	return errs
}

func validatePodTerm(t corev1.PodAffinityTerm, at *field.Path) field.ErrorList {
	errs := validate.Selector(at.Child("labelSelector"), t.LabelSelector)
	errs = append(errs, validate.Selector(at.Child("namespaceSelector"), t.NamespaceSelector)...)
	for _, ns := range t.Namespaces {
		errs = append(errs, validate.Label(at.Child("namespace"), ns)...)
	}
	errs = append(errs, validateLabelKeys(t.MatchLabelKeys, t.LabelSelector, at.Child("matchLabelKeys"))...)
	errs = append(errs, validateLabelKeys(t.MismatchLabelKeys, t.LabelSelector, at.Child("mismatchLabelKeys"))...)
	errs = append(errs, validateMergedKeys(t.MatchLabelKeys, t.LabelSelector, at)...)
	for i, key := range t.MatchLabelKeys {
		if slices.Contains(t.MismatchLabelKeys, key) {
			errs = append(errs, field.Invalid(at.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	if t.TopologyKey == "" {
		errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
	}
	return append(errs, validate.LabelName(at.Child("topologyKey"), t.TopologyKey)...)
}

// validateMergedKeys refuses a key that the selector has beside what was written
// into it for that key.
func validateMergedKeys(keys []string, selector *metav1.LabelSelector, at *field.Path) field.ErrorList {
	if selector == nil {
		return nil
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for key := range selector.MatchLabels {
		seen[key] = true
	}
	for _, r := range selector.MatchExpressions {
		if i := slices.Index(keys, r.Key); i >= 0 && seen[r.Key] {
			errs = append(errs, field.Invalid(at.Index(i), r.Key, "exists in both matchLabelKeys and labelSelector"))
		}
		seen[r.Key] = true
	}
	return errs
}

func validateLabelKeys(keys []string, selector *metav1.LabelSelector, at *field.Path) field.ErrorList {
	if len(keys) == 0 {
		return nil
	}
	if selector == nil {
		return field.ErrorList{field.Forbidden(at, "must not be specified when labelSelector is not set")}
	}
	var errs field.ErrorList
	for i, key := range keys {
		errs = append(errs, validate.LabelName(at.Index(i), key)...)
	}
	return errs
}

// ValidateTolerations checks tolerations of pods and runtime classes.
func ValidateTolerations(at *field.Path, tolerations []corev1.Toleration) field.ErrorList {
	var errs field.ErrorList
	for i, t := range tolerations {
		errs = append(errs, validateToleration(t, at.Index(i))...)
	}
	return errs
}

func validateToleration(t corev1.Toleration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	operator := at.Child("operator")
	if t.Key != "" {
		errs = append(errs, validate.LabelName(at.Child("key"), t.Key)...)
	} else if t.Operator != corev1.TolerationOpExists {
		errs = append(errs, field.Invalid(operator, t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		errs = append(errs, field.Invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
	}
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		if messages := validation.IsValidLabelValue(t.Value); len(messages) > 0 {
			errs = append(errs, field.Invalid(operator, t.Value, strings.Join(messages, ";")))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(operator, t, "value must be empty when `operator` is 'Exists'"))
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, "must be a valid integer"))
		}
	default:
		errs = append(errs, field.NotSupported(operator, t.Operator, []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
	}
	if t.Effect != "" {
		errs = append(errs, validateTaintEffect(t.Effect, at.Child("effect"))...)
	}
	return errs
}

func validateTaintEffect(e corev1.TaintEffect, at *field.Path) field.ErrorList {
	known := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	if !slices.Contains(known, e) {
		return field.ErrorList{field.NotSupported(at, e, known)}
	}
	return nil
}

func validateSpread(constraints []corev1.TopologySpreadConstraint, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	pair := func(c *corev1.TopologySpreadConstraint) string {
		return fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)
	}
	for i, c := range constraints {
		at := at.Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
		}
		errs = append(errs, validate.OneOf(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)...)
		for j := range constraints[i+1:] {
			if pair(&constraints[i+1+j]) == pair(&c) {
				errs = append(errs, field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"), pair(&c)))
			}
		}
		if d := c.MinDomains; d != nil {
			if *d <= 0 {
				errs = append(errs, field.Invalid(at.Child("minDomains"), *d, "must be greater than zero"))
			}
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				errs = append(errs, field.Invalid(at.Child("minDomains"), *d, fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule, c.WhenUnsatisfiable)))
			}
		}
		for name, policy := range validate.Sorted(map[string]*corev1.NodeInclusionPolicy{"nodeAffinityPolicy": c.NodeAffinityPolicy, "nodeTaintsPolicy": c.NodeTaintsPolicy}) {
			if policy != nil {
				errs = append(errs, validate.OneOf(at.Child(name), *policy, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)...)
			}
		}
		errs = append(errs, validateLabelKeys(c.MatchLabelKeys, c.LabelSelector, at.Child("matchLabelKeys"))...)
		errs = append(errs, validateMergedKeys(c.MatchLabelKeys, c.LabelSelector, at)...)
		errs = append(errs, validate.Selector(at.Child("labelSelector"), c.LabelSelector)...)
	}
	return errs
}

// ValidateTopologySelectorTerm checks where a storage class may provision.
func ValidateTopologySelectorTerm(t corev1.TopologySelectorTerm, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	keys := sets.New[string]()
	for i, e := range t.MatchLabelExpressions {
		at := at.Child("matchLabelExpressions").Index(i)
		values := sets.New[string]()
		if len(e.Values) == 0 {
			errs = append(errs, field.Required(at.Child("values"), ""))
		}
		for j, v := range e.Values {
			if values.Has(v) {
				errs = append(errs, field.Duplicate(at.Child("values").Index(j), v))
			}
			values.Insert(v)
		}
		errs = append(errs, validate.LabelName(at.Child("key"), e.Key)...)
		if keys.Has(e.Key) {
			errs = append(errs, field.Duplicate(at.Child("key"), e.Key))
		}
		keys.Insert(e.Key)
	}
	return errs
}
