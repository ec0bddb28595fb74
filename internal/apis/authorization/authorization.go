// Package authorization declares the review kinds of authorization.k8s.io, v1.
// They are answered, never stored.
package authorization

import (
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
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
		return append(validateSpec(&r.Spec), validateMeta(r.ObjectMeta)...)
	}),
}

// SelfSubjectAccessReviews is the authorization.k8s.io/v1 selfsubjectaccessreviews resource.
var SelfSubjectAccessReviews = apis.Resource{
	Group: "authorization.k8s.io", Version: "v1", Kind: "SelfSubjectAccessReview", Plural: "selfsubjectaccessreviews", Scope: apis.Cluster,
	New: apis.New[authorizationv1.SelfSubjectAccessReview], Verbs: []string{"create"}, NoGeneration: true,
	Validate: apis.Check(func(r *authorizationv1.SelfSubjectAccessReview) field.ErrorList {
		errs := validateAttributes(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
		return append(errs, validateMeta(r.ObjectMeta)...)
	}),
}

// LocalSubjectAccessReviews is the authorization.k8s.io/v1 localsubjectaccessreviews resource.
var LocalSubjectAccessReviews = apis.Resource{
	Group: "authorization.k8s.io", Version: "v1", Kind: "LocalSubjectAccessReview", Plural: "localsubjectaccessreviews",
	New: apis.New[authorizationv1.LocalSubjectAccessReview], Verbs: []string{"create"}, NoGeneration: true,
	Validate: apis.Check(func(r *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
		errs, path := validateSpec(&r.Spec), field.NewPath("spec")
		meta := r.ObjectMeta
		meta.Namespace = ""
		if !isEmpty(meta) {
			errs = append(errs, field.Invalid(field.NewPath("metadata"), r.ObjectMeta, "must be empty except for namespace"))
		}
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

// validateMeta refuses names and labels of what is never stored.
func validateMeta(meta metav1.ObjectMeta) field.ErrorList {
	if isEmpty(meta) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), meta, "must be empty")}
}

// isEmpty says that nobody has written any metadata; the server has noted who asks.
func isEmpty(meta metav1.ObjectMeta) bool {
	meta.ManagedFields = nil
	return apiequality.Semantic.DeepEqual(meta, metav1.ObjectMeta{})
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
		return append(field.ErrorList{field.Invalid(path, other, "exactly one of nonResourceAttributes or resourceAttributes must be specified")},
			validateSelectors(resource, path.Child("resourceAttributes"))...)
	case resource == nil && other == nil:
		return field.ErrorList{field.Invalid(path, other, "exactly one of nonResourceAttributes or resourceAttributes must be specified")}
	}
	return validateSelectors(resource, path.Child("resourceAttributes"))
}

// validateSelectors lets requirements have operators that this server does not
// know: newer clients ask, too.
func validateSelectors(a *authorizationv1.ResourceAttributes, path *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if s := a.FieldSelector; s != nil {
		at := path.Child("fieldSelector")
		errs = append(errs, validateForm(s.RawSelector, len(s.Requirements), at)...)
		known := metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i, r := range s.Requirements {
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(r, known, at.Child("requirements").Index(i))...)
		}
	}
	if s := a.LabelSelector; s != nil {
		at := path.Child("labelSelector")
		errs = append(errs, validateForm(s.RawSelector, len(s.Requirements), at)...)
		known := metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
		for i, r := range s.Requirements {
			errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(r, known, at.Child("requirements").Index(i))...)
		}
	}
	return errs
}

// validateForm wants a selector as text or as requirements.
func validateForm(raw string, requirements int, path *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(path.Child("rawSelector"), raw, "may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(path.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", path))}
	}
	return nil
}
