package admission

import (
	"context"
	"errors"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/auth/rbac"
)

// RBACEscalation keeps people from giving away permissions that they do not
// have: in a role without the verb escalate, in a binding without the verb bind.
// Upstream does this in the storage of the RBAC kinds; it cannot be disabled.
type RBACEscalation struct {
	RBAC       *rbac.Authorizer
	Authorizer authorizer.Authorizer
}

func (RBACEscalation) Name() string { return "RBACEscalation" }

func (p RBACEscalation) Validate(ctx context.Context, a *Attributes) error {
	if a.Resource.Group != rbacv1.GroupName || a.Subresource != "" ||
		a.Operation != admissionv1.Create && a.Operation != admissionv1.Update ||
		slices.Contains(a.User.GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	switch obj := a.Object.(type) {
	case *rbacv1.ClusterRole:
		old, _ := a.OldObject.(*rbacv1.ClusterRole)
		if old != nil && equality.Semantic.DeepEqual(old.Rules, obj.Rules) && equality.Semantic.DeepEqual(old.AggregationRule, obj.AggregationRule) {
			return nil
		}
		return p.role(ctx, a, "", obj.Rules, obj.AggregationRule != nil)
	case *rbacv1.Role:
		if old, ok := a.OldObject.(*rbacv1.Role); ok && equality.Semantic.DeepEqual(old.Rules, obj.Rules) {
			return nil
		}
		return p.role(ctx, a, obj.Namespace, obj.Rules, false)
	case *rbacv1.ClusterRoleBinding:
		if old, ok := a.OldObject.(*rbacv1.ClusterRoleBinding); ok && old.RoleRef == obj.RoleRef && equality.Semantic.DeepEqual(old.Subjects, obj.Subjects) {
			return nil
		}
		return p.binding(ctx, a, "", obj.RoleRef)
	case *rbacv1.RoleBinding:
		if old, ok := a.OldObject.(*rbacv1.RoleBinding); ok && old.RoleRef == obj.RoleRef && equality.Semantic.DeepEqual(old.Subjects, obj.Subjects) {
			return nil
		}
		return p.binding(ctx, a, obj.Namespace, obj.RoleRef)
	}
	return nil
}

func (p RBACEscalation) role(ctx context.Context, a *Attributes, namespace string, rules []rbacv1.PolicyRule, aggregates bool) error {
	if p.may(ctx, a, "escalate", a.Resource.GroupResource(), namespace, a.Object.GetName()) {
		return nil
	}
	if err := p.RBAC.ConfirmHeld(a.User, namespace, rules); err != nil {
		return a.forbidden(err)
	}
	if aggregates && p.RBAC.ConfirmHeld(a.User, "", rbac.FullAuthority()) != nil {
		return a.forbidden(errors.New("must have cluster-admin privileges to use the aggregationRule"))
	}
	return nil
}

func (p RBACEscalation) binding(ctx context.Context, a *Attributes, namespace string, ref rbacv1.RoleRef) error {
	gr, in := schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}, namespace
	if ref.Kind == "Role" {
		gr.Resource = "roles"
	}
	if p.may(ctx, a, "bind", gr, in, ref.Name) {
		return nil
	}
	rules, err := p.RBAC.RoleRules(ref, namespace)
	if err != nil {
		return err
	}
	if err := p.RBAC.ConfirmHeld(a.User, namespace, rules); err != nil {
		return a.forbidden(err)
	}
	return nil
}

func (p RBACEscalation) may(ctx context.Context, a *Attributes, verb string, gr schema.GroupResource, namespace, name string) bool {
	decision, _, err := p.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: verb, Namespace: namespace, APIGroup: gr.Group, APIVersion: "*", Resource: gr.Resource, Name: name, ResourceRequest: true,
	})
	return err == nil && decision == authorizer.DecisionAllow
}
