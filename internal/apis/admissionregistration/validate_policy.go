package admissionregistration

import (
	"fmt"
	"regexp"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"

	"proa/internal/apis/validate"
)

const (
	maxAuditAnnotations = 20
	maxValueExpression  = 5 * 1024 // bytes
)

// validateValidatingPolicy checks a policy; old is nil on create.
func validateValidatingPolicy(p, old *admissionregistrationv1.ValidatingAdmissionPolicy) field.ErrorList {
	s, at := &p.Spec, field.NewPath("spec")
	x := newExpressions(s.ParamKind, len(s.Variables) > 0)
	same := old != nil && equality.Semantic.DeepEqual(s.ParamKind, old.Spec.ParamKind) && equality.Semantic.DeepEqual(s.MatchConditions, old.Spec.MatchConditions)
	if old != nil {
		x.known = storedInValidating(&old.Spec)
	}
	errs := validateCommon(at, s.FailurePolicy, s.ParamKind, s.MatchConstraints)
	if !same {
		errs = append(errs, validateConditions(at.Child("matchConditions"), s.MatchConditions, s.ParamKind != nil, x.known)...)
	}
	errs = append(errs, x.variables(at.Child("variables"), s.Variables)...)
	if len(s.Validations) == 0 && len(s.AuditAnnotations) == 0 {
		const text = "validations or auditAnnotations must contain at least one item"
		return append(errs, field.Required(at.Child("validations"), text), field.Required(at.Child("auditAnnotations"), text))
	}
	for i := range s.Validations {
		errs = append(errs, x.validation(at.Child("validations").Index(i), &s.Validations[i])...)
	}
	return append(errs, x.annotations(at.Child("auditAnnotations"), p.Name, s.AuditAnnotations)...)
}

func storedInValidating(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) stored {
	var known stored
	known.addConditions(s.MatchConditions)
	for i := range s.Variables {
		insert(&known.validations, s.Variables[i].Expression)
	}
	for i := range s.Validations {
		insert(&known.validations, s.Validations[i].Expression)
		insert(&known.messages, s.Validations[i].MessageExpression)
	}
	for i := range s.AuditAnnotations {
		insert(&known.annotations, s.AuditAnnotations[i].ValueExpression)
	}
	return known
}

// validateMutatingPolicy checks a policy; old is nil on create.
func validateMutatingPolicy(p, old *admissionregistrationv1.MutatingAdmissionPolicy) field.ErrorList {
	s, at := &p.Spec, field.NewPath("spec")
	x := newExpressions(s.ParamKind, true)
	same := false
	if old != nil {
		same = equality.Semantic.DeepEqual(s.ParamKind, old.Spec.ParamKind) && equality.Semantic.DeepEqual(s.MatchConditions, old.Spec.MatchConditions)
		x.known = storedInMutating(&old.Spec)
	}
	errs := validateCommon(at, s.FailurePolicy, s.ParamKind, s.MatchConstraints)
	if s.MatchConstraints != nil {
		errs = append(errs, validateMutableOperations(at.Child("matchConstraints", "resourceRules"), s.MatchConstraints.ResourceRules)...)
	}
	if !same {
		errs = append(errs, validateConditions(at.Child("matchConditions"), s.MatchConditions, s.ParamKind != nil, x.known)...)
	}
	errs = append(errs, x.variables(at.Child("variables"), s.Variables)...)
	if len(s.Mutations) == 0 {
		errs = append(errs, field.Required(at.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range s.Mutations {
		errs = append(errs, x.mutation(at.Child("mutations").Index(i), &s.Mutations[i])...)
	}
	return append(errs, validate.RequiredOneOf(at.Child("reinvocationPolicy"), s.ReinvocationPolicy,
		admissionregistrationv1.NeverReinvocationPolicy, admissionregistrationv1.IfNeededReinvocationPolicy)...)
}

func storedInMutating(s *admissionregistrationv1.MutatingAdmissionPolicySpec) stored {
	var known stored
	known.addConditions(s.MatchConditions)
	for i := range s.Variables {
		insert(&known.validations, s.Variables[i].Expression)
	}
	for i := range s.Mutations {
		if c := s.Mutations[i].ApplyConfiguration; c != nil {
			insert(&known.mutations, c.Expression)
		}
		if j := s.Mutations[i].JSONPatch; j != nil {
			insert(&known.mutations, j.Expression)
		}
	}
	return known
}

// validateCommon checks what both kinds of policies have.
func validateCommon(at *field.Path, failure *admissionregistrationv1.FailurePolicyType, kind *admissionregistrationv1.ParamKind, constraints *admissionregistrationv1.MatchResources) field.ErrorList {
	errs := requiredOneOf(at.Child("failurePolicy"), failure, admissionregistrationv1.Ignore, admissionregistrationv1.Fail)
	if kind != nil {
		errs = append(errs, validateParamKind(at.Child("paramKind"), kind)...)
	}
	if constraints == nil {
		return append(errs, field.Required(at.Child("matchConstraints"), ""))
	}
	errs = append(errs, validateMatchResources(at.Child("matchConstraints"), constraints)...)
	if len(constraints.ResourceRules) == 0 {
		errs = append(errs, field.Required(at.Child("matchConstraints", "resourceRules"), ""))
	}
	return errs
}

func validateParamKind(at *field.Path, k *admissionregistrationv1.ParamKind) field.ErrorList {
	errs := validateAPIVersion(at.Child("apiVersion"), k.APIVersion)
	if k.Kind == "" {
		return append(errs, field.Required(at.Child("kind"), ""))
	}
	if texts := validation.IsDNS1035Label(strings.ToLower(k.Kind)); len(texts) > 0 {
		errs = append(errs, field.Invalid(at.Child("kind"), k.Kind, "may have mixed case, but should otherwise match: "+strings.Join(texts, ",")))
	}
	return errs
}

func validateAPIVersion(at *field.Path, apiVersion string) field.ErrorList {
	if apiVersion == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	group, version, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group, version = "", apiVersion
	}
	if strings.Contains(version, "/") {
		return field.ErrorList{field.Invalid(at, apiVersion, fmt.Sprintf("unexpected GroupVersion string: %v", apiVersion))}
	}
	var errs field.ErrorList
	if texts := validation.IsDNS1123Subdomain(group); group != "" && len(texts) > 0 {
		errs = append(errs, field.Invalid(at, group, strings.Join(texts, ",")))
	}
	if version == "" {
		return append(errs, field.Invalid(at, apiVersion, "version must be specified"))
	}
	if texts := validation.IsDNS1035Label(version); len(texts) > 0 {
		errs = append(errs, field.Invalid(at, version, strings.Join(texts, ",")))
	}
	return errs
}

// expressions checks the expressions of one policy, in the order in which they
// are written: an expression sees the variables before it.
type expressions struct {
	params   bool
	compiler plugincel.Compiler
	known    stored
}

func newExpressions(kind *admissionregistrationv1.ParamKind, variables bool) *expressions {
	x := &expressions{params: kind != nil, compiler: simple()}
	if variables {
		if c, err := plugincel.NewCompositedCompiler(Environment()); err == nil {
			x.compiler = c
		}
	}
	return x
}

func (x *expressions) declare() plugincel.OptionalVariableDeclarations {
	return plugincel.OptionalVariableDeclarations{HasParams: x.params, HasAuthorizer: true}
}

// celIdentifier and celReserved are the names that CEL's grammar allows and keeps for itself.
var (
	celIdentifier = regexp.MustCompile("^[_a-zA-Z][_a-zA-Z0-9]*$")
	celReserved   = sets.New("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function",
		"if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while")
)

func (x *expressions) variables(at *field.Path, variables []admissionregistrationv1.Variable) field.ErrorList {
	var errs field.ErrorList
	for i := range variables {
		v, here := &variables[i], at.Index(i)
		switch {
		case strings.TrimSpace(v.Name) == "":
			errs = append(errs, field.Required(here.Child("name"), "name is not specified"))
		case !celIdentifier.MatchString(v.Name) || celReserved.Has(v.Name):
			errs = append(errs, field.Invalid(here.Child("name"), v.Name, "must be a valid CEL identifier"))
		}
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(here.Child("expression"), "expression is not specified"))
			continue
		}
		composed, ok := x.compiler.(*plugincel.CompositedCompiler)
		if !ok {
			errs = append(errs, field.InternalError(here, fmt.Errorf("variable composition is not allowed")))
			continue
		}
		result := composed.CompileAndStoreVariable(Variable(*v), x.declare(), mode(x.known.validations, v.Expression))
		errs = append(errs, celErrors(here.Child("expression"), v.Expression, result.Error)...)
	}
	return errs
}

func (x *expressions) validation(at *field.Path, v *admissionregistrationv1.Validation) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(v.Expression) == "" {
		errs = append(errs, field.Required(at.Child("expression"), "expression is not specified"))
	} else {
		errs = append(errs, compile(at.Child("expression"), x.compiler, Condition(v.Expression), v.Expression, x.declare(), mode(x.known.validations, v.Expression))...)
	}
	switch {
	case v.MessageExpression == "":
	case strings.TrimSpace(v.MessageExpression) == "":
		errs = append(errs, field.Invalid(at.Child("messageExpression"), v.MessageExpression, "must be non-empty if specified"))
	default:
		declare := plugincel.OptionalVariableDeclarations{HasParams: x.params}
		errs = append(errs, compile(at.Child("messageExpression"), x.compiler, Message(v.MessageExpression), v.MessageExpression, declare, mode(x.known.messages, v.MessageExpression))...)
	}
	switch text := strings.TrimSpace(v.Message); {
	case v.Message != "" && text == "":
		errs = append(errs, field.Invalid(at.Child("message"), v.Message, "message must be non-empty if specified"))
	case strings.ContainsAny(text, "\n\r"):
		errs = append(errs, field.Invalid(at.Child("message"), v.Message, "message must not contain line breaks"))
	}
	return append(errs, optionalOneOf(at.Child("reason"), v.Reason,
		metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge)...)
}

func (x *expressions) annotations(at *field.Path, policy string, annotations []admissionregistrationv1.AuditAnnotation) field.ErrorList {
	var errs field.ErrorList
	if len(annotations) > maxAuditAnnotations {
		errs = append(errs, field.Invalid(at, annotations, fmt.Sprintf("must not have more than %d auditAnnotations", maxAuditAnnotations)))
	}
	seen := sets.New[string]()
	for i := range annotations {
		a, here := &annotations[i], at.Index(i)
		if policy == "" {
			errs = append(errs, field.Invalid(here.Child("key"), a.Key, "requires metadata.name be non-empty"))
		} else {
			errs = append(errs, validate.QualifiedName(here.Child("key"), policy+"/"+a.Key)...)
		}
		value := here.Child("valueExpression")
		switch text := strings.TrimSpace(a.ValueExpression); {
		case text == "":
			errs = append(errs, field.Required(value, "valueExpression is not specified"))
		case len(text) > maxValueExpression:
			errs = append(errs, field.Required(value, fmt.Sprintf("must not exceed %d bytes in length", maxValueExpression)))
		default:
			errs = append(errs, compile(value, x.compiler, Annotation(text), a.ValueExpression, x.declare(), mode(x.known.annotations, a.ValueExpression))...)
		}
		if seen.Has(a.Key) {
			errs = append(errs, field.Duplicate(here.Child("key"), a.Key))
		}
		seen.Insert(a.Key)
	}
	return errs
}

func (x *expressions) mutation(at *field.Path, m *admissionregistrationv1.Mutation) field.ErrorList {
	errs := validate.RequiredOneOf(at.Child("patchType"), m.PatchType, admissionregistrationv1.PatchTypeApplyConfiguration, admissionregistrationv1.PatchTypeJSONPatch)
	apply, patch := at.Child("applyConfiguration"), at.Child("jsonPatch")
	switch m.PatchType {
	case admissionregistrationv1.PatchTypeApplyConfiguration:
		if m.JSONPatch != nil {
			errs = append(errs, field.Invalid(patch, "{jsonPatch}", "must not be specified when patchType is ApplyConfiguration"))
		}
		if m.ApplyConfiguration == nil {
			return append(errs, field.Required(apply, "must be specified when patchType is ApplyConfiguration"))
		}
		errs = append(errs, x.patch(apply, m.ApplyConfiguration.Expression, applyConfiguration)...)
	case admissionregistrationv1.PatchTypeJSONPatch:
		if m.ApplyConfiguration != nil {
			errs = append(errs, field.Invalid(apply, "{applyConfiguration}", "must not be specified when patchType is JSONPatch"))
		}
		if m.JSONPatch == nil {
			return append(errs, field.Required(patch, "must be specified when patchType is JSONPatch"))
		}
		errs = append(errs, x.patch(patch, m.JSONPatch.Expression, jsonPatch)...)
	}
	return errs
}

func (x *expressions) patch(at *field.Path, expression string, kind func(string) *Expression) field.ErrorList {
	text := strings.TrimSpace(expression)
	if text == "" {
		return field.ErrorList{field.Required(at.Child("expression"), "")}
	}
	declare := x.declare()
	declare.HasPatchTypes = true
	return compile(at.Child("expression"), x.compiler, kind(text), text, declare, mode(x.known.mutations, text))
}
