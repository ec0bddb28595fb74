package networking

import (
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

const maxController = 250

// IngressClasses is the networking.k8s.io/v1 ingressclasses resource.
var IngressClasses = apis.Resource{
	Group: "networking.k8s.io", Version: "v1", Kind: "IngressClass", Plural: "ingressclasses", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[networkingv1.IngressClass], NewList: apis.NewList[networkingv1.IngressClassList],
	Default: apis.On(func(c *networkingv1.IngressClass) {
		if p := c.Spec.Parameters; p != nil && p.Scope == nil {
			p.Scope = new(networkingv1.IngressClassParametersReferenceScopeCluster)
		}
	}),
	Validate: apis.Check(validateIngressClass),
	ValidateUpdate: apis.CheckUpdate(func(c, old *networkingv1.IngressClass) field.ErrorList {
		return append(validate.Immutable(field.NewPath("spec", "controller"), c.Spec.Controller, old.Spec.Controller), validateIngressClass(c)...)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Controller", "string", "Controller that is responsible for handling this class"),
		apis.Column("Parameters", "string", "A reference to a resource with additional parameters"),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(c *networkingv1.IngressClass, now time.Time) []any {
		parameters := "<none>"
		if p := c.Spec.Parameters; p != nil {
			parameters = p.Kind
			if p.APIGroup != nil {
				parameters += "." + *p.APIGroup
			}
			parameters += "/" + p.Name
		}
		return []any{c.Name, c.Spec.Controller, parameters, apis.AgeOf(c, now)}
	}),
}

func validateIngressClass(c *networkingv1.IngressClass) field.ErrorList {
	at := field.NewPath("spec")
	var errs field.ErrorList
	if len(c.Spec.Controller) > maxController {
		errs = append(errs, field.TooLong(at.Child("controller"), "", maxController))
	}
	errs = append(errs, validation.IsDomainPrefixedPath(at.Child("controller"), c.Spec.Controller)...)
	if c.Spec.Parameters != nil {
		errs = append(errs, validateParameters(c.Spec.Parameters, at.Child("parameters"))...)
	}
	return errs
}

func validateParameters(p *networkingv1.IngressClassParametersReference, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.APIGroup != nil {
		errs = append(errs, validate.Subdomain(at.Child("apiGroup"), *p.APIGroup)...)
	}
	segment := func(child, value string) {
		if value == "" {
			errs = append(errs, field.Required(at.Child(child), child+" is required"))
		} else {
			errs = append(errs, validate.Invalid(at.Child(child), value, pathSegment(strings.ToLower(value)))...)
		}
	}
	segment("kind", p.Kind)
	segment("name", p.Name)
	if p.Scope == nil {
		return append(errs, field.Required(at.Child("scope"), ""))
	}
	switch *p.Scope {
	case networkingv1.IngressClassParametersReferenceScopeNamespace:
		if p.Namespace == nil {
			errs = append(errs, field.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
		} else {
			errs = append(errs, validate.Label(at.Child("namespace"), *p.Namespace)...)
		}
	case networkingv1.IngressClassParametersReferenceScopeCluster:
		if p.Namespace != nil {
			errs = append(errs, field.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
		}
	default:
		errs = append(errs, validate.OneOf(at.Child("scope"), *p.Scope,
			networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace)...)
	}
	return errs
}
