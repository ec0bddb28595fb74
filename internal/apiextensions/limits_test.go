package apiextensions_test

import (
	"runtime"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestALargeDefinitionCostsInProportionToItsSize defines kinds by very long
// expressions and writes objects of them. What that takes must not grow faster than
// the expressions do. Memory stands for time, too: it is what can be counted.
func TestALargeDefinitionCostsInProportionToItsSize(t *testing.T) {
	for name, c := range map[string]struct {
		parts  int // of the longer expression
		schema func(parts int) string
		atMost uint64 // bytes for each part
	}{
		"alternatives of a regular expression": {60_000, func(n int) string {
			return "pattern: '^(" + strings.Repeat("ab|", n) + "a)$'"
		}, 6 << 10},
		"a sequence in a regular expression": {100_000, func(n int) string {
			return "pattern: '^(" + strings.Repeat("b?", n) + "a)$'"
		}, 6 << 10},
		"operators of a rule": {19_900, func(n int) string {
			return "x-kubernetes-validations: [{rule: '" + strings.Repeat("0<1&&", n) + "true'}]"
		}, 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			half, whole := spent(t, c.schema(c.parts/2)), spent(t, c.schema(c.parts))
			if whole > 3*half {
				t.Errorf("%d bytes for %d parts, %d for half of them", whole, c.parts, half)
			}
			if each := whole / uint64(c.parts); each > c.atMost {
				t.Errorf("%d bytes for each of %d parts", each, c.parts)
			}
			t.Logf("%d MiB for %d parts", whole>>20, c.parts)
		})
	}
}

// spent is how many bytes it takes to define a kind whose spec.text has a schema,
// and to write to an object of it.
func spent(t *testing.T, schema string) uint64 {
	t.Helper()
	w := newWorld(t)
	w.establish(another(t, "small.example.com", "smalls", "Small", spec(size))) // what the first definition takes is not counted
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.establish(definition(t, "Namespaced", spec("count: {type: integer}\ntext:\n  type: string\n  maxLength: 10\n  "+schema)))
	made := w.create("spec: {text: a}")
	for i := range 3 {
		made.Object["spec"].(map[string]any)["count"] = int64(i)
		var err error
		if made, err = w.in("v1", "default").Update(w.ctx, made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
