package validatingadmissionpolicy

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	openapicel "k8s.io/apiserver/pkg/cel/openapi"

	"proa/internal/apis"
	"proa/internal/apis/admissionregistration"
	"proa/internal/apiserver/openapi"
)

// maxKinds is how many kinds a policy is checked against.
const maxKinds = 10

// checker compiles expressions with the types that objects and parameters have.
type checker struct{ catalogue *apis.Catalogue }

// typed is a kind and its type in CEL, nil for one that is not known.
type typed struct {
	kind schema.GroupVersionKind
	decl *apiservercel.DeclType
}

// check returns a warning for each validation and message expression that does
// not fit one of the kinds.
func (c checker) check(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) []admissionregistrationv1.ExpressionWarning {
	params := typed{}
	if s.ParamKind != nil {
		params.kind = schema.FromAPIVersionAndKind(s.ParamKind.APIVersion, s.ParamKind.Kind)
		params.decl = c.declare(params.kind)
	}
	var compilers []compiler
	for _, gvk := range c.kinds(s) {
		if decl := c.declare(gvk); decl != nil {
			compilers = append(compilers, compiler{object: typed{gvk, decl}, params: params, variables: s.Variables})
		}
	}
	var warnings []admissionregistrationv1.ExpressionWarning
	warn := func(at *field.Path, expression string) {
		if text := explain(compilers, expression); text != "" {
			warnings = append(warnings, admissionregistrationv1.ExpressionWarning{FieldRef: at.String(), Warning: text})
		}
	}
	for i := range s.Validations {
		at := field.NewPath("spec", "validations").Index(i)
		warn(at.Child("expression"), s.Validations[i].Expression)
		if text := s.Validations[i].MessageExpression; text != "" {
			warn(at.Child("messageExpression"), text)
		}
	}
	return warnings
}

// kinds are those that the rules name without a wildcard, in order.
func (c checker) kinds(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) []schema.GroupVersionKind {
	if s.MatchConstraints == nil {
		return nil
	}
	var found []schema.GroupVersionKind
	for i := range s.MatchConstraints.ResourceRules {
		r := &s.MatchConstraints.ResourceRules[i].Rule
		if wild(r.APIGroups) || wild(r.APIVersions) {
			continue
		}
		for _, resource := range r.Resources {
			if strings.ContainsAny(resource, "*/") {
				continue
			}
			found = append(found, c.named(r, resource)...)
		}
	}
	slices.SortFunc(found, func(a, b schema.GroupVersionKind) int { return strings.Compare(orderOf(a), orderOf(b)) })
	found = slices.Compact(found)
	return found[:min(len(found), maxKinds)]
}

func orderOf(k schema.GroupVersionKind) string { return k.Group + "\x00" + k.Version + "\x00" + k.Kind }

func wild(values []string) bool {
	return slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, "*") })
}

func (c checker) named(r *admissionregistrationv1.Rule, resource string) (found []schema.GroupVersionKind) {
	for _, group := range r.APIGroups {
		for _, v := range r.APIVersions {
			view, ok := c.catalogue.Lookup(schema.GroupVersionResource{Group: group, Version: v, Resource: resource})
			if !ok {
				continue
			}
			kind := view.Kind
			if view.Served != nil {
				kind = view.Served.Kind
			}
			found = append(found, schema.GroupVersionKind{Group: group, Version: v, Kind: kind})
		}
	}
	return found
}

// declare returns the type of a kind, nil when it cannot be told.
func (c checker) declare(gvk schema.GroupVersionKind) *apiservercel.DeclType {
	s, known, err := openapi.Schema(c.catalogue, gvk)
	if err != nil {
		slog.Warn("no schema to check expressions with", "kind", gvk, "err", err)
	}
	if !known {
		return nil
	}
	decl := common.SchemaDeclType(&openapicel.Schema{Schema: s}, true)
	if decl == nil {
		return nil
	}
	return decl.MaybeAssignTypeName(strings.Join([]string{gvk.Kind, gvk.Version, strings.ReplaceAll(gvk.Group, ".", "_")}, "_"))
}

// explain says what is wrong with an expression, for each kind that it does not fit.
func explain(compilers []compiler, expression string) string {
	var texts []string
	for i := range compilers {
		if text := compilers[i].complain(expression); text != "" {
			texts = append(texts, fmt.Sprintf("%v: %s\n", compilers[i].object.kind, text))
		}
	}
	return strings.Join(texts, "\n")
}

// compiler knows the types of one kind of objects. It implements
// plugincel.Compiler for the variables of the policy, whose types it finds out.
type compiler struct {
	object, params typed
	variables      []admissionregistrationv1.Variable

	env *plugincel.CompositedCompiler // made when it is first needed
}

func (c *compiler) complain(expression string) string {
	if c.env == nil {
		if err := c.prepare(); err != nil {
			return "type checking error: " + err.Error()
		}
	}
	if err := c.CompileCELExpression(admissionregistration.Condition(expression), plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions).Error; err != nil {
		return err.Error()
	}
	return ""
}

func (c *compiler) prepare() error {
	requestType, namespaceType := plugincel.BuildRequestType(), plugincel.BuildNamespaceType()
	variables := []cel.EnvOption{
		cel.Variable(plugincel.RequestVarName, requestType.CelType()),
		cel.Variable(plugincel.NamespaceVarName, namespaceType.CelType()),
		cel.Variable(plugincel.ObjectVarName, c.object.decl.CelType()),
		cel.Variable(plugincel.OldObjectVarName, c.object.decl.CelType()),
		cel.Variable(plugincel.AuthorizerVarName, library.AuthorizerType),
		cel.Variable(plugincel.RequestResourceAuthorizerVarName, library.ResourceCheckType),
	}
	declared := []*apiservercel.DeclType{requestType, namespaceType, c.object.decl}
	switch {
	case c.params.decl != nil:
		variables = append(variables, cel.Variable(plugincel.ParamsVarName, c.params.decl.CelType()))
		if c.params.kind != c.object.kind {
			declared = append(declared, c.params.decl)
		}
	case !c.params.kind.Empty():
		variables = append(variables, cel.Variable(plugincel.ParamsVarName, cel.DynType))
	}
	base, err := admissionregistration.Environment().Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: variables, DeclTypes: declared,
	})
	if err != nil {
		return err
	}
	if c.env, err = plugincel.NewCompositedCompilerForTypeChecking(base); err != nil {
		return err
	}
	c.env.Compiler = c
	for _, v := range c.variables {
		c.env.CompileAndStoreVariable(admissionregistration.Variable(v), plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions)
	}
	return nil
}

// CompileCELExpression finds out an expression's type. It makes no program.
func (c *compiler) CompileCELExpression(e plugincel.ExpressionAccessor, _ plugincel.OptionalVariableDeclarations, mode environment.Type) plugincel.CompilationResult {
	failed := func(t apiservercel.ErrorType, detail string) plugincel.CompilationResult {
		return plugincel.CompilationResult{ExpressionAccessor: e, Error: &apiservercel.Error{Type: t, Detail: detail}}
	}
	env, err := c.env.Env(mode)
	if err != nil {
		return failed(apiservercel.ErrorTypeInternal, err.Error())
	}
	ast, issues := env.Compile(e.GetExpression())
	if issues != nil {
		return failed(apiservercel.ErrorTypeInvalid, issues.String())
	}
	return plugincel.CompilationResult{OutputType: ast.OutputType()}
}
