package policy

import (
	"context"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	cached "k8s.io/apiserver/pkg/admission/plugin/authorizer"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	"proa/internal/admission"
	"proa/internal/admission/review"
	"proa/internal/apis"
)

// Mutating completes objects by mutating policies.
type Mutating struct {
	config Config
	hooks  hooks[*mutatingPolicy]
}

const mutatingName = "MutatingAdmissionPolicy"

func (*Mutating) Name() string { return mutatingName }

// Run follows the policies of files until ctx ends.
func (p *Mutating) Run(ctx context.Context) error { return p.hooks.static.Run(ctx) }

// mutatingPolicy is a policy whose expressions are compiled.
type mutatingPolicy struct {
	policy
	compiler   *plugincel.CompositedCompiler
	conditions matchconditions.Matcher // nil: none
	patchers   []patch.Patcher
	again      bool // may run in both rounds
}

func compileMutating(obj apis.Object) *mutatingPolicy {
	o := obj.(*admissionregistrationv1.MutatingAdmissionPolicy)
	s := &o.Spec
	p := &mutatingPolicy{
		policy: policyOf(o.Name, s.FailurePolicy, s.ParamKind, s.MatchConstraints),
		again:  s.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy,
	}
	declare := plugincel.OptionalVariableDeclarations{HasParams: s.ParamKind != nil, HasAuthorizer: true}
	if p.compiler, p.broken = compilerWith(s.Variables, declare); p.broken != nil {
		return p
	}
	p.conditions = compileConditions(p.compiler, s.MatchConditions, s.FailurePolicy, declare, o.Name)
	declare.HasPatchTypes = true
	for _, m := range s.Mutations {
		switch {
		case m.PatchType == admissionregistrationv1.PatchTypeJSONPatch && m.JSONPatch != nil:
			e := p.compiler.CompileMutatingEvaluator(&patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}, declare, environment.StoredExpressions)
			p.patchers = append(p.patchers, patch.NewJSONPatcher(e))
		case m.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			e := p.compiler.CompileMutatingEvaluator(&patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression}, declare, environment.StoredExpressions)
			p.patchers = append(p.patchers, patch.NewApplyConfigurationPatcher(e))
		}
	}
	return p
}

// run is one use of a policy: through a binding, with a parameter.
type run struct {
	policy  *mutatingPolicy
	binding *binding
	version review.Version
	param   runtime.Object
}

// runKey names a run in both rounds of a write.
type runKey struct{ policy, binding, namespace, name string }

func (u *run) key() runKey {
	k := runKey{policy: u.policy.name, binding: u.binding.name}
	if param, ok := u.param.(metav1.Object); ok && u.param != nil {
		k.namespace, k.name = param.GetNamespace(), param.GetName()
	}
	return k
}

// rounds remembers between the two rounds which policies ran and have not seen a later change.
type rounds struct {
	ran, again map[runKey]bool
	last       apis.Object // after the first round
}

func (s *rounds) changed() {
	for k := range s.ran {
		s.again[k] = true
	}
	clear(s.ran)
}

// problem is why a policy could not do its work.
type problem struct {
	policy  *policy
	binding *binding
	err     error
	reason  metav1.StatusReason
}

func (p *problem) message() string {
	if p.binding == nil {
		return fmt.Sprintf("policy %q denied request: %s", p.policy.name, p.err)
	}
	return fmt.Sprintf("policy '%s' with binding '%s' denied request: %s", p.policy.name, p.binding.name, p.err)
}

// Admit runs the policies in the order of their names; each sees what those
// before it made of the object. Which of them run is decided before the first does.
func (p *Mutating) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.Object == nil || p.hooks.idle(p.config.Store, a.Resource) {
		return nil
	}
	sn := p.config.Store.Snapshot()
	all := p.hooks.of(sn, a.Resource)
	if len(all) == 0 {
		return nil
	}
	r := review.New(a, sn, p.config.Catalogue)
	var problems []problem
	failed := func(p *policy, b *binding, err error) {
		problems = append(problems, problem{policy: p, binding: b, err: notConfigured(b, err)})
	}
	var list []run
	if err := runs(&p.config, r, all, failed, func(m *mutatingPolicy, b *binding, v review.Version, params []runtime.Object) error {
		for _, param := range params {
			list = append(list, run{m, b, v, param})
		}
		return nil
	}); err != nil {
		return err
	}
	found, err := p.mutate(ctx, r, list)
	if err != nil {
		return err
	}
	return refusal(a, append(problems, found...))
}

func (p *Mutating) mutate(ctx context.Context, r *review.Request, list []run) ([]problem, error) {
	if len(list) == 0 {
		return nil, nil
	}
	namespace, err := r.NamespaceObject()
	if err != nil {
		return nil, err
	}
	state, _ := r.Memory(mutatingName).(*rounds)
	if state == nil {
		state = &rounds{ran: map[runKey]bool{}, again: map[runKey]bool{}}
		r.Remember(mutatingName, state)
	}
	if r.SecondRound() && !equality.Semantic.DeepEqual(state.last, r.Object) {
		state.changed()
	}
	authorizer := cached.NewCachingAuthorizer(p.config.Authorizer)
	var problems []problem
	for i := range list {
		found, err := p.one(ctx, r, &list[i], state, namespace, authorizer)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	state.last = r.Object.DeepCopyObject().(apis.Object)
	return problems, nil
}

// one runs one policy once. An error ends the request, whatever the policy's
// failure policy; problems are subject to it.
func (p *Mutating) one(ctx context.Context, r *review.Request, u *run, state *rounds, namespace *corev1.Namespace, a authorizer.UnconditionalAuthorizer) ([]problem, error) {
	ctx = u.policy.compiler.CreateContext(ctx) // the policy's variables are found there
	if u.policy.conditions != nil {
		shown, err := r.Show(u.version)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		result := u.policy.conditions.Match(ctx, shown, u.param, a)
		if result.Error != nil {
			return []problem{{&u.policy.policy, u.binding, result.Error, metav1.StatusReasonInvalid}}, nil
		}
		if !result.Matches {
			return nil, nil
		}
	}
	key := u.key()
	if r.SecondRound() && !state.again[key] {
		return nil, nil
	}
	var problems []problem
	before := r.Object.DeepCopyObject()
	for _, patcher := range u.policy.patchers {
		err := p.apply(ctx, r, u, patcher, namespace, a)
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			return nil, status
		}
		if err != nil {
			problems = append(problems, problem{&u.policy.policy, u.binding, err, metav1.StatusReasonInvalid})
		}
	}
	if !equality.Semantic.DeepEqual(before, r.Object) {
		state.changed()
		r.AskAgain()
	}
	if u.policy.again {
		state.ran[key] = true
	}
	return problems, nil
}

// apply changes the object by one mutation of a policy.
func (p *Mutating) apply(ctx context.Context, r *review.Request, u *run, patcher patch.Patcher, namespace *corev1.Namespace, a authorizer.UnconditionalAuthorizer) error {
	shown, err := r.Show(u.version)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	request := patch.Request{
		MatchedResource: u.version.Resource, VersionedAttributes: shown, ObjectInterfaces: objects{r, u.version},
		OptionalVariables: plugincel.OptionalVariableBindings{VersionedParams: u.param, Authorizer: a},
		Namespace:         namespace,
	}
	if request.TypeConverter = u.version.Merge(); request.TypeConverter == nil && p.config.Types != nil {
		request.TypeConverter = p.config.Types()
	}
	patched, err := patcher.Patch(ctx, request, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return err
	}
	obj, err := asKind(r, u.version, patched)
	if err != nil {
		return err
	}
	return r.Replace(u.version, obj)
}

// refusal is the error for the problems of policies that do not fail open.
func refusal(a *admission.Attributes, problems []problem) error {
	var refused *apierrors.StatusError
	for i := range problems {
		x := &problems[i]
		if x.policy.failsOpen() {
			continue
		}
		if refused == nil {
			refused = a.Forbidden(errors.New("admission request denied by policy"))
			refused.ErrStatus.Message = x.message()
			if x.reason != "" {
				refused.ErrStatus.Reason = x.reason
			}
		}
		refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{Message: x.message()})
	}
	if refused == nil {
		return nil
	}
	return refused
}
