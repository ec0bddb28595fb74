package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/jsonpath"

	"proa/internal/apis/validate"
)

func validateValidatingBinding(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
	s, at := &b.Spec, field.NewPath("spec")
	errs := validateBindingOf(at, s.PolicyName, s.ParamRef)
	errs = append(errs, validateMatchResources(at.Child("matchResources"), s.MatchResources)...)
	return append(errs, validateActions(at.Child("validationActions"), s.ValidationActions)...)
}

func validateMutatingBinding(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) field.ErrorList {
	s, at := &b.Spec, field.NewPath("spec")
	errs := validateBindingOf(at, s.PolicyName, s.ParamRef)
	errs = append(errs, validateMatchResources(at.Child("matchResources"), s.MatchResources)...)
	if s.MatchResources != nil {
		errs = append(errs, validateMutableOperations(at.Child("matchResources", "resourceRules"), s.MatchResources.ResourceRules)...)
	}
	return errs
}

func validateBindingOf(at *field.Path, policy string, ref *admissionregistrationv1.ParamRef) field.ErrorList {
	var errs field.ErrorList
	if policy == "" {
		errs = append(errs, field.Required(at.Child("policyName"), ""))
	} else {
		errs = append(errs, validate.Invalid(at.Child("policyName"), policy, apivalidation.NameIsDNSSubdomain(policy, false))...)
	}
	if ref != nil {
		errs = append(errs, validateParamRef(at.Child("paramRef"), ref)...)
	}
	return errs
}

func validateParamRef(at *field.Path, r *admissionregistrationv1.ParamRef) field.ErrorList {
	const exclusive = "name and selector are mutually exclusive"
	var errs field.ErrorList
	if r.Name != "" {
		errs = append(errs, validate.Invalid(at.Child("name"), r.Name, path.ValidatePathSegmentName(r.Name, false))...)
		if r.Selector != nil {
			errs = append(errs, field.Forbidden(at.Child("name"), exclusive))
		}
	}
	if r.Selector != nil {
		errs = append(errs, validate.Selector(at.Child("selector"), r.Selector)...)
		if r.Name != "" {
			errs = append(errs, field.Forbidden(at.Child("selector"), exclusive))
		}
	}
	if r.Name == "" && r.Selector == nil {
		errs = append(errs, field.Required(at, "one of name or selector must be specified"))
	}
	if a := r.ParameterNotFoundAction; a == nil || *a == "" {
		return append(errs, field.Required(at.Child("parameterNotFoundAction"), ""))
	}
	return append(errs, validate.Listed(at.Child("parameterNotFoundAction"), *r.ParameterNotFoundAction,
		admissionregistrationv1.DenyAction, admissionregistrationv1.AllowAction)...)
}

func validateActions(at *field.Path, actions []admissionregistrationv1.ValidationAction) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[admissionregistrationv1.ValidationAction]()
	for i, a := range actions {
		errs = append(errs, validate.OneOf(at.Index(i), a, admissionregistrationv1.Deny, admissionregistrationv1.Warn, admissionregistrationv1.Audit)...)
		if seen.Has(a) {
			errs = append(errs, field.Duplicate(at.Index(i), a))
		}
		seen.Insert(a)
	}
	if slices.Contains(actions, admissionregistrationv1.Deny) && slices.Contains(actions, admissionregistrationv1.Warn) {
		errs = append(errs, field.Invalid(at, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	if len(actions) == 0 {
		errs = append(errs, field.Required(at, "at least one validation action is required"))
	}
	return errs
}

func validatePolicyStatus(p, _ *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
	at, s := field.NewPath("status"), &p.Status
	var errs field.ErrorList
	if s.TypeChecking != nil {
		for i, w := range s.TypeChecking.ExpressionWarnings {
			here := at.Child("typeChecking", "expressionWarnings").Index(i)
			if w.Warning == "" {
				errs = append(errs, field.Required(here.Child("warning"), ""))
			}
			errs = append(errs, validateFieldRef(here.Child("fieldRef"), strings.TrimSpace(w.FieldRef))...)
		}
	}
	return append(errs, metavalidation.ValidateConditions(s.Conditions, at.Child("conditions"))...)
}

func validateFieldRef(at *field.Path, ref string) field.ErrorList {
	if ref == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if err := jsonpath.New("spec").Parse(fmt.Sprintf("{%s}", ref)); err != nil {
		return field.ErrorList{field.Invalid(at, ref, fmt.Sprintf("invalid JSONPath: %v", err))}
	}
	return nil
}
