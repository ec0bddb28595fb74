package auth

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// SubjectAccessReview says whether some user may do something.
func (a *Auth) SubjectAccessReview(ctx context.Context, _ user.Info, _, _ string, obj apis.Object) (apis.Object, error) {
	review, ok := obj.(*authorizationv1.SubjectAccessReview)
	if !ok {
		return nil, wrongKind("SubjectAccessReview", obj)
	}
	review.Status = a.review(ctx, subject(&review.Spec), review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
	return review, nil
}

// LocalSubjectAccessReview is SubjectAccessReview within the namespace of the path.
func (a *Auth) LocalSubjectAccessReview(ctx context.Context, _ user.Info, namespace, _ string, obj apis.Object) (apis.Object, error) {
	review, ok := obj.(*authorizationv1.LocalSubjectAccessReview)
	if !ok {
		return nil, wrongKind("LocalSubjectAccessReview", obj)
	}
	if attrs := review.Spec.ResourceAttributes; attrs != nil && attrs.Namespace != namespace {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %v", namespace))
	}
	review.Status = a.review(ctx, subject(&review.Spec), review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
	return review, nil
}

// SelfSubjectAccessReview says whether the caller may do something.
func (a *Auth) SelfSubjectAccessReview(ctx context.Context, u user.Info, _, _ string, obj apis.Object) (apis.Object, error) {
	review, ok := obj.(*authorizationv1.SelfSubjectAccessReview)
	if !ok {
		return nil, wrongKind("SelfSubjectAccessReview", obj)
	}
	review.Status = a.review(ctx, u, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
	return review, nil
}

// SelfSubjectRulesReview lists what the caller may do in a namespace.
func (a *Auth) SelfSubjectRulesReview(ctx context.Context, u user.Info, _, _ string, obj apis.Object) (apis.Object, error) {
	review, ok := obj.(*authorizationv1.SelfSubjectRulesReview)
	if !ok {
		return nil, wrongKind("SelfSubjectRulesReview", obj)
	}
	if review.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	resources, paths, incomplete, err := a.chain.RulesFor(ctx, u, review.Spec.Namespace)
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{},
		Incomplete: incomplete,
	}
	for _, r := range resources {
		status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: r.GetVerbs(), APIGroups: r.GetAPIGroups(), Resources: r.GetResources(), ResourceNames: r.GetResourceNames(),
		})
	}
	for _, r := range paths {
		status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: r.GetVerbs(), NonResourceURLs: r.GetNonResourceURLs(),
		})
	}
	if err != nil {
		status.EvaluationError = err.Error()
	}
	return &authorizationv1.SelfSubjectRulesReview{Status: status}, nil
}

func wrongKind(want string, obj apis.Object) error {
	return apierrors.NewBadRequest(fmt.Sprintf("not a %s: %#v", want, obj))
}

func subject(spec *authorizationv1.SubjectAccessReviewSpec) user.Info {
	extra := make(map[string][]string, len(spec.Extra))
	for k, v := range spec.Extra {
		extra[k] = v
	}
	return &user.DefaultInfo{Name: spec.User, UID: spec.UID, Groups: spec.Groups, Extra: extra}
}

func (a *Auth) review(ctx context.Context, u user.Info, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	attrs, parseErr := attributes(u, resource, path)
	decision, reason, err := a.Authorizer.Authorize(ctx, attrs)
	status := authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authorizer.DecisionAllow,
		Denied:  decision == authorizer.DecisionDeny,
		Reason:  reason,
	}
	if err := utilerrors.NewAggregate([]error{err, parseErr}); err != nil {
		status.EvaluationError = err.Error()
	}
	return status
}

// attributes are those of the request that a review describes. A selector that
// cannot be parsed limits nothing, which the error tells.
func attributes(u user.Info, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) (authorizer.AttributesRecord, error) {
	if resource == nil {
		a := authorizer.AttributesRecord{User: u}
		if path != nil {
			a.Verb, a.Path = path.Verb, path.Path
		}
		return a, nil
	}
	a := authorizer.AttributesRecord{
		User: u, ResourceRequest: true, Verb: resource.Verb, Namespace: resource.Namespace,
		APIGroup: resource.Group, APIVersion: matchAll(resource.Version), Resource: resource.Resource,
		Subresource: resource.Subresource, Name: resource.Name,
	}
	var fieldErr, labelErr error
	if s := resource.FieldSelector; s != nil {
		a.FieldSelectorRequirements, fieldErr = fieldRequirements(s)
		a.FieldSelectorParsingErr = fieldErr
	}
	if s := resource.LabelSelector; s != nil {
		a.LabelSelectorRequirements, labelErr = labelRequirements(s)
		a.LabelSelectorParsingErr = labelErr
	}
	return a, utilerrors.NewAggregate([]error{fieldErr, labelErr})
}

func matchAll(version string) string {
	if version == "" {
		return "*"
	}
	return version
}

func fieldRequirements(s *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if s.RawSelector != "" {
		parsed, err := fields.ParseSelector(s.RawSelector)
		if err != nil {
			return nil, err
		}
		return parsed.Requirements(), nil
	}
	var out fields.Requirements
	var errs []error
	for _, r := range s.Requirements {
		if len(r.Values) != 1 {
			errs = append(errs, fmt.Errorf("fieldSelectors do not support %d values", len(r.Values)))
			continue
		}
		switch r.Operator {
		case metav1.FieldSelectorOpIn:
			out = append(out, fields.Requirement{Operator: selection.Equals, Field: r.Key, Value: r.Values[0]})
		case metav1.FieldSelectorOpNotIn:
			out = append(out, fields.Requirement{Operator: selection.NotEquals, Field: r.Key, Value: r.Values[0]})
		default:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", r.Operator))
		}
	}
	return out, utilerrors.NewAggregate(errs)
}

var labelOperators = map[metav1.LabelSelectorOperator]selection.Operator{
	metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
	metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
}

func labelRequirements(s *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if s.RawSelector != "" {
		parsed, err := labels.Parse(s.RawSelector)
		if err != nil {
			return nil, err
		}
		requirements, _ := parsed.Requirements()
		return requirements, nil
	}
	var out labels.Requirements
	var errs []error
	for _, r := range s.Requirements {
		op, ok := labelOperators[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", r.Operator))
			continue
		}
		requirement, err := labels.NewRequirement(r.Key, op, r.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, *requirement)
	}
	return out, utilerrors.NewAggregate(errs)
}
