// Package coordination declares the kinds of the coordination.k8s.io group: Leases in v1,
// LeaseCandidates in versions that are off by default.
package coordination

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&LeaseCandidates, &Leases} }

// Leases is the coordination.k8s.io/v1 leases resource.
var Leases = apis.Resource{
	Group: "coordination.k8s.io", Version: "v1", Kind: "Lease", Plural: "leases",
	AnyFinalizer: true,
	New:          apis.New[coordinationv1.Lease], NewList: apis.NewList[coordinationv1.LeaseList],
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	ConditionalUpdate:   true,
	Validate:            apis.Check(validateLease),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Holder", "string", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(l *coordinationv1.Lease, now time.Time) []any {
		holder := ""
		if l.Spec.HolderIdentity != nil {
			holder = *l.Spec.HolderIdentity
		}
		return []any{l.Name, holder, apis.AgeOf(l, now)}
	}),
}

func validateLease(l *coordinationv1.Lease) field.ErrorList {
	var errs field.ErrorList
	path, s := field.NewPath("spec"), &l.Spec
	if d := s.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if n := s.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(path.Child("leaseTransitions"), *n, "must be greater than or equal to 0"))
	}
	if s.PreferredHolder != nil && *s.PreferredHolder != "" && (s.Strategy == nil || *s.Strategy == "") {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified if `strategy` is defined"))
	}
	return errs
}
