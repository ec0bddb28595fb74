package rbac

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// FullAuthority is everything: what an aggregation rule may gather.
func FullAuthority() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
	}
}

// ConfirmHeld returns an error when a user who grants rules in a namespace
// (empty: cluster-wide) does not hold all of them already.
func (a *Authorizer) ConfirmHeld(u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	held, resolveErr := a.Rules(u, namespace)
	ok, missing := validation.Covers(held, rules)
	if ok {
		return nil
	}
	var lines []string
	for _, r := range compact(missing) {
		lines = append(lines, describe(r))
	}
	slices.Sort(lines)
	text := fmt.Sprintf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		u.GetName(), u.GetGroups(), strings.Join(slices.Compact(lines), "\n"))
	if resolveErr != nil {
		text += fmt.Sprintf("; resolution errors: %v", resolveErr)
	}
	return fmt.Errorf("%s", text)
}

// RoleRules returns the rules of the role that a binding in a namespace (empty:
// a ClusterRoleBinding) refers to, or a NotFound status.
func (a *Authorizer) RoleRules(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	key := roleKey(ref, namespace)
	r := a.current().roles[key]
	if r == nil {
		return nil, apierrors.NewNotFound(key.Resource, ref.Name)
	}
	return rulesOf(r.item.Object), nil
}

// compact joins rules that differ only in their verbs, as upstream reports them.
func compact(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	type simple struct{ group, resource, name string }
	verbs := map[simple][]string{}
	var out []rbacv1.PolicyRule
	for _, r := range rules {
		if len(r.APIGroups) != 1 || len(r.Resources) != 1 || len(r.ResourceNames) > 1 || len(r.NonResourceURLs) > 0 {
			out = append(out, r)
			continue
		}
		k := simple{r.APIGroups[0], r.Resources[0], strings.Join(r.ResourceNames, "")}
		verbs[k] = append(verbs[k], r.Verbs...)
	}
	for k, v := range verbs {
		slices.Sort(v)
		r := rbacv1.PolicyRule{APIGroups: []string{k.group}, Resources: []string{k.resource}, Verbs: slices.Compact(v)}
		if k.name != "" {
			r.ResourceNames = []string{k.name}
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b rbacv1.PolicyRule) int { return cmp.Compare(describe(a), describe(b)) })
	return out
}

func describe(r rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		label  string
		values []string
	}{
		{"APIGroups", r.APIGroups}, {"Resources", r.Resources}, {"NonResourceURLs", r.NonResourceURLs},
		{"ResourceNames", r.ResourceNames}, {"Verbs", r.Verbs},
	} {
		if len(p.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", p.label, p.values))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
