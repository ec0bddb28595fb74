// Package rbac decides by roles and bindings, and knows the roles and bindings
// that every cluster starts with.
//
// All roles are compiled into an index by subject. Before each decision the
// index is compared with the store's newest snapshot, a pointer comparison per
// resource, so a permission is there, or gone, from the moment its write returns.
package rbac

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/store"
)

// Authorizer allows what the roles in a store allow and has no opinion on the rest.
type Authorizer struct {
	store *store.Store
	index atomic.Pointer[index]
	mu    sync.Mutex // one builder of a new index at a time
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// New returns an authorizer of the roles in s.
func New(s *store.Store) *Authorizer { return &Authorizer{store: s} }

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	u := attrs.GetUser()
	if u == nil {
		return authorizer.DecisionNoOpinion, "", errors.New("no user")
	}
	idx := a.current()
	h := idx.holder(u)
	if !attrs.IsResourceRequest() {
		if reason, ok := h.cluster.allowsPath(attrs.GetVerb(), attrs.GetPath()); ok {
			return authorizer.DecisionAllow, reason, nil
		}
		return authorizer.DecisionNoOpinion, explain(h.cluster.missing), nil
	}
	t := target{attrs.GetAPIGroup(), attrs.GetResource(), attrs.GetSubresource()}
	if reason, ok := h.cluster.allows(attrs.GetVerb(), t, attrs.GetName()); ok {
		return authorizer.DecisionAllow, reason, nil
	}
	missing := h.cluster.missing
	if ns := attrs.GetNamespace(); ns != "" {
		if s := idx.in(h, ns); s != nil {
			if reason, ok := s.allows(attrs.GetVerb(), t, attrs.GetName()); ok {
				return authorizer.DecisionAllow, reason, nil
			}
			missing = append(missing[:len(missing):len(missing)], s.missing...)
		}
	}
	return authorizer.DecisionNoOpinion, explain(missing), nil
}

func explain(missing []error) string {
	if len(missing) == 0 {
		return ""
	}
	return "RBAC: " + utilerrors.NewAggregate(missing).Error()
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; decisions have no conditions.
func (a *Authorizer) ConditionsAwareAuthorize(ctx context.Context, attrs authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

// EvaluateConditions implements authorizer.Authorizer; there are none to evaluate.
func (a *Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// Rules returns all rules that a user has in a namespace, cluster-wide ones
// included; only those when namespace is empty. The error names roles that are
// bound but missing.
func (a *Authorizer) Rules(u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	idx := a.current()
	h := idx.holder(u)
	scopes := []*scope{h.cluster}
	if namespace != "" {
		if s := idx.in(h, namespace); s != nil {
			scopes = append(scopes, s)
		}
	}
	var out []rbacv1.PolicyRule
	var missing []error
	for _, s := range scopes {
		missing = append(missing, s.missing...)
		for _, g := range s.grants {
			if g.role == nil {
				continue
			}
			for i := range g.role.rules {
				out = append(out, *g.role.rules[i].source)
			}
		}
	}
	return out, utilerrors.NewAggregate(missing)
}

// RulesFor implements authorizer.RuleResolver for SelfSubjectRulesReview.
func (a *Authorizer) RulesFor(_ context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	rules, err := a.Rules(u, namespace)
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for _, r := range rules {
		if len(r.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})
		}
	}
	return resources, paths, false, err
}

// Static is a fixed list of rules.
type Static struct{ scope scope }

// NewStatic compiles rules.
func NewStatic(rules []rbacv1.PolicyRule) *Static {
	s := &Static{scope{exact: map[target][]held{}}}
	s.scope.add([]*grant{{role: &role{rules: compileRules(rules)}}})
	return s
}

// Allow reports whether a rule allows the request.
func (s *Static) Allow(attrs authorizer.Attributes) bool {
	if !attrs.IsResourceRequest() {
		_, ok := s.scope.allowsPath(attrs.GetVerb(), attrs.GetPath())
		return ok
	}
	t := target{attrs.GetAPIGroup(), attrs.GetResource(), attrs.GetSubresource()}
	_, ok := s.scope.allows(attrs.GetVerb(), t, attrs.GetName())
	return ok
}
