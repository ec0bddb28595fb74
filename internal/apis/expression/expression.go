// Package expression has the CEL environment that all expressions of users are
// compiled in: upstream's, with bounds where upstream's has none.
package expression

import (
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/version"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Environment is that environment. Upstream's libraries compile rules of custom
// resources and conditions of webhooks in the one that they share, however they are
// called; so the bounds are put into that one. Call it before any of them: it takes a
// while the first time.
var Environment = sync.OnceValue(func() *environment.EnvSet {
	shared := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	bounded, err := shared.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{
			cel.Function("quantity", cel.Overload("string_to_quantity", []*cel.Type{cel.StringType}, apiservercel.QuantityType, cel.UnaryBinding(quantity))),
			cel.Function("isQuantity", cel.Overload("is_quantity_string", []*cel.Type{cel.StringType}, cel.BoolType, cel.UnaryBinding(isQuantity))),
		},
	})
	if err != nil {
		panic("the shared CEL environment cannot be extended: " + err.Error())
	}
	*shared = *bounded
	return shared
})

func quantity(arg ref.Val) ref.Val {
	text, ok := arg.Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	q, err := parse(text)
	if err != nil {
		return types.WrapErr(err)
	}
	return apiservercel.Quantity{Quantity: &q}
}

func isQuantity(arg ref.Val) ref.Val {
	text, ok := arg.Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	_, err := parse(text)
	return types.Bool(err == nil)
}

const (
	mostDigits   = 1000 // of a number
	mostExponent = 3    // digits of an exponent
)

// parse reads a quantity that neither to read nor to compare takes long: a dozen
// bytes (1e-999999999) would otherwise keep a processor busy for minutes, whatever
// the cost limit of the expression.
func parse(text string) (resource.Quantity, error) {
	if len(text) > mostDigits {
		return resource.Quantity{}, resource.ErrFormatWrong
	}
	digits := 0 // at the end
	for digits < len(text) && text[len(text)-1-digits] >= '0' && text[len(text)-1-digits] <= '9' {
		digits++
	}
	if rest := text[:len(text)-digits]; digits > mostExponent && rest != "" {
		switch rest[len(rest)-1] {
		case 'e', 'E':
			return resource.Quantity{}, resource.ErrSuffix
		case '-', '+':
			if len(rest) > 1 { // more than the sign of the number
				return resource.Quantity{}, resource.ErrSuffix
			}
		}
	}
	return resource.ParseQuantity(text)
}
