package apiextensions

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/utils/ptr"
)

// randomDeclared makes a schema of everything that newSound knows and some that it does not.
func randomDeclared(rng *rand.Rand, depth int) internal.JSONSchemaProps {
	maybe := func() bool { return rng.IntN(4) == 0 }
	s := internal.JSONSchemaProps{Nullable: maybe()}
	kinds := []string{"string", "integer", "number", "boolean", "object", "array"}
	s.Type = kinds[rng.IntN(len(kinds))]
	if depth == 0 {
		s.Type = kinds[rng.IntN(4)]
	}
	if maybe() {
		s.Minimum, s.Maximum = ptr.To(float64(rng.IntN(2))), ptr.To(float64(1+rng.IntN(3)))
		s.ExclusiveMinimum = maybe()
		s.MinLength, s.MaxLength = ptr.To(int64(rng.IntN(2))), ptr.To(int64(1+rng.IntN(3)))
		s.MinItems, s.MaxItems = ptr.To(int64(rng.IntN(2))), ptr.To(int64(1+rng.IntN(3)))
		s.MinProperties, s.MaxProperties = ptr.To(int64(rng.IntN(2))), ptr.To(int64(1+rng.IntN(3)))
	}
	if s.Type == "string" && maybe() {
		s.Pattern = "^[ax]"
	}
	if s.Type == "string" && maybe() {
		s.Enum = []internal.JSON{"a", "x"}
	}
	if s.Type == "string" && maybe() {
		s.Type, s.XIntOrString = "", true
		s.AnyOf = nil
	}
	switch {
	case s.Type == "array":
		items := randomDeclared(rng, depth-1)
		s.Items = &internal.JSONSchemaPropsOrArray{Schema: &items}
	case s.Type == "object" && maybe():
		of := randomDeclared(rng, depth-1)
		s.AdditionalProperties = &internal.JSONSchemaPropsOrBool{Schema: &of, Allows: true}
	case s.Type == "object":
		s.Properties = map[string]internal.JSONSchemaProps{}
		for range rng.IntN(4) {
			s.Properties[string(rune('a'+rng.IntN(3)))] = randomDeclared(rng, depth-1)
		}
		if maybe() {
			s.Required = []string{"a"}
		}
	}
	return s
}

// valueFor makes a value that the schema may accept.
func valueFor(rng *rand.Rand, s *internal.JSONSchemaProps) any {
	if rng.IntN(12) == 0 {
		return []any{nil, "a", int64(1), 1.5, true, map[string]any{}, []any{}}[rng.IntN(7)]
	}
	switch s.Type {
	case "integer":
		return int64(rng.IntN(4))
	case "number":
		return []any{int64(1), 1.5, 2.0}[rng.IntN(3)]
	case "boolean":
		return true
	case "array":
		list := make([]any, rng.IntN(3))
		for i := range list {
			list[i] = valueFor(rng, s.Items.Schema)
		}
		return list
	case "object":
		m := map[string]any{}
		for name, field := range s.Properties {
			if rng.IntN(4) > 0 {
				m[name] = valueFor(rng, &field)
			}
		}
		if s.AdditionalProperties != nil {
			m["b"] = valueFor(rng, s.AdditionalProperties.Schema)
		}
		return m
	}
	return []any{"a", "x", "", "abcd", "é"}[rng.IntN(5)]
}

func TestWhatIsSoundIsValid(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	held, refused := 0, 0
	for range 4000 {
		s := randomDeclared(rng, 3)
		full, _, err := validation.NewSchemaValidator(&s)
		if err != nil {
			continue
		}
		quick := newSound(&s)
		for range 4 {
			value := valueFor(rng, &s)
			if !quick.holds(value) {
				refused++
				continue
			}
			held++
			if errs := validation.ValidateCustomResource(nil, value, full); len(errs) > 0 {
				schema, _ := json.Marshal(s)
				t.Fatalf("%v is sound, but %v\n%s", value, errs.ToAggregate(), schema)
			}
		}
	}
	if held < 2000 || refused < 500 {
		t.Errorf("%d values were sound, %d not", held, refused)
	}
}
