// Package policy declares the kinds of the policy group, v1. Evictions are a
// subresource of pods.
package policy

import (
	"time"

	policyv1 "k8s.io/api/policy/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&PodDisruptionBudgets} }

// PodDisruptionBudgets is the policy/v1 poddisruptionbudgets resource.
var PodDisruptionBudgets = apis.Resource{
	Group: "policy", Version: "v1", Kind: "PodDisruptionBudget", Plural: "poddisruptionbudgets", Short: []string{"pdb"},
	AnyFinalizer: true,
	New:          apis.New[policyv1.PodDisruptionBudget], NewList: apis.NewList[policyv1.PodDisruptionBudgetList],
	ConditionalUpdate: true,
	Subresources: []apis.Subresource{
		apis.Writable("status", func(b, old *policyv1.PodDisruptionBudget) { b.Spec = old.Spec }, validateStatusUpdate),
	},
	PrepareCreate: apis.On(func(b *policyv1.PodDisruptionBudget) { b.Status = policyv1.PodDisruptionBudgetStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(b, old *policyv1.PodDisruptionBudget) { b.Status = old.Status }),
	ValidateName:  pathvalidation.ValidatePathSegmentName,
	Validate:      apis.Check(validateBudget),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Min Available", "string", "The minimum number of pods that must be available."),
		apis.Column("Max Unavailable", "string", "The maximum number of pods that may be unavailable."),
		apis.Column("Allowed Disruptions", "integer", "Calculated number of pods that may be disrupted at this time."),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(b *policyv1.PodDisruptionBudget, now time.Time) []any {
		return []any{b.Name, orNA(b.Spec.MinAvailable), orNA(b.Spec.MaxUnavailable), int64(b.Status.DisruptionsAllowed), apis.AgeOf(b, now)}
	}),
}

func orNA(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

func validateBudget(b *policyv1.PodDisruptionBudget) field.ErrorList {
	var errs field.ErrorList
	path, s := field.NewPath("spec"), &b.Spec
	if s.MinAvailable != nil && s.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(path, b.Spec, "minAvailable and maxUnavailable cannot be both set"))
	}
	check := func(name string, v *intstr.IntOrString) {
		if v != nil {
			errs = append(errs, validate.IntOrPercent(path.Child(name), *v)...)
			errs = append(errs, validate.AtMost100Percent(path.Child(name), *v)...)
		}
	}
	check("minAvailable", s.MinAvailable)
	check("maxUnavailable", s.MaxUnavailable)
	errs = append(errs, validate.Selector(path.Child("selector"), s.Selector)...)
	if p := s.UnhealthyPodEvictionPolicy; p != nil {
		errs = append(errs, validate.OneOf(path.Child("unhealthyPodEvictionPolicy"), *p, policyv1.AlwaysAllow, policyv1.IfHealthyBudget)...)
	}
	return errs
}

func validateStatusUpdate(b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
	path, s := field.NewPath("status"), &b.Status
	errs := metavalidation.ValidateConditions(s.Conditions, path.Child("conditions"))
	errs = append(errs, validate.NonNegative(path.Child("disruptionsAllowed"), s.DisruptionsAllowed)...)
	errs = append(errs, validate.NonNegative(path.Child("currentHealthy"), s.CurrentHealthy)...)
	errs = append(errs, validate.NonNegative(path.Child("desiredHealthy"), s.DesiredHealthy)...)
	return append(errs, validate.NonNegative(path.Child("expectedPods"), s.ExpectedPods)...)
}
