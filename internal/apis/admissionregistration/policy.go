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

const (
	validationsText = "Validations indicates the number of validation rules defined in this configuration"
	mutationsText   = "Mutation indicates the number of mutations rules defined in this configuration"
	paramKindText   = "ParamKind specifies the kind of resources used to parameterize this policy"
	policyNameText  = "PolicyName indicates the policy definition which the policy binding binded to"
	paramRefText    = "ParamRef indicates the param resource which sets the configuration param"
)

// ValidatingAdmissionPolicies is the v1 validatingadmissionpolicies resource.
var ValidatingAdmissionPolicies = apis.Resource{
	Group: group, Version: version, Kind: "ValidatingAdmissionPolicy", Plural: "validatingadmissionpolicies", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	AnyFinalizer:       true,
	Categories:         apiMachinery, ConditionalUpdate: true,
	New: apis.New[admissionregistrationv1.ValidatingAdmissionPolicy], NewList: apis.NewList[admissionregistrationv1.ValidatingAdmissionPolicyList],
	Default: apis.On(func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
		setDefault(&p.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatchResources(p.Spec.MatchConstraints)
	}),
	PrepareCreate: apis.On(func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
		p.Status = admissionregistrationv1.ValidatingAdmissionPolicyStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(p, old *admissionregistrationv1.ValidatingAdmissionPolicy) { p.Status = old.Status }),
	Subresources: []apis.Subresource{
		apis.Status(func(p, old *admissionregistrationv1.ValidatingAdmissionPolicy) { p.Spec = old.Spec }, validatePolicyStatus),
	},
	Validate: apis.Check(func(p *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
		return validateValidatingPolicy(p, nil)
	}),
	ValidateUpdate: apis.CheckUpdate(validateValidatingPolicy),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Validations", "integer", validationsText),
		apis.Column("ParamKind", "string", paramKindText),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(p *admissionregistrationv1.ValidatingAdmissionPolicy, now time.Time) []any {
		return []any{p.Name, int64(len(p.Spec.Validations)), paramKindCell(p.Spec.ParamKind), apis.AgeOf(p, now)}
	}),
}

// MutatingAdmissionPolicies is the v1 mutatingadmissionpolicies resource.
var MutatingAdmissionPolicies = apis.Resource{
	Group: group, Version: version, Kind: "MutatingAdmissionPolicy", Plural: "mutatingadmissionpolicies", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	AnyFinalizer:       true,
	Categories:         apiMachinery, ConditionalUpdate: true,
	New: apis.New[admissionregistrationv1.MutatingAdmissionPolicy], NewList: apis.NewList[admissionregistrationv1.MutatingAdmissionPolicyList],
	Also: []apis.Served{
		apis.ServedAs[admissionregistrationv1.MutatingAdmissionPolicy, admissionregistrationv1beta1.MutatingAdmissionPolicy, admissionregistrationv1beta1.MutatingAdmissionPolicyList](group, "v1beta1", "MutatingAdmissionPolicy"),
		apis.ServedAs[admissionregistrationv1.MutatingAdmissionPolicy, admissionregistrationv1alpha1.MutatingAdmissionPolicy, admissionregistrationv1alpha1.MutatingAdmissionPolicyList](group, "v1alpha1", "MutatingAdmissionPolicy"),
	},
	Default: apis.On(func(p *admissionregistrationv1.MutatingAdmissionPolicy) {
		setDefault(&p.Spec.FailurePolicy, admissionregistrationv1.Fail)
		defaultMatchResources(p.Spec.MatchConstraints)
	}),
	Validate: apis.Check(func(p *admissionregistrationv1.MutatingAdmissionPolicy) field.ErrorList {
		return validateMutatingPolicy(p, nil)
	}),
	ValidateUpdate: apis.CheckUpdate(validateMutatingPolicy),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Mutations", "integer", mutationsText),
		apis.Column("ParamKind", "string", paramKindText),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(p *admissionregistrationv1.MutatingAdmissionPolicy, now time.Time) []any {
		return []any{p.Name, int64(len(p.Spec.Mutations)), paramKindCell(p.Spec.ParamKind), apis.AgeOf(p, now)}
	}),
}

func paramKindCell(k *admissionregistrationv1.ParamKind) string {
	if k == nil {
		return "<unset>"
	}
	return k.APIVersion + "/" + k.Kind
}
