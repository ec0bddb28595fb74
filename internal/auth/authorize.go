package auth

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/union"

	"proa/internal/auth/node"
	"proa/internal/auth/rbac"
)

// Names of authorizers in Config.Modes.
const (
	ModeNode        = "Node"
	ModeRBAC        = "RBAC"
	ModeAlwaysAllow = "AlwaysAllow"
	ModeAlwaysDeny  = "AlwaysDeny"
)

// authorizers joins the privileged group's authorizer with those that c names.
func (a *Auth) authorizers(c Config) error {
	modes := c.Modes
	if len(modes) == 0 {
		modes = []string{ModeNode, ModeRBAC}
	}
	// the roles are known in every mode: escalation checks and reviews need them
	a.RBAC = rbac.New(c.Store)
	chain := chain{authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)}
	var resolvers []authorizer.RuleResolver
	for i, mode := range modes {
		if slices.Contains(modes[:i], mode) {
			return fmt.Errorf("authorization mode %q is given twice", mode)
		}
		switch mode {
		case ModeNode:
			chain = append(chain, node.New(c.Store))
			resolvers = append(resolvers, unknownRules{"node authorizer doesn't support user rule resolution"})
		case ModeRBAC:
			chain = append(chain, a.RBAC)
			resolvers = append(resolvers, a.RBAC)
		case ModeAlwaysAllow:
			always := authorizerfactory.NewAlwaysAllowAuthorizer()
			chain = append(chain, always)
			resolvers = append(resolvers, always)
		case ModeAlwaysDeny:
			always := authorizerfactory.NewAlwaysDenyAuthorizer()
			chain = append(chain, always)
			resolvers = append(resolvers, always)
		default:
			return fmt.Errorf("unknown authorization mode %q, one of %s, %s, %s or %s", mode, ModeNode, ModeRBAC, ModeAlwaysAllow, ModeAlwaysDeny)
		}
	}
	a.Authorizer = chain
	a.rules = union.NewRuleResolvers(resolvers...)
	return nil
}

// chain asks authorizers in order; the first that allows or denies decides. It
// is union.New without its allocations on the way to an early answer.
type chain []authorizer.Authorizer

func (c chain) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	var refused refusals
	for _, next := range c {
		decision, reason, err := next.Authorize(ctx, attrs)
		if decision != authorizer.DecisionNoOpinion {
			return decision, reason, err
		}
		refused.add(reason, err)
	}
	return authorizer.DecisionNoOpinion, refused.reason(), refused.err()
}

func (c chain) ConditionsAwareAuthorize(ctx context.Context, attrs authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(c.Authorize(ctx, attrs))
}

func (c chain) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}
