// Package lifecycle declares the kinds of the lifecycle.k8s.io group, v1alpha1
// (KEP-4563): graceful evictions that several parties ask for and respond to.
package lifecycle

import (
	"strings"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

const gate = "EvictionRequestAPI"

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&EvictionRequests, &Evictions} }

// EvictionRequests is the lifecycle.k8s.io/v1alpha1 evictionrequests resource.
var EvictionRequests = apis.Resource{
	Group: "lifecycle.k8s.io", Version: "v1alpha1", Kind: "EvictionRequest", Plural: "evictionrequests", Gate: gate,
	New: apis.New[lifecyclev1alpha1.EvictionRequest], NewList: apis.NewList[lifecyclev1alpha1.EvictionRequestList],
	Subresources: []apis.Subresource{
		apis.Status(func(r, old *lifecyclev1alpha1.EvictionRequest) { r.Spec = old.Spec }, func(r, _ *lifecyclev1alpha1.EvictionRequest) field.ErrorList {
			return metav1validation.ValidateConditions(r.Status.Conditions, field.NewPath("status", "conditions"))
		}),
	},
	PrepareCreate: apis.On(func(r *lifecyclev1alpha1.EvictionRequest) { r.Status = lifecyclev1alpha1.EvictionRequestStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(r, old *lifecyclev1alpha1.EvictionRequest) { r.Status = old.Status }),
	Validate:      apis.Check(validateRequest),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Requester", "string", lifecyclev1alpha1.EvictionRequestSpec{}.SwaggerDoc()["requester"]),
		apis.Column("Intent", "string", lifecyclev1alpha1.EvictionRequestSpec{}.SwaggerDoc()["intent"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(r *lifecyclev1alpha1.EvictionRequest, now time.Time) []any {
		return []any{r.Name, r.Spec.Requester, string(r.Spec.Intent), apis.AgeOf(r, now)}
	}),
}

// validateRequest keeps the project's own domains for the project.
func validateRequest(r *lifecyclev1alpha1.EvictionRequest) field.ErrorList {
	domain, _, prefixed := strings.Cut(r.Spec.Requester, "/")
	for _, reserved := range []string{"k8s.io", "kubernetes.io"} {
		if prefixed && (domain == reserved || strings.HasSuffix(domain, "."+reserved)) {
			return field.ErrorList{field.Invalid(field.NewPath("spec", "requester"), r.Spec.Requester, "domain names *.k8s.io, *.kubernetes.io are reserved")}
		}
	}
	return nil
}

// Evictions is the lifecycle.k8s.io/v1alpha1 evictions resource.
var Evictions = apis.Resource{
	Group: "lifecycle.k8s.io", Version: "v1alpha1", Kind: "Eviction", Plural: "evictions", Gate: gate,
	New: apis.New[lifecyclev1alpha1.Eviction], NewList: apis.NewList[lifecyclev1alpha1.EvictionList],
	Subresources: []apis.Subresource{
		apis.Status(func(e, old *lifecyclev1alpha1.Eviction) { e.Spec = old.Spec }, func(e, _ *lifecyclev1alpha1.Eviction) field.ErrorList {
			return metav1validation.ValidateConditions(e.Status.Conditions, field.NewPath("status", "conditions"))
		}),
	},
	PrepareCreate: apis.On(func(e *lifecyclev1alpha1.Eviction) { e.Status = lifecyclev1alpha1.EvictionStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(e, old *lifecyclev1alpha1.Eviction) { e.Status = old.Status }),
	Columns:       []metav1.TableColumnDefinition{apis.NameColumn, apis.AgeColumn},
	Row: func(obj apis.Object, now time.Time) []any {
		return []any{obj.GetName(), apis.AgeOf(obj, now)}
	},
}
