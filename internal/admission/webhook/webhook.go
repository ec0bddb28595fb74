// Package webhook asks the admission webhooks that users configured: the mutating
// ones one after the other in the order of their names, the validating ones all
// at once.
//
// A webhook is called in the goroutine of the request it judges. The request's
// transaction is optimistic: it holds no lock, and the store does not hear of it
// before it commits. A slow webhook delays nobody else.
package webhook

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	k8sadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/metrics"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	webhookconfig "k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/config/apis/webhookadmission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"proa/internal/admission"
	"proa/internal/admission/manifest"
	"proa/internal/admission/review"
	"proa/internal/apis"
	"proa/internal/apis/admissionregistration"
	"proa/internal/egress"
	"proa/internal/store"
	"proa/internal/store/backend"
)

// Config says what webhooks are called with. Store, Catalogue and Authorizer are required.
type Config struct {
	Store     *store.Store
	Catalogue *apis.Catalogue // of the kinds they may ask to see
	// Authorizer answers the expressions of match conditions.
	Authorizer authorizer.Authorizer
	// Configurations may name a kubeconfig with credentials for webhooks, and a
	// directory of webhooks in files.
	Configurations admission.Configurations
	// Manifests allows such directories: the gate of them is on.
	Manifests bool
	// ByAddress leads calls to the addresses of Services, not to their endpoints.
	ByAddress bool
	// Egress opens the connections: to Services, and to webhooks at URLs.
	Egress egress.Dialers
}

// New returns the two plugins.
func New(c Config) (*Mutating, *Validating, error) {
	m, v := &Mutating{}, &Validating{}
	if err := m.setUp(c, m.Name(), "mutatingwebhookconfigurations", mutatingHooks, readMutating); err != nil {
		return nil, nil, err
	}
	if err := v.setUp(c, v.Name(), "validatingwebhookconfigurations", validatingHooks, readValidating); err != nil {
		return nil, nil, err
	}
	return m, v, nil
}

// plugin is what both plugins have: the webhooks of files and those of objects.
type plugin struct {
	config  Config
	clients *clients
	static  *manifest.Source[[][]*hook]
	hooks   review.Compiled[[]*hook]
}

func (p *plugin) setUp(c Config, name, resource string, hooks func(apis.Object) []*hook, read func(dir string) ([][]*hook, string, error)) error {
	p.config = c
	p.hooks.Resource, p.hooks.Make = schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: resource}, hooks
	settings, err := c.settings(name)
	if err == nil {
		p.clients, err = newClients(backend.Resolver{Store: c.Store, ByAddress: c.ByAddress, Egress: c.Egress}, settings.KubeConfigFile)
	}
	if err == nil {
		p.static, err = manifest.Open(name, settings.StaticManifestsDir, read)
	}
	if err != nil {
		return fmt.Errorf("couldn't init admission plugin %q: %w", name, err)
	}
	return nil
}

// settings is the document of a plugin, empty without one.
func (c *Config) settings(plugin string) (*webhookadmission.WebhookAdmission, error) {
	document, ok := c.Configurations[plugin]
	if !ok {
		return &webhookadmission.WebhookAdmission{}, nil
	}
	settings, err := webhookconfig.LoadConfig(bytes.NewReader(document))
	if err == nil && settings.StaticManifestsDir != "" && !c.Manifests {
		err = admission.ErrStaticManifests
	}
	return settings, err
}

// Run follows the webhooks of files until ctx ends.
func (p *plugin) Run(ctx context.Context) error { return p.static.Run(ctx) }

// idle says that no webhook is to be asked of a write to a kind.
func (p *plugin) idle(r *apis.Resource) bool {
	if len(p.static.Made()) == 0 && (p.hooks.None(p.config.Store) || review.SaysWhoJudges(r)) {
		return true
	}
	return review.Exempt(r)
}

// configurations are the webhooks that judge writes to a kind, by configuration:
// those of files come first.
func (p *plugin) configurations(sn *store.Snapshot, r *apis.Resource) [][]*hook {
	static := p.static.Made()
	if review.SaysWhoJudges(r) {
		return static
	}
	if len(static) == 0 {
		return p.hooks.Of(sn)
	}
	return slices.Concat(static, p.hooks.Of(sn))
}

// hook is one webhook, ready to be asked.
type hook struct {
	*admissionregistrationv1.MutatingWebhook
	configuration string
	step          string // as metrics name it: admit or validating
	uid           string // unique among all webhooks of a kind
	criteria      review.Criteria
	conditions    matchconditions.Matcher // nil: none
}

// hooksOf reads one configuration. Step is what metrics call the kind.
func hooksOf(configuration string, webhooks []admissionregistrationv1.MutatingWebhook, step string) []*hook {
	out := make([]*hook, len(webhooks))
	repeated := map[string]int{}
	for i := range webhooks {
		w := &webhooks[i]
		out[i] = &hook{
			MutatingWebhook: w, configuration: configuration, step: step,
			uid:      fmt.Sprintf("%s/%s/%d", configuration, w.Name, repeated[w.Name]),
			criteria: review.OfWebhook(w), conditions: conditionsOf(w, step),
		}
		repeated[w.Name]++
	}
	return out
}

func conditionsOf(w *admissionregistrationv1.MutatingWebhook, step string) matchconditions.Matcher {
	if len(w.MatchConditions) == 0 {
		return nil
	}
	list := make([]plugincel.ExpressionAccessor, len(w.MatchConditions))
	for i := range w.MatchConditions {
		list[i] = (*matchconditions.MatchCondition)(&w.MatchConditions[i])
	}
	compiler := plugincel.NewConditionCompiler(admissionregistration.Environment())
	evaluator := compiler.CompileCondition(list, plugincel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.StoredExpressions)
	return matchconditions.NewMatcher(evaluator, w.FailurePolicy, "webhook", step, w.Name)
}

func (h *hook) failsOpen() bool {
	return h.FailurePolicy != nil && *h.FailurePolicy == admissionregistrationv1.Ignore
}

// sideEffectsOnDryRun says that a dry run must not reach the webhook.
func (h *hook) sideEffectsOnDryRun() bool {
	return h.SideEffects == nil || *h.SideEffects != admissionregistrationv1.SideEffectClassNone && *h.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun
}

// invocation is a webhook that wants to see a write, in a version.
type invocation struct {
	*hook
	version review.Version
	shown   *k8sadmission.VersionedAttributes
}

// invoke returns nil when the webhook is not to be called.
func (p *plugin) invoke(ctx context.Context, h *hook, r *review.Request) (*invocation, error) {
	version, wanted, err := h.criteria.Match(r)
	if err != nil || !wanted {
		return nil, err
	}
	shown, err := r.Show(version)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if h.conditions != nil {
		switch result := h.conditions.Match(ctx, shown, nil, p.config.Authorizer); {
		case result.Error != nil:
			return nil, apierrors.NewForbidden(r.Own.Resource.GroupResource(), r.Name, result.Error)
		case !result.Matches:
			metrics.Metrics.ObserveMatchConditionExclusion(ctx, h.Name, "webhook", h.step, string(shown.GetOperation()))
			return nil, nil
		}
	}
	return &invocation{hook: h, version: version, shown: shown}, nil
}

var (
	_ admission.Mutator   = &Mutating{}
	_ admission.Validator = &Validating{}
)
