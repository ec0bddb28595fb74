// Package expr evaluates the CEL of simulation documents over objects as JSON
// trees. Besides CEL's own functions it has KWOK's: Now, Rand, UnixSecond,
// SinceSecond and Quantity, whose value is a plain number.
package expr

import (
	"fmt"
	"math/rand"
	"reflect"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Config of an Env.
type Config struct {
	Now       func() time.Time // required
	Variables []string
	// Methods are functions that take a variable's object and names, such as
	// pod.Usage("cpu", container.name), and give a number.
	Methods map[string]func(object any, names []string) (float64, error)
}

// Env compiles expressions.
type Env struct{ env *cel.Env }

// Program is a compiled expression, safe for concurrent use.
type Program struct{ program cel.Program }

// New returns an environment.
func New(c Config) (*Env, error) {
	options := []cel.EnvOption{
		ext.Strings(), ext.Math(),
		cel.CrossTypeNumericComparisons(true),
		nullary("Now", "now", cel.TimestampType, func() ref.Val { return types.Timestamp{Time: c.Now()} }),
		nullary("Rand", "rand", cel.DoubleType, func() ref.Val { return types.Double(rand.Float64()) }),
		unary("Quantity", cel.DoubleType, quantity),
		unary("UnixSecond", cel.DoubleType, unixSecond),
		unary("SinceSecond", cel.DoubleType, func(v ref.Val) ref.Val { return sinceSecond(v, c.Now()) }),
	}
	for _, name := range c.Variables {
		options = append(options, cel.Variable(name, cel.DynType))
	}
	for name, method := range c.Methods {
		options = append(options, methods(name, method))
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, err
	}
	return &Env{env}, nil
}

// Compile checks an expression.
func (e *Env) Compile(text string) (*Program, error) {
	ast, issues := e.env.Compile(text)
	if issues.Err() != nil {
		return nil, fmt.Errorf("cel %q: %w", text, issues.Err())
	}
	program, err := e.env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(1<<20))
	if err != nil {
		return nil, fmt.Errorf("cel %q: %w", text, err)
	}
	return &Program{program}, nil
}

// Eval gives a Go value: bool, int64, float64, string, time.Time, time.Duration,
// or what else the expression's type is in Go.
func (p *Program) Eval(vars map[string]any) (any, error) {
	out, _, err := p.program.Eval(vars)
	if err != nil {
		return nil, err
	}
	return out.Value(), nil
}

// Number evaluates to a number.
func (p *Program) Number(vars map[string]any) (float64, error) {
	v, err := p.Eval(vars)
	if err != nil {
		return 0, err
	}
	switch t := v.(type) {
	case float64:
		return t, nil
	case int64:
		return float64(t), nil
	case uint64:
		return float64(t), nil
	case bool:
		if t {
			return 1, nil
		}
		return 0, nil
	case string:
		return parseQuantity(t)
	}
	return 0, fmt.Errorf("%T is no number", v)
}

func nullary(name, alias string, result *cel.Type, call func() ref.Val) cel.EnvOption {
	return func(e *cel.Env) (*cel.Env, error) {
		for _, n := range []string{name, alias} {
			if n == "rand" {
				continue
			}
			option := cel.Function(n, cel.Overload("simulate_"+n, nil, result,
				cel.FunctionBinding(func(...ref.Val) ref.Val { return call() }), cel.OverloadIsNonStrict()))
			var err error
			if e, err = option(e); err != nil {
				return nil, err
			}
		}
		return e, nil
	}
}

// unary is a function that is also a method.
func unary(name string, result *cel.Type, call func(ref.Val) ref.Val) cel.EnvOption {
	return cel.Function(name,
		cel.Overload("simulate_"+name, []*cel.Type{cel.DynType}, result, cel.UnaryBinding(call)),
		cel.MemberOverload("simulate_member_"+name, []*cel.Type{cel.DynType}, result, cel.UnaryBinding(call)))
}

func methods(name string, call func(object any, names []string) (float64, error)) cel.EnvOption {
	binding := cel.FunctionBinding(func(args ...ref.Val) ref.Val {
		names := make([]string, 0, len(args)-1)
		for _, a := range args[1:] {
			text, _ := a.Value().(string)
			names = append(names, text)
		}
		v, err := call(native(args[0]), names)
		if err != nil {
			return types.NewErr("%s: %v", name, err)
		}
		return types.Double(v)
	})
	var overloads []cel.FunctionOpt
	for n, args := range [][]*cel.Type{
		{cel.DynType}, {cel.DynType, cel.StringType}, {cel.DynType, cel.StringType, cel.StringType},
	} {
		overloads = append(overloads, cel.MemberOverload(fmt.Sprintf("simulate_%s_%d", name, n), args, cel.DoubleType, binding))
	}
	return cel.Function(name, overloads...)
}

func native(v ref.Val) any {
	if tree, err := v.ConvertToNative(reflect.TypeFor[map[string]any]()); err == nil {
		return tree
	}
	return v.Value()
}

func parseQuantity(text string) (float64, error) {
	q, err := resource.ParseQuantity(text)
	return q.AsApproximateFloat64(), err
}

func quantity(v ref.Val) ref.Val {
	switch t := v.Value().(type) {
	case string:
		n, err := parseQuantity(t)
		if err != nil {
			return types.NewErr("quantity %q: %v", t, err)
		}
		return types.Double(n)
	case float64:
		return types.Double(t)
	case int64:
		return types.Double(t)
	}
	return types.NewErr("no quantity: %v", v.Type())
}

// at is a time, or the creation of an object.
func at(v ref.Val) (time.Time, error) {
	switch t := v.Value().(type) {
	case time.Time:
		return t, nil
	case string:
		return time.Parse(time.RFC3339Nano, t)
	}
	tree, _ := native(v).(map[string]any)
	meta, _ := tree["metadata"].(map[string]any)
	created, _ := meta["creationTimestamp"].(string)
	return time.Parse(time.RFC3339Nano, created)
}

func unixSecond(v ref.Val) ref.Val {
	t, err := at(v)
	if err != nil {
		return types.NewErr("%v", err)
	}
	return types.Double(float64(t.UnixNano()) / float64(time.Second))
}

func sinceSecond(v ref.Val, now time.Time) ref.Val {
	t, err := at(v)
	if err != nil {
		return types.NewErr("%v", err)
	}
	return types.Double(now.Sub(t).Seconds())
}
