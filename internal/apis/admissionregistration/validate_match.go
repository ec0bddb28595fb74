package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

type operation = admissionregistrationv1.OperationType

var (
	allOperations = []operation{
		admissionregistrationv1.OperationAll, admissionregistrationv1.Connect, admissionregistrationv1.Create,
		admissionregistrationv1.Delete, admissionregistrationv1.Update,
	}
	// mutable leaves DELETE out: there is no object to change.
	mutable = slices.DeleteFunc(slices.Clone(allOperations), func(o operation) bool { return o == admissionregistrationv1.Delete })
)

func validateMatchResources(at *field.Path, m *admissionregistrationv1.MatchResources) field.ErrorList {
	if m == nil {
		return nil
	}
	errs := requiredOneOf(at.Child("matchPolicy"), m.MatchPolicy, admissionregistrationv1.Exact, admissionregistrationv1.Equivalent)
	if m.NamespaceSelector == nil {
		errs = append(errs, field.Required(at.Child("namespaceSelector"), ""))
	} else {
		errs = append(errs, validate.Selector(at.Child("namespaceSelector"), m.NamespaceSelector)...)
	}
	if m.ObjectSelector == nil {
		errs = append(errs, field.Required(at.Child("objectSelector"), ""))
	} else {
		errs = append(errs, validate.Selector(at.Child("objectSelector"), m.ObjectSelector)...)
	}
	for i := range m.ResourceRules {
		errs = append(errs, validateNamedRule(at.Child("resourceRules").Index(i), &m.ResourceRules[i])...)
	}
	for i := range m.ExcludeResourceRules {
		errs = append(errs, validateNamedRule(at.Child("excludeResourceRules").Index(i), &m.ExcludeResourceRules[i])...)
	}
	return errs
}

// requiredOneOf refuses an absent value and one outside allowed.
func requiredOneOf[T ~string](at *field.Path, value *T, allowed ...T) field.ErrorList {
	if value == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	return validate.OneOf(at, *value, allowed...)
}

// optionalOneOf refuses a value outside allowed where there is one.
func optionalOneOf[T ~string](at *field.Path, value *T, allowed ...T) field.ErrorList {
	if value == nil {
		return nil
	}
	return validate.OneOf(at, *value, allowed...)
}

// validateMutableOperations refuses rules about operations that change no object.
func validateMutableOperations(at *field.Path, rules []admissionregistrationv1.NamedRuleWithOperations) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		for _, op := range rules[i].Operations {
			errs = append(errs, validate.OneOf(at.Child("operations"), op, mutable...)...)
		}
	}
	return errs
}

func validateNamedRule(at *field.Path, r *admissionregistrationv1.NamedRuleWithOperations) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, name := range r.ResourceNames {
		here := at.Child("resourceNames").Index(i)
		errs = append(errs, validate.Invalid(here, name, path.ValidatePathSegmentName(name, false))...)
		if seen.Has(name) {
			errs = append(errs, field.Duplicate(here, name))
		}
		seen.Insert(name)
	}
	return append(errs, validateRule(at, &r.RuleWithOperations)...)
}

func validateRule(at *field.Path, r *admissionregistrationv1.RuleWithOperations) field.ErrorList {
	errs := validateWildcard(at.Child("operations"), r.Operations, "operations")
	for i, op := range r.Operations {
		errs = append(errs, validate.OneOf(at.Child("operations").Index(i), op, allOperations...)...)
	}
	errs = append(errs, validateWildcard(at.Child("apiGroups"), r.APIGroups, "API groups")...)
	errs = append(errs, validateWildcard(at.Child("apiVersions"), r.APIVersions, "API versions")...)
	for i, v := range r.APIVersions {
		if v == "" {
			errs = append(errs, field.Required(at.Child("apiVersions").Index(i), ""))
		}
	}
	errs = append(errs, validateResources(at.Child("resources"), r.Resources)...)
	return append(errs, optionalOneOf(at.Child("scope"), r.Scope,
		admissionregistrationv1.ClusterScope, admissionregistrationv1.NamespacedScope, admissionregistrationv1.AllScopes)...)
}

// validateWildcard wants a list that is not empty and where * stands alone.
func validateWildcard[T ~string](at *field.Path, values []T, what string) field.ErrorList {
	switch {
	case len(values) == 0:
		return field.ErrorList{field.Required(at, "")}
	case len(values) > 1 && slices.Contains(values, "*"):
		return field.ErrorList{field.Invalid(at, values, "if '*' is present, must not specify other "+what)}
	}
	return nil
}

// validateResources checks resources and subresources: no entry may be covered
// by a wildcard before it.
func validateResources(at *field.Path, resources []string) field.ErrorList {
	var errs field.ErrorList
	if len(resources) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	wholeResource, wholeSubresource := sets.New[string](), sets.New[string]() // x/* and */x
	plain := false
	for i, entry := range resources {
		if entry == "" {
			errs = append(errs, field.Required(at.Index(i), ""))
			continue
		}
		resource, sub, nested := strings.Cut(entry, "/")
		if !nested {
			plain = entry != "*"
			continue
		}
		if wholeResource.Has(resource) {
			errs = append(errs, field.Invalid(at.Index(i), entry, fmt.Sprintf("if '%s/*' is present, must not specify %s", resource, entry)))
		}
		if wholeSubresource.Has(sub) {
			errs = append(errs, field.Invalid(at.Index(i), entry, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, entry)))
		}
		if sub == "*" {
			wholeResource.Insert(resource)
		}
		if resource == "*" {
			wholeSubresource.Insert(sub)
		}
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs = append(errs, field.Invalid(at, resources, "if '*/*' is present, must not specify other resources"))
	}
	if plain && slices.Contains(resources, "*") {
		errs = append(errs, field.Invalid(at, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}
