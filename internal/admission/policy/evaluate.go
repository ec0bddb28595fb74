package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	celtypes "github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8sadmission "k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"proa/internal/admission/review"
	"proa/internal/apis"
	"proa/internal/apis/admissionregistration"
)

// validatingPolicy is a policy whose expressions are compiled.
type validatingPolicy struct {
	policy
	spec       *admissionregistrationv1.ValidatingAdmissionPolicySpec
	conditions matchconditions.Matcher // nil: none

	validations, messages, annotations plugincel.ConditionEvaluator
}

func (p *policy) base() *policy { return p }

func compileValidating(obj apis.Object) *validatingPolicy {
	o := obj.(*admissionregistrationv1.ValidatingAdmissionPolicy)
	s := &o.Spec
	p := &validatingPolicy{policy: policyOf(o.Name, s.FailurePolicy, s.ParamKind, s.MatchConstraints), spec: s}
	declare := plugincel.OptionalVariableDeclarations{HasParams: s.ParamKind != nil, HasAuthorizer: true}
	compiler, err := compilerWith(s.Variables, declare)
	if err != nil {
		p.broken = err
		return p
	}
	p.conditions = compileConditions(compiler, s.MatchConditions, s.FailurePolicy, declare, o.Name)
	validations, messages := make([]plugincel.ExpressionAccessor, len(s.Validations)), make([]plugincel.ExpressionAccessor, len(s.Validations))
	for i := range s.Validations {
		validations[i] = admissionregistration.Condition(s.Validations[i].Expression)
		if text := s.Validations[i].MessageExpression; text != "" {
			messages[i] = admissionregistration.Message(text)
		}
	}
	annotations := make([]plugincel.ExpressionAccessor, len(s.AuditAnnotations))
	for i := range s.AuditAnnotations {
		annotations[i] = admissionregistration.Annotation(s.AuditAnnotations[i].ValueExpression)
	}
	p.validations = compiler.CompileCondition(validations, declare, environment.StoredExpressions)
	p.annotations = compiler.CompileCondition(annotations, declare, environment.StoredExpressions)
	declare.HasAuthorizer = false
	p.messages = compiler.CompileCondition(messages, declare, environment.StoredExpressions)
	return p
}

// compilerWith returns a compiler that knows a policy's variables.
func compilerWith(variables []admissionregistrationv1.Variable, declare plugincel.OptionalVariableDeclarations) (*plugincel.CompositedCompiler, error) {
	compiler, err := plugincel.NewCompositedCompiler(admissionregistration.Environment())
	if err != nil {
		return nil, fmt.Errorf("failed to initialize CEL compiler: %w", err)
	}
	for _, v := range variables {
		compiler.CompileAndStoreVariable(admissionregistration.Variable(v), declare, environment.StoredExpressions)
	}
	return compiler, nil
}

func compileConditions(c *plugincel.CompositedCompiler, conditions []admissionregistrationv1.MatchCondition,
	failure *admissionregistrationv1.FailurePolicyType, declare plugincel.OptionalVariableDeclarations, name string) matchconditions.Matcher {
	if len(conditions) == 0 {
		return nil
	}
	list := make([]plugincel.ExpressionAccessor, len(conditions))
	for i := range conditions {
		list[i] = (*matchconditions.MatchCondition)(&conditions[i])
	}
	return matchconditions.NewMatcher(c.CompileCondition(list, declare, environment.StoredExpressions), failure, "policy", "validate", name)
}

// decision is what one validation says.
type decision struct {
	denied  bool
	message string
	reason  metav1.StatusReason // "": an error
	err     error               // why the rule could not be judged
	took    time.Duration
}

// annotation is one value for the audit event, or why there is none.
type annotation struct{ key, value, err string }

// evaluation is what one run of a policy says. An empty one lets the write pass.
type evaluation struct {
	decisions   []decision
	annotations []annotation
}

// errored is the evaluation of a policy that could not run.
func (p *validatingPolicy) errored(err error) evaluation {
	return evaluation{decisions: []decision{{denied: !p.failsOpen(), message: err.Error(), err: err}}}
}

// evaluate runs the policy on a write with one parameter, nil for none.
func (p *validatingPolicy) evaluate(ctx context.Context, v review.Version, shown *k8sadmission.VersionedAttributes, param runtime.Object, namespace *corev1.Namespace, a authorizer.UnconditionalAuthorizer) evaluation {
	if p.conditions != nil {
		result := p.conditions.Match(ctx, shown, param, a)
		if result.Error != nil {
			return p.errored(result.Error)
		}
		if !result.Matches {
			return evaluation{}
		}
	}
	request := plugincel.CreateAdmissionRequest(shown.Attributes, metav1.GroupVersionResource(v.Resource), metav1.GroupVersionKind(v.Kind))
	ns := plugincel.CreateNamespaceObject(namespace)
	all := plugincel.OptionalVariableBindings{VersionedParams: param, Authorizer: a}
	results, budget, err := p.validations.ForInput(ctx, shown, request, all, ns, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return p.errored(err)
	}
	texts, _, textErr := p.messages.ForInput(ctx, shown, request, plugincel.OptionalVariableBindings{VersionedParams: param}, ns, budget)
	out := evaluation{decisions: make([]decision, len(results))}
	for i := range results {
		var text plugincel.EvaluationResult
		if i < len(texts) {
			text = texts[i]
		}
		out.decisions[i] = p.decide(&p.spec.Validations[i], results[i], text, textErr)
	}
	values, _, err := p.annotations.ForInput(ctx, shown, request, plugincel.OptionalVariableBindings{VersionedParams: param}, namespace, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return p.errored(err)
	}
	for i := range values {
		if n, ok := p.annotate(&p.spec.AuditAnnotations[i], values[i]); ok {
			out.annotations = append(out.annotations, n)
		}
	}
	return out
}

func (p *validatingPolicy) decide(v *admissionregistrationv1.Validation, result, text plugincel.EvaluationResult, textErr error) decision {
	switch {
	case result.Error != nil:
		return decision{denied: !p.failsOpen(), message: result.Error.Error(), err: result.Error, took: result.Elapsed}
	case errors.Is(textErr, apiservercel.ErrInternal), errors.Is(textErr, apiservercel.ErrOutOfBudget):
		return decision{denied: !p.failsOpen(), message: fmt.Sprintf("failed messageExpression: %s", textErr), err: textErr, took: result.Elapsed}
	case result.EvalResult == celtypes.True:
		return decision{}
	}
	d := decision{denied: true, reason: metav1.StatusReasonInvalid, message: messageOf(v, text), took: result.Elapsed}
	if v.Reason != nil {
		d.reason = *v.Reason
	}
	return d
}

// messageOf prefers what the message expression says, then the fixed message,
// then the expression itself.
func messageOf(v *admissionregistrationv1.Validation, text plugincel.EvaluationResult) string {
	if text.Error == nil && text.EvalResult != nil {
		said, _ := text.EvalResult.Value().(string)
		said = strings.TrimSpace(said)
		if said != "" && len(said) <= celconfig.MaxEvaluatedMessageExpressionSizeBytes && !strings.Contains(said, "\n") {
			return said
		}
	}
	if v.Message != "" {
		return strings.TrimSpace(v.Message)
	}
	return fmt.Sprintf("failed expression: %v", strings.TrimSpace(v.Expression))
}

// annotate returns false for a value that is not to be recorded.
func (p *validatingPolicy) annotate(a *admissionregistrationv1.AuditAnnotation, result plugincel.EvaluationResult) (annotation, bool) {
	if result.Error != nil {
		return annotation{key: a.Key, err: result.Error.Error()}, !p.failsOpen()
	}
	switch value := result.EvalResult.(type) {
	case celtypes.String:
		text := strings.TrimSpace(string(value))
		return annotation{key: a.Key, value: text}, text != ""
	case celtypes.Null:
		return annotation{}, false
	}
	return annotation{key: a.Key, err: fmt.Sprintf("valueExpression '%v' resulted in unsupported return type: %v. Return type must be either string or null.",
		a.ValueExpression, result.EvalResult.Type())}, true
}
