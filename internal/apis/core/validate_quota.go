package core

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

var quotaScopes = sets.New(corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort,
	corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
	corev1.ResourceQuotaScopeVolumeAttributesClass)

func validateQuotaResourceName(name corev1.ResourceName, at *field.Path) field.ErrorList {
	errs := validateResourceName(name, at)
	if !strings.Contains(string(name), "/") && !standardQuota.Has(name) && !isQuotaHugePages(name) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource for quota"))
	}
	return errs
}

func validateQuota(q *corev1.ResourceQuota) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateQuotaList(q.Spec.Hard, path.Child("hard"))
	errs = append(errs, validateQuotaScopes(&q.Spec, path)...)
	errs = append(errs, validateQuotaList(q.Status.Hard, field.NewPath("status", "hard"))...)
	return append(errs, validateQuotaList(q.Status.Used, field.NewPath("status", "used"))...)
}

func validateQuotaList(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range validate.SortedKeys(list) {
		at := path.Key(string(name))
		errs = append(errs, validateQuotaResourceName(name, at)...)
		errs = append(errs, validateQuantity(name, list[name], at)...)
	}
	return errs
}

func validateQuotaScopes(s *corev1.ResourceQuotaSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	scopes := sets.New[corev1.ResourceQuotaScope]()
	at := path.Child("scopes")
	for _, scope := range s.Scopes {
		if !quotaScopes.Has(scope) {
			errs = append(errs, field.Invalid(at, s.Scopes, "unsupported scope"))
		}
		scopes.Insert(scope)
	}
	errs = append(errs, validateScopePairs(scopes, s.Scopes, at)...)
	if s.ScopeSelector == nil {
		return errs
	}
	at = path.Child("scopeSelector", "matchExpressions")
	selected := sets.New[corev1.ResourceQuotaScope]()
	for _, r := range s.ScopeSelector.MatchExpressions {
		errs = append(errs, validateScopeRequirement(r, at)...)
		selected.Insert(r.ScopeName)
	}
	return append(errs, validateScopePairs(selected, s.ScopeSelector, at)...)
}

func validateScopePairs(scopes sets.Set[corev1.ResourceQuotaScope], all any, at *field.Path) field.ErrorList {
	for _, pair := range [][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
	} {
		if scopes.HasAll(pair[0], pair[1]) {
			return field.ErrorList{field.Invalid(at, all, "conflicting scopes")}
		}
	}
	return nil
}

func validateScopeRequirement(r corev1.ScopedResourceSelectorRequirement, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := quotaScopes.Has(r.ScopeName)
	if !known {
		errs = append(errs, field.Invalid(at.Child("scopeName"), r.ScopeName, "unsupported scope"))
	}
	valued := r.ScopeName == corev1.ResourceQuotaScopePriorityClass || r.ScopeName == corev1.ResourceQuotaScopeVolumeAttributesClass
	if known && !valued && r.Operator != corev1.ScopeSelectorOpExists {
		errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"))
	}
	switch r.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(at.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(r.Values) != 0 {
			errs = append(errs, field.Invalid(at.Child("values"), r.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"))
		}
	default:
		errs = append(errs, field.Invalid(at.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	return errs
}

func validateQuotaUpdate(q, old *corev1.ResourceQuota) field.ErrorList {
	errs := validateQuota(q)
	is, was := sets.New(q.Spec.Scopes...), sets.New(old.Spec.Scopes...)
	if !is.Equal(was) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, "field is immutable"))
	}
	return errs
}

func validateQuotaStatusUpdate(q, _ *corev1.ResourceQuota) field.ErrorList {
	errs := validateQuotaList(q.Status.Hard, field.NewPath("status", "hard"))
	return append(errs, validateQuotaList(q.Status.Used, field.NewPath("status", "used"))...)
}

func validateLimitRange(l *corev1.LimitRange) field.ErrorList {
	var errs field.ErrorList
	types := sets.New[corev1.LimitType]()
	for i := range l.Spec.Limits {
		item, at := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, validateLimitType(string(item.Type), at.Child("type"))...)
		if types.Has(item.Type) {
			errs = append(errs, field.Duplicate(at.Child("type"), item.Type))
		}
		types.Insert(item.Type)
		errs = append(errs, validateLimitItem(item, at)...)
	}
	return errs
}

func validateLimitType(t string, at *field.Path) field.ErrorList {
	errs := validate.Invalid(at, t, validation.IsQualifiedName(t))
	if len(errs) > 0 || strings.Contains(t, "/") {
		return errs
	}
	switch corev1.LimitType(t) {
	case corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim:
		return nil
	}
	return field.ErrorList{field.Invalid(at, t, "must be a standard limit type or fully qualified")}
}

func validateLimitItem(item *corev1.LimitRangeItem, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[corev1.ResourceName]()
	check := func(child string, list corev1.ResourceList) {
		for name := range validate.Sorted(list) {
			names.Insert(name)
			path := at.Child(child).Key(string(name))
			if item.Type == corev1.LimitTypeContainer || item.Type == corev1.LimitTypePod {
				errs = append(errs, ValidateContainerResourceName(name, path)...)
			} else {
				errs = append(errs, validateResourceName(name, path)...)
			}
		}
	}
	check("max", item.Max)
	check("min", item.Min)
	if item.Type != corev1.LimitTypePod {
		check("default", item.Default)
		check("defaultRequest", item.DefaultRequest)
	} else {
		if len(item.Default) > 0 {
			errs = append(errs, field.Forbidden(at.Child("default"), "may not be specified when `type` is 'Pod'"))
		}
		if len(item.DefaultRequest) > 0 {
			errs = append(errs, field.Forbidden(at.Child("defaultRequest"), "may not be specified when `type` is 'Pod'"))
		}
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim {
		_, hasMin := item.Min[corev1.ResourceStorage]
		_, hasMax := item.Max[corev1.ResourceStorage]
		if !hasMin && !hasMax {
			errs = append(errs, field.Required(at.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
		}
	}
	check("maxLimitRequestRatio", item.MaxLimitRequestRatio)
	for _, name := range sets.List(names) {
		errs = append(errs, validateLimitOrder(item, name, at)...)
	}
	return errs
}

// validateLimitOrder wants min <= default request <= default <= max.
func validateLimitOrder(item *corev1.LimitRangeItem, name corev1.ResourceName, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	greater := func(low corev1.ResourceList, child, lowName string, high corev1.ResourceList, highName string, shown corev1.ResourceList) {
		a, hasA := low[name]
		b, hasB := high[name]
		if hasA && hasB && a.Cmp(b) > 0 {
			errs = append(errs, field.Invalid(at.Child(child).Key(string(name)), shown[name], fmt.Sprintf("%s value %s is greater than %s value %s", lowName, a.String(), highName, b.String())))
		}
	}
	greater(item.Min, "min", "min", item.Max, "max", item.Min)
	greater(item.Min, "defaultRequest", "min", item.DefaultRequest, "default request", item.DefaultRequest)
	greater(item.DefaultRequest, "defaultRequest", "default request", item.Max, "max", item.DefaultRequest)
	greater(item.DefaultRequest, "defaultRequest", "default request", item.Default, "default limit", item.DefaultRequest)
	greater(item.Min, "default", "min", item.Default, "default", item.Min)
	greater(item.Default, "default", "default", item.Max, "max", item.Max)
	if ratio, set := item.MaxLimitRequestRatio[name]; set {
		if ratio.Cmp(*resource.NewQuantity(1, resource.DecimalSI)) < 0 {
			errs = append(errs, field.Invalid(at.Child("maxLimitRequestRatio").Key(string(name)), ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String())))
		}
		errs = append(errs, validateRatio(ratio, item, name, at.Child("maxLimitRequestRatio").Key(string(name)))...)
	}
	if !mayOvercommit(name) {
		d, hasDefault := item.Default[name]
		r, hasRequest := item.DefaultRequest[name]
		if hasDefault && hasRequest && d.Cmp(r) != 0 {
			errs = append(errs, field.Invalid(at.Child("defaultRequest").Key(string(name)), r, fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", d.String(), r.String(), name)))
		}
	}
	return errs
}

// validateRatio refuses a ratio that the bounds can never reach. It counts in
// thousandths where they can be counted.
func validateRatio(ratio resource.Quantity, item *corev1.LimitRangeItem, name corev1.ResourceName, at *field.Path) field.ErrorList {
	low, hasMin := item.Min[name]
	high, hasMax := item.Max[name]
	if !hasMin || !hasMax {
		return nil
	}
	value, least, most := float64(ratio.Value()), low.Value(), high.Value()
	if ratio.Value() < resource.MaxMilliValue && least < resource.MaxMilliValue && most < resource.MaxMilliValue {
		value, least, most = float64(ratio.MilliValue())/1000, low.MilliValue(), high.MilliValue()
	}
	if limit := float64(most) / float64(least); value > limit {
		return field.ErrorList{field.Invalid(at, ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), limit))}
	}
	return nil
}
