package expression

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/cel/environment"
)

func TestQuantitiesAreReadInNoTime(t *testing.T) {
	Environment()
	// what upstream's libraries get
	env, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).StoredExpressionsEnv().Extend(cel.Variable("self", cel.StringType))
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.Compile(`isQuantity(self) && quantity(self).isGreaterThan(quantity("1"))`)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := env.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"1e-999999999": false, "1e999999999": false, "1E+99999": false, "-1e-2147483647": false, strings.Repeat("1", 5000): false,
		"2": true, "1e3": true, "1500m": true, "+12345678": true, "-12345678": false, "100Mi": true, "1E": true, "x": false, "": false,
	} {
		got, _, err := program.Eval(map[string]any{"self": text})
		if err != nil || got != types.Bool(want) {
			t.Errorf("%.20q: %v, %v", text, got, err)
		}
	}
}

// What passes means what it means to upstream's.
func FuzzQuantity(f *testing.F) {
	for _, seed := range []string{"1", "-1", "+1234567", "1e3", "1E-999", ".5Gi", "1e+3", "100m", "1-2", "--1234"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parse(text)
		if err == resource.ErrSuffix || err == resource.ErrFormatWrong {
			return
		}
		want, wantErr := resource.ParseQuantity(text)
		if (err == nil) != (wantErr == nil) || err == nil && got.Cmp(want) != 0 {
			t.Errorf("%q: %v, %v; want %v, %v", text, got, err, want, wantErr)
		}
	})
}
