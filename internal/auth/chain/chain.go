// Package chain asks authorizers in order; the first that allows or denies
// decides. The order and the webhooks in it come from an
// AuthorizationConfiguration (KEP-3221), which may be replaced while the server
// runs.
package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/utils/clock"

	"proa/internal/apis/expression"
	"proa/internal/configfile"
)

// Types of authorizers besides Webhook.
const (
	Node        = "Node"
	RBAC        = "RBAC"
	ABAC        = "ABAC"
	AlwaysAllow = "AlwaysAllow"
	AlwaysDeny  = "AlwaysDeny"
)

// Rules is an authorizer that can list what a user may do.
type Rules interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// Config says who is asked.
type Config struct {
	Authorization *apiserver.AuthorizationConfiguration
	// File is where Authorization was read from, holding Data; its changes are
	// followed. Empty: it stays as it is.
	File string
	Data []byte

	// Node and RBAC are this server's. A reload may move them, not add or remove
	// them.
	Node, RBAC Rules
	// ABAC is that of the policy file. Nil: there is none.
	ABAC Rules

	// Dial opens the connections to webhooks. Nil: directly.
	Dial utilnet.DialFunc

	Clock clock.WithTicker
	Log   *slog.Logger
}

// Chain is an authorizer and rule resolver. The privileged group of the system
// is allowed everything before anyone is asked.
type Chain struct {
	config   Config
	compiler authorizationcel.Compiler // nil until a webhook needs it
	current  atomic.Pointer[members]
}

var (
	_ authorizer.Authorizer   = (*Chain)(nil)
	_ authorizer.RuleResolver = (*Chain)(nil)
)

// New returns the chain, or what is wrong with its configuration.
func New(c Config) (*Chain, error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	ch := &Chain{config: c}
	first, err := ch.members(c.Authorization)
	if err != nil {
		return nil, err
	}
	ch.current.Store(first)
	return ch, nil
}

// Run follows the configuration's file until ctx ends.
func (c *Chain) Run(ctx context.Context) error {
	if c.config.File == "" {
		<-ctx.Done()
		return nil
	}
	f := &configfile.Follower{
		Path: c.config.File, Loaded: c.config.Data, Clock: c.config.Clock, Log: c.config.Log,
		Reloads: configfile.NewReloads("authorization"), Apply: c.replace,
	}
	return f.Run(ctx)
}

func (c *Chain) replace(_ context.Context, data []byte) error {
	next, err := configfile.Decode[*apiserver.AuthorizationConfiguration](data)
	if err != nil {
		return err
	}
	for _, fixed := range []string{Node, RBAC} {
		if has(c.config.Authorization, fixed) != has(next, fixed) {
			return fmt.Errorf("authorizer %s cannot be added or removed while the server runs", fixed)
		}
	}
	m, err := c.members(next)
	if err == nil {
		c.current.Store(m)
	}
	return err
}

func has(c *apiserver.AuthorizationConfiguration, kind string) bool {
	return slices.ContainsFunc(c.Authorizers, func(a apiserver.AuthorizerConfiguration) bool { return string(a.Type) == kind })
}

// members are the authorizers of one configuration.
type members struct {
	authorizers []member
	rules       authorizer.RuleResolver
}

type member struct {
	authorizer.Authorizer
	decisions
}

func (c *Chain) members(config *apiserver.AuthorizationConfiguration) (*members, error) {
	if err := c.validate(config); err != nil {
		return nil, err
	}
	m := &members{authorizers: []member{{Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)}}}
	var resolvers []authorizer.RuleResolver
	for _, a := range config.Authorizers {
		one, err := c.authorizer(a)
		if err != nil {
			return nil, err
		}
		m.authorizers = append(m.authorizers, member{one, newDecisions(string(a.Type), a.Name)})
		resolvers = append(resolvers, one)
	}
	m.rules = union.NewRuleResolvers(resolvers...)
	return m, nil
}

func (c *Chain) validate(config *apiserver.AuthorizationConfiguration) error {
	if c.compiler == nil && has(config, string(apiserver.TypeWebhook)) {
		expression.Environment()
		c.compiler = authorizationcel.NewDefaultCompiler()
	}
	errs := validation.ValidateAuthorizationConfiguration(c.compiler, nil, config,
		sets.New(AlwaysAllow, AlwaysDeny, ABAC, Node, RBAC, string(apiserver.TypeWebhook)), sets.New(string(apiserver.TypeWebhook)))
	for i, a := range config.Authorizers {
		path := field.NewPath("authorizers").Index(i)
		if a.Type != apiserver.TypeWebhook {
			if want := strings.ToLower(string(a.Type)); a.Name != "" && a.Name != want {
				errs = append(errs, field.Invalid(path.Child("name"), a.Name, fmt.Sprintf("expected name %s for authorizer %s instead of %s", want, a.Type, a.Name)))
			}
			continue
		}
		if a.Webhook != nil && a.Webhook.ConnectionInfo.Type == apiserver.AuthorizationWebhookConnectionInfoTypeInCluster {
			errs = append(errs, field.NotSupported(path.Child("webhook", "connectionInfo", "type"), a.Webhook.ConnectionInfo.Type,
				[]string{apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile}))
		}
	}
	return errs.ToAggregate()
}

func (c *Chain) authorizer(a apiserver.AuthorizerConfiguration) (Rules, error) {
	switch a.Type {
	case Node:
		return c.config.Node, nil
	case RBAC:
		return c.config.RBAC, nil
	case ABAC:
		if c.config.ABAC == nil {
			return nil, errors.New("authorization-mode ABAC's authorization policy file not passed")
		}
		return c.config.ABAC, nil
	case AlwaysAllow:
		return authorizerfactory.NewAlwaysAllowAuthorizer(), nil
	case AlwaysDeny:
		return authorizerfactory.NewAlwaysDenyAuthorizer(), nil
	case apiserver.TypeWebhook:
		return newWebhook(a.Name, a.Webhook, c.config.Dial, c.compiler)
	}
	return nil, fmt.Errorf("unknown authorizer type %q", a.Type)
}

// Authorize implements authorizer.Authorizer. An early answer costs no
// allocation.
func (c *Chain) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	var refused refusals
	authorizers := c.current.Load().authorizers
	for i := range authorizers {
		next := &authorizers[i]
		decision, reason, err := next.Authorize(ctx, attrs)
		if decision != authorizer.DecisionNoOpinion {
			next.count(decision)
			return decision, reason, err
		}
		refused.add(reason, err)
	}
	return authorizer.DecisionNoOpinion, refused.reason(), refused.err()
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; decisions have no conditions.
func (c *Chain) ConditionsAwareAuthorize(ctx context.Context, attrs authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(c.Authorize(ctx, attrs))
}

// EvaluateConditions implements authorizer.Authorizer; there are none to evaluate.
func (c *Chain) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver.
func (c *Chain) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return c.current.Load().rules.RulesFor(ctx, u, namespace)
}

// Unlisted makes Rules of an authorizer whose rules cannot be listed: reviews say
// that their answer is incomplete.
type Unlisted struct {
	authorizer.Authorizer
	Why string
}

// RulesFor implements authorizer.RuleResolver.
func (u Unlisted) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, true, errors.New(u.Why)
}
