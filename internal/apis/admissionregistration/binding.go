package admissionregistration

import (
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	admissionregistrationv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	admissionregistrationv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

var bindingColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("PolicyName", "string", policyNameText),
	apis.Column("ParamRef", "string", paramRefText),
	apis.AgeColumn,
}

// ValidatingAdmissionPolicyBindings is the v1 validatingadmissionpolicybindings resource.
var ValidatingAdmissionPolicyBindings = apis.Resource{
	Group: group, Version: version, Kind: "ValidatingAdmissionPolicyBinding", Plural: "validatingadmissionpolicybindings", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	AnyFinalizer:       true,
	Categories:         apiMachinery, ConditionalUpdate: true,
	New: apis.New[admissionregistrationv1.ValidatingAdmissionPolicyBinding], NewList: apis.NewList[admissionregistrationv1.ValidatingAdmissionPolicyBindingList],
	Default: apis.On(func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
		defaultMatchResources(b.Spec.MatchResources)
	}),
	Validate: apis.Check(validateValidatingBinding),
	ValidateUpdate: apis.CheckUpdate(func(b, _ *admissionregistrationv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
		return validateValidatingBinding(b)
	}),
	Columns: bindingColumns,
	Row: apis.Cells(func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding, now time.Time) []any {
		return []any{b.Name, b.Spec.PolicyName, paramRefCell(b.Spec.ParamRef), apis.AgeOf(b, now)}
	}),
}

// MutatingAdmissionPolicyBindings is the v1 mutatingadmissionpolicybindings resource.
var MutatingAdmissionPolicyBindings = apis.Resource{
	Group: group, Version: version, Kind: "MutatingAdmissionPolicyBinding", Plural: "mutatingadmissionpolicybindings", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	AnyFinalizer:       true,
	Categories:         apiMachinery, ConditionalUpdate: true,
	New: apis.New[admissionregistrationv1.MutatingAdmissionPolicyBinding], NewList: apis.NewList[admissionregistrationv1.MutatingAdmissionPolicyBindingList],
	Also: []apis.Served{
		apis.ServedAs[admissionregistrationv1.MutatingAdmissionPolicyBinding, admissionregistrationv1beta1.MutatingAdmissionPolicyBinding, admissionregistrationv1beta1.MutatingAdmissionPolicyBindingList](group, "v1beta1", "MutatingAdmissionPolicyBinding"),
		apis.ServedAs[admissionregistrationv1.MutatingAdmissionPolicyBinding, admissionregistrationv1alpha1.MutatingAdmissionPolicyBinding, admissionregistrationv1alpha1.MutatingAdmissionPolicyBindingList](group, "v1alpha1", "MutatingAdmissionPolicyBinding"),
	},
	Default: apis.On(func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
		defaultMatchResources(b.Spec.MatchResources)
	}),
	Validate: apis.Check(validateMutatingBinding),
	ValidateUpdate: apis.CheckUpdate(func(b, _ *admissionregistrationv1.MutatingAdmissionPolicyBinding) field.ErrorList {
		return validateMutatingBinding(b)
	}),
	Columns: bindingColumns,
	Row: apis.Cells(func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding, now time.Time) []any {
		return []any{b.Name, b.Spec.PolicyName, paramRefCell(b.Spec.ParamRef), apis.AgeOf(b, now)}
	}),
}

func paramRefCell(r *admissionregistrationv1.ParamRef) string {
	switch {
	case r == nil:
		return "<unset>"
	case r.Name != "" && r.Namespace != "":
		return r.Namespace + "/" + r.Name
	case r.Name != "":
		return r.Name
	case r.Selector != nil:
		return r.Selector.String()
	}
	return "<unset>"
}
