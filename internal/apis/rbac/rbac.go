// Package rbac declares the kinds of the rbac.authorization.k8s.io group, v1.
// Whether a user may grant what a role says is checked by the registry's
// authorizer, not here.
package rbac

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1beta1 "k8s.io/api/rbac/v1beta1"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{&ClusterRoleBindings, &ClusterRoles, &RoleBindings, &Roles}
}

// Roles is the rbac.authorization.k8s.io/v1 roles resource.
var Roles = apis.Resource{
	Group: rbacv1.GroupName, Version: "v1", Kind: "Role", Plural: "roles",
	New: apis.New[rbacv1.Role], NewList: apis.NewList[rbacv1.RoleList],
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	ValidateName:        path.ValidatePathSegmentName,
	Validate: apis.Check(func(r *rbacv1.Role) field.ErrorList {
		return validateRules(r.Rules, true)
	}),
	Columns: roleColumns,
	Row:     roleRow,
}

// ClusterRoles is the rbac.authorization.k8s.io/v1 clusterroles resource.
var ClusterRoles = apis.Resource{
	Group: rbacv1.GroupName, Version: "v1", Kind: "ClusterRole", Plural: "clusterroles", Scope: apis.Cluster,
	New: apis.New[rbacv1.ClusterRole], NewList: apis.NewList[rbacv1.ClusterRoleList],
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	ValidateName:        path.ValidatePathSegmentName,
	Validate: apis.Check(func(r *rbacv1.ClusterRole) field.ErrorList {
		return append(validateRules(r.Rules, false), validateAggregation(r.AggregationRule)...)
	}),
	Columns: roleColumns,
	Row:     roleRow,
}

// RoleBindings is the rbac.authorization.k8s.io/v1 rolebindings resource.
var RoleBindings = apis.Resource{
	Group: rbacv1.GroupName, Version: "v1", Kind: "RoleBinding", Plural: "rolebindings",
	New: apis.New[rbacv1.RoleBinding], NewList: apis.NewList[rbacv1.RoleBindingList],
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	ValidateName:        path.ValidatePathSegmentName,
	Default: apis.On(func(b *rbacv1.RoleBinding) {
		defaultRoleRef(&b.RoleRef)
		defaultSubjects(b.Subjects)
	}),
	Validate: apis.Check(func(b *rbacv1.RoleBinding) field.ErrorList {
		return append(validateRoleRef(b.RoleRef, "Role", "ClusterRole"), validateSubjects(b.Subjects, true)...)
	}),
	ValidateUpdate: apis.CheckUpdate(func(b, old *rbacv1.RoleBinding) field.ErrorList {
		errs := append(validateRoleRef(b.RoleRef, "Role", "ClusterRole"), validateSubjects(b.Subjects, true)...)
		return append(errs, keepRoleRef(b.RoleRef, old.RoleRef)...)
	}),
	Columns: bindingColumns("roleBinding", rbacv1beta1.RoleBinding{}.SwaggerDoc()["roleRef"]),
	Row: apis.Cells(func(b *rbacv1.RoleBinding, now time.Time) []any {
		return bindingRow(b, b.RoleRef, b.Subjects, now)
	}),
}

// ClusterRoleBindings is the rbac.authorization.k8s.io/v1 clusterrolebindings resource.
var ClusterRoleBindings = apis.Resource{
	Group: rbacv1.GroupName, Version: "v1", Kind: "ClusterRoleBinding", Plural: "clusterrolebindings", Scope: apis.Cluster,
	New: apis.New[rbacv1.ClusterRoleBinding], NewList: apis.NewList[rbacv1.ClusterRoleBindingList],
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	ValidateName:        path.ValidatePathSegmentName,
	Default: apis.On(func(b *rbacv1.ClusterRoleBinding) {
		defaultRoleRef(&b.RoleRef)
		defaultSubjects(b.Subjects)
	}),
	Validate: apis.Check(func(b *rbacv1.ClusterRoleBinding) field.ErrorList {
		return append(validateRoleRef(b.RoleRef, "ClusterRole"), validateSubjects(b.Subjects, false)...)
	}),
	ValidateUpdate: apis.CheckUpdate(func(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
		errs := append(validateRoleRef(b.RoleRef, "ClusterRole"), validateSubjects(b.Subjects, false)...)
		return append(errs, keepRoleRef(b.RoleRef, old.RoleRef)...)
	}),
	Columns: bindingColumns("clusterRoleBinding", rbacv1beta1.ClusterRoleBinding{}.SwaggerDoc()["roleRef"]),
	Row: apis.Cells(func(b *rbacv1.ClusterRoleBinding, now time.Time) []any {
		return bindingRow(b, b.RoleRef, b.Subjects, now)
	}),
}

func defaultRoleRef(ref *rbacv1.RoleRef) {
	if ref.APIGroup == "" {
		ref.APIGroup = rbacv1.GroupName
	}
}

func defaultSubjects(subjects []rbacv1.Subject) {
	for i := range subjects {
		if s := &subjects[i]; s.APIGroup == "" && (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) {
			s.APIGroup = rbacv1.GroupName
		}
	}
}

func validateRules(rules []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i, rule := range rules {
		errs = append(errs, validateRule(rule, namespaced, field.NewPath("rules").Index(i))...)
	}
	return errs
}

func validateRule(rule rbacv1.PolicyRule, namespaced bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(rule.Verbs) == 0 {
		errs = append(errs, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
	}
	if len(rule.NonResourceURLs) > 0 {
		if namespaced {
			errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), rule.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
		}
		if len(rule.APIGroups) > 0 || len(rule.Resources) > 0 || len(rule.ResourceNames) > 0 {
			errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), rule.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
		}
		return errs
	}
	if len(rule.APIGroups) == 0 {
		errs = append(errs, field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	if len(rule.Resources) == 0 {
		errs = append(errs, field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
	}
	return errs
}

func validateAggregation(a *rbacv1.AggregationRule) field.ErrorList {
	if a == nil {
		return nil
	}
	at := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(a.ClusterRoleSelectors) == 0 {
		return field.ErrorList{field.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil")}
	}
	var errs field.ErrorList
	for i := range a.ClusterRoleSelectors {
		errs = append(errs, validate.Selector(at.Index(i), &a.ClusterRoleSelectors[i])...)
		if s, err := metav1.LabelSelectorAsSelector(&a.ClusterRoleSelectors[i]); err != nil {
			errs = append(errs, field.Invalid(at.Index(i), s, "invalid label selector."))
		}
	}
	return errs
}

func validateRoleRef(ref rbacv1.RoleRef, kinds ...string) field.ErrorList {
	at := field.NewPath("roleRef")
	errs := validate.OneOf(at.Child("apiGroup"), ref.APIGroup, rbacv1.GroupName)
	if unknown := validate.OneOf(at.Child("kind"), ref.Kind, kinds...); len(unknown) > 0 {
		errs = append(errs, field.NotSupported(at.Child("kind"), ref.Kind, kinds))
	}
	if ref.Name == "" {
		return append(errs, field.Required(at.Child("name"), ""))
	}
	return append(errs, validate.Invalid(at.Child("name"), ref.Name, path.ValidatePathSegmentName(ref.Name, false))...)
}

func keepRoleRef(ref, old rbacv1.RoleRef) field.ErrorList {
	if ref == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), ref, "field is immutable")}
}

func validateSubjects(subjects []rbacv1.Subject, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i, s := range subjects {
		errs = append(errs, validateSubject(s, namespaced, field.NewPath("subjects").Index(i))...)
	}
	return errs
}

func validateSubject(s rbacv1.Subject, namespaced bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		if s.Name != "" {
			errs = append(errs, validate.Subdomain(at.Child("name"), s.Name)...)
		}
		errs = append(errs, validate.OneOf(at.Child("apiGroup"), s.APIGroup, "")...)
		if !namespaced && s.Namespace == "" {
			errs = append(errs, field.Required(at.Child("namespace"), ""))
		}
	case rbacv1.UserKind, rbacv1.GroupKind:
		errs = append(errs, validate.OneOf(at.Child("apiGroup"), s.APIGroup, rbacv1.GroupName)...)
	default:
		errs = append(errs, field.NotSupported(at.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	return errs
}

var roleColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Created At", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]),
}

func roleRow(obj apis.Object, _ time.Time) []any {
	return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}
}
