package admissionregistration

import (
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"proa/internal/apis/expression"
	"proa/internal/apis/validate"
)

// Expression is one CEL expression of a policy or webhook and what it may evaluate to.
type Expression struct {
	Name    string // of a variable, "" otherwise
	Text    string
	Returns []*cel.Type
}

func (e *Expression) GetExpression() string { return e.Text }

func (e *Expression) GetName() string { return e.Name }

func (e *Expression) ReturnTypes() []*cel.Type { return e.Returns }

// Condition, Message, Annotation, Value and the two patches are expressions by
// what they return.
func Condition(text string) *Expression {
	return &Expression{Text: text, Returns: []*cel.Type{cel.BoolType}}
}

func Message(text string) *Expression {
	return &Expression{Text: text, Returns: []*cel.Type{cel.StringType}}
}

func Annotation(text string) *Expression {
	return &Expression{Text: text, Returns: []*cel.Type{cel.StringType, cel.NullType}}
}

// Variable may be of any type.
func Variable(v admissionregistrationv1.Variable) *Expression {
	return &Expression{Name: v.Name, Text: v.Expression, Returns: []*cel.Type{cel.AnyType, cel.DynType}}
}

func applyConfiguration(text string) *Expression {
	return &Expression{Text: text, Returns: []*cel.Type{types.NewObjectType("Object")}}
}

func jsonPatch(text string) *Expression {
	return &Expression{Text: text, Returns: []*cel.Type{cel.ListType(types.NewObjectType("JSONPatch"))}}
}

// Environment is the CEL environment of admission expressions.
func Environment() *environment.EnvSet { return expression.Environment() }

// simple compiles expressions that know no variables; it keeps no state.
var simple = sync.OnceValue(func() plugincel.Compiler { return plugincel.NewCompiler(Environment()) })

// stored are the expressions of the object that an update replaces. They are
// compiled as they were when they were written, so that a newer server does not
// refuse what is stored already.
type stored struct {
	conditions, validations, messages, annotations, mutations sets.Set[string]
}

func insert(into *sets.Set[string], expression string) {
	if *into == nil {
		*into = sets.New[string]()
	}
	into.Insert(expression)
}

func (s *stored) addConditions(conditions []admissionregistrationv1.MatchCondition) {
	for i := range conditions {
		insert(&s.conditions, conditions[i].Expression)
	}
}

func mode(known sets.Set[string], expression string) environment.Type {
	if known.Has(expression) {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

// compile checks one expression and reports it as shown.
func compile(at *field.Path, c plugincel.Compiler, e *Expression, shown string, declare plugincel.OptionalVariableDeclarations, m environment.Type) field.ErrorList {
	return celErrors(at, shown, c.CompileCELExpression(e, declare, m).Error)
}

func celErrors(at *field.Path, shown string, err *apiservercel.Error) field.ErrorList {
	if err == nil {
		return nil
	}
	switch err.Type {
	case apiservercel.ErrorTypeRequired:
		return field.ErrorList{field.Required(at, err.Detail)}
	case apiservercel.ErrorTypeInvalid:
		return field.ErrorList{field.Invalid(at, shown, err.Detail)}
	case apiservercel.ErrorTypeInternal:
		return field.ErrorList{field.InternalError(at, err)}
	}
	return field.ErrorList{field.InternalError(at, fmt.Errorf("unsupported error type: %w", err))}
}

const maxConditions = 64

// validateConditions checks match conditions, which see params where a policy has them.
func validateConditions(at *field.Path, conditions []admissionregistrationv1.MatchCondition, params bool, known stored) field.ErrorList {
	var errs field.ErrorList
	if len(conditions) > maxConditions {
		errs = append(errs, field.TooMany(at, len(conditions), maxConditions))
	}
	declare := plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}
	seen := sets.New[string]()
	for i := range conditions {
		c, here := &conditions[i], at.Index(i)
		if text := strings.TrimSpace(c.Expression); text == "" {
			errs = append(errs, field.Required(here.Child("expression"), ""))
		} else {
			errs = append(errs, compile(here.Child("expression"), simple(), Condition(text), text, declare, mode(known.conditions, text))...)
		}
		if c.Name == "" {
			errs = append(errs, field.Required(here.Child("name"), ""))
			continue
		}
		errs = append(errs, validate.QualifiedName(here.Child("name"), c.Name)...)
		if seen.Has(c.Name) {
			errs = append(errs, field.Duplicate(here.Child("name"), c.Name))
		}
		seen.Insert(c.Name)
	}
	return errs
}
