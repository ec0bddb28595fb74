// Package authorization declares the review kinds of authorization.k8s.io, v1.
// They are answered, never stored.
package authorization

import (
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{&LocalSubjectAccessReviews, &SelfSubjectAccessReviews, &SelfSubjectRulesReviews, &SubjectAccessReviews}
}

// SubjectAccessReviews is the authorization.k8s.io/v1 subjectaccessreviews resource.
var SubjectAccessReviews = apis.Resource{
	Group: "authorization.k8s.io", Version: "v1", Kind: "SubjectAccessReview", Plural: "subjectaccessreviews", Scope: apis.Cluster,
	New: apis.New[authorizationv1.SubjectAccessReview], Verbs: []string{"create"}, NoGeneration: true,
	Validate: apis.Check(func(r *authorizationv1.SubjectAccessReview) field.ErrorList {
		return validateSpec(&r.Spec)
	}),
}

// SelfSubjectAccessReviews is the authorization.k8s.io/v1 selfsubjectaccessreviews resource.
var SelfSubjectAccessReviews = apis.Resource{
	Group: "authorization.k8s.io", Version: "v1", Kind: "SelfSubjectAccessReview", Plural: "selfsubjectaccessreviews", Scope: apis.Cluster,
	New: apis.New[authorizationv1.SelfSubjectAccessReview], Verbs: []string{"create"}, NoGeneration: true,
	Validate: apis.Check(func(r *authorizationv1.SelfSubjectAccessReview) field.ErrorList {
		return validateAttributes(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
	}),
}

// LocalSubjectAccessReviews is the authorization.k8s.io/v1 localsubjectaccessreviews resource.
var LocalSubjectAccessReviews = apis.Resource{
	Group: "authorization.k8s.io", Version: "v1", Kind: "LocalSubjectAccessReview", Plural: "localsubjectaccessreviews",
	New: apis.New[authorizationv1.LocalSubjectAccessReview], Verbs: []string{"create"}, NoGeneration: true,
	Validate: apis.Check(func(r *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
		errs, path := validateSpec(&r.Spec), field.NewPath("spec")
		if a := r.Spec.ResourceAttributes; a != nil && a.Namespace != r.Namespace {
			errs = append(errs, field.Invalid(path.Child("resourceAttributes", "namespace"), a.Namespace, "must match metadata.namespace"))
		}
		if r.Spec.NonResourceAttributes != nil {
			errs = append(errs, field.Invalid(path.Child("nonResourceAttributes"), r.Spec.NonResourceAttributes, "disallowed on this kind of request"))
		}
		return errs
	}),
}

// SelfSubjectRulesReviews is the authorization.k8s.io/v1 selfsubjectrulesreviews resource.
var SelfSubjectRulesReviews = apis.Resource{
	Group: "authorization.k8s.io", Version: "v1", Kind: "SelfSubjectRulesReview", Plural: "selfsubjectrulesreviews", Scope: apis.Cluster,
	New: apis.New[authorizationv1.SelfSubjectRulesReview], Verbs: []string{"create"}, NoGeneration: true,
}

func validateSpec(s *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAttributes(s.ResourceAttributes, s.NonResourceAttributes)
	if s.User == "" && len(s.Groups) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "user"), s.User, "at least one of user or group must be specified"))
	}
	return errs
}

func validateAttributes(resource *authorizationv1.ResourceAttributes, other *authorizationv1.NonResourceAttributes) field.ErrorList {
	path := field.NewPath("spec")
	switch {
	case resource != nil && other != nil:
		return field.ErrorList{field.Invalid(path.Child("nonResourceAttributes"), other, "cannot be specified in combination with resourceAttributes")}
	case resource == nil && other == nil:
		return field.ErrorList{field.Invalid(path.Child("resourceAttributes"), other, "exactly one of nonResourceAttributes or resourceAttributes must be specified")}
	}
	return validateSelectors(resource, path.Child("resourceAttributes"))
}

func validateSelectors(a *authorizationv1.ResourceAttributes, path *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if s := a.FieldSelector; s != nil {
		at := path.Child("fieldSelector")
		switch {
		case s.RawSelector != "" && len(s.Requirements) > 0:
			errs = append(errs, field.Invalid(at.Child("rawSelector"), s.RawSelector, "may not specified at the same time as requirements"))
		case s.RawSelector == "" && len(s.Requirements) == 0:
			errs = append(errs, field.Required(at.Child("requirements"), "when fieldSelector is specified, requirements or rawSelector is required"))
		}
	}
	if s := a.LabelSelector; s != nil {
		at := path.Child("labelSelector")
		switch {
		case s.RawSelector != "" && len(s.Requirements) > 0:
			errs = append(errs, field.Invalid(at.Child("rawSelector"), s.RawSelector, "may not specified at the same time as requirements"))
		case s.RawSelector == "" && len(s.Requirements) == 0:
			errs = append(errs, field.Required(at.Child("requirements"), "when labelSelector is specified, requirements or rawSelector is required"))
		}
	}
	return errs
}
