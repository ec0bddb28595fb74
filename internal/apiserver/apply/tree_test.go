package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"proa/internal/apis"
)

// randomSchema is a merge schema with everything that merges differently.
type randomSchema struct {
	rng  *rand.Rand
	root typed.ParseableType
}

func (s *randomSchema) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return s.root.FromUnstructured(obj.(*unstructured.Unstructured).Object, opts...)
}

func (s *randomSchema) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	return &unstructured.Unstructured{Object: v.AsValue().Unstructured().(map[string]any)}, nil
}

var _ managedfields.TypeConverter = (*randomSchema)(nil)

func newRandomSchema(rng *rand.Rand) *randomSchema {
	s := &randomSchema{rng: rng}
	deduced := typed.DeducedParseableType
	text, root := scalarOf(schema.String), "root"
	types := append([]schema.TypeDef{{Name: root, Atom: schema.Atom{Map: &schema.Map{Fields: []schema.StructField{
		{Name: "apiVersion", Type: text}, {Name: "kind", Type: text},
		{Name: "metadata", Type: deduced.TypeRef},
		{Name: "spec", Type: s.object(3)}, {Name: "status", Type: s.object(2)}, {Name: "free", Type: deduced.TypeRef},
	}}}}}, deduced.Schema.Types...)
	s.root = typed.ParseableType{Schema: &schema.Schema{Types: types}, TypeRef: schema.TypeRef{NamedType: &root}}
	return s
}

func scalarOf(s schema.Scalar) schema.TypeRef {
	return schema.TypeRef{Inlined: schema.Atom{Scalar: &s}}
}

func (s *randomSchema) scalar() schema.TypeRef {
	return scalarOf([]schema.Scalar{schema.String, schema.Numeric, schema.Boolean, schema.Untyped}[s.rng.IntN(4)])
}

func (s *randomSchema) relation(granular schema.ElementRelationship) schema.ElementRelationship {
	if s.rng.IntN(4) == 0 {
		return schema.Atomic
	}
	return granular
}

func (s *randomSchema) object(depth int) schema.TypeRef {
	m := &schema.Map{ElementRelationship: s.relation(schema.Separable)}
	for i := range 2 + s.rng.IntN(4) {
		m.Fields = append(m.Fields, schema.StructField{Name: string(rune('a' + i)), Type: s.anyType(depth - 1)})
	}
	if s.rng.IntN(5) == 0 { // unknown fields are preserved
		m.ElementType = typed.DeducedParseableType.TypeRef
	}
	return schema.TypeRef{Inlined: schema.Atom{Map: m}}
}

func (s *randomSchema) anyType(depth int) schema.TypeRef {
	kind := s.rng.IntN(6)
	if depth <= 0 {
		kind = s.rng.IntN(2)
	}
	switch kind {
	case 0:
		return s.scalar()
	case 1:
		return schema.TypeRef{Inlined: schema.Atom{List: &schema.List{ElementType: s.scalar(), ElementRelationship: s.relation(schema.Associative)}}}
	case 2:
		return schema.TypeRef{Inlined: schema.Atom{Map: &schema.Map{ElementType: s.anyType(depth - 1), ElementRelationship: s.relation(schema.Separable)}}}
	case 3:
		item := &schema.Map{Fields: []schema.StructField{
			{Name: "name", Type: scalarOf(schema.String)},
			{Name: "port", Type: scalarOf(schema.Numeric), Default: float64(80)},
			{Name: "value", Type: s.anyType(depth - 1)},
		}}
		return schema.TypeRef{Inlined: schema.Atom{List: &schema.List{
			ElementType: schema.TypeRef{Inlined: schema.Atom{Map: item}}, ElementRelationship: schema.Associative, Keys: []string{"name", "port"},
		}}}
	}
	return s.object(depth)
}

// value returns a value of a type, rarely one of another type.
func (s *randomSchema) value(ref schema.TypeRef) any {
	rng := s.rng
	if ref.NamedType != nil {
		return s.free(2)
	}
	switch a := ref.Inlined; {
	case rng.IntN(40) == 0:
		return nil
	case a.Scalar != nil:
		texts, numbers, flags := "xyz"[rng.IntN(3):][:1], int64(rng.IntN(3)), rng.IntN(2) == 0
		switch *a.Scalar {
		case schema.String:
			return texts
		case schema.Numeric:
			return numbers
		case schema.Boolean:
			return flags
		}
		return []any{texts, numbers, flags, 0.5}[rng.IntN(4)]
	case a.Map != nil:
		m := map[string]any{}
		for _, f := range a.Map.Fields {
			if rng.IntN(3) > 0 {
				m[f.Name] = s.value(f.Type)
			}
		}
		for i := 0; a.Map.ElementType != (schema.TypeRef{}) && i < rng.IntN(4); i++ {
			m[string(rune('k'+rng.IntN(4)))] = s.value(a.Map.ElementType)
		}
		return m
	}
	list := []any{}
	for range rng.IntN(4) {
		list = append(list, s.value(ref.Inlined.List.ElementType))
	}
	return list
}

func (s *randomSchema) free(depth int) any {
	word := func() string { return string(rune('a' + s.rng.IntN(3))) }
	switch n := s.rng.IntN(8); {
	case depth > 0 && n < 4:
		m := map[string]any{}
		for range s.rng.IntN(4) {
			m[word()] = s.free(depth - 1)
		}
		return m
	case n == 4:
		return []any{word(), int64(1)}
	case n == 5:
		return int64(s.rng.IntN(2))
	case n == 6:
		return nil
	}
	return word()
}

func (s *randomSchema) random() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "a", "uid": "u", "labels": s.free(1)},
	}}
	for _, f := range s.root.Schema.Types[0].Map.Fields[3:] {
		if s.rng.IntN(4) > 0 {
			u.Object[f.Name] = s.value(f.Type)
		}
	}
	return u
}

// change replaces some top-level parts of an object.
func (s *randomSchema) change(from *unstructured.Unstructured) *unstructured.Unstructured {
	u, other := from.DeepCopy(), s.random()
	u.SetManagedFields(nil)
	for name, v := range other.Object {
		if old, _ := u.Object[name].(map[string]any); name == "metadata" {
			old["labels"] = v.(map[string]any)["labels"]
		} else if m, ok := v.(map[string]any); ok && old != nil && s.rng.IntN(2) == 0 {
			for name, v := range m {
				old[name] = v
				break
			}
		} else if s.rng.IntN(2) == 0 {
			u.Object[name] = v
		}
	}
	return u
}

// resource is a kind of the schema whose spec has a default.
func (s *randomSchema) resource(ctx context.Context) *apis.Resource {
	spec := s.root.Schema.Types[0].Map.Fields[3].Type.Inlined.Map.Fields[0]
	def := s.value(spec.Type)
	complete := func(u *unstructured.Unstructured) bool {
		fields, ok := u.Object["spec"].(map[string]any)
		if _, given := fields[spec.Name]; !ok || given {
			return true
		}
		fields[spec.Name] = runtime.DeepCopyJSONValue(def)
		return false
	}
	return &apis.Resource{
		Group: "example.com", Version: "v1", Kind: "Widget", Plural: "widgets",
		New:          func() apis.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
		Default:      func(obj apis.Object) { complete(obj.(*unstructured.Unstructured)) },
		Subresources: []apis.Subresource{{Name: "status"}},
		Custom: &apis.Custom{
			Lifetime: ctx, Merge: func() managedfields.TypeConverter { return s },
			Convert: func(obj apis.Object, _ string) (apis.Object, error) { return obj, nil },
			Load: func(obj apis.Object) (apis.Object, error) {
				if loaded := obj.(*unstructured.Unstructured).DeepCopy(); !complete(loaded) {
					return loaded, nil
				}
				return obj, nil
			},
		},
	}
}

// trackRandomly writes to an object of a random schema, and holds what is recorded
// to structured-merge-diff. It counts the writes, and those that were covered.
func trackRandomly(t *testing.T, rng *rand.Rand) (writes, covered int) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newRandomSchema(rng)
	res := s.resource(ctx)
	clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	managers := New(clock)
	var old *unstructured.Unstructured
	for range 5 {
		clock.SetTime(clock.Now().Add(time.Minute))
		m := managers.mustFor(t, res, "")
		who := fmt.Sprint("manager", rng.IntN(2))
		var fast *unstructured.Unstructured
		var from apis.Object = m.empty()
		if old == nil {
			fast = s.random()
		} else {
			m = managers.mustFor(t, res, []string{"", "status"}[rng.IntN(2)])
			fast, from = s.change(old), old
		}
		slow := fast.DeepCopy()
		m.updated(slow, from, who)
		writes++
		done := false
		if old == nil {
			done = m.created(fast, who)
		} else {
			done = m.track(fast, old, who)
		}
		if !done {
			old = slow
			continue
		}
		covered++
		got, _ := json.Marshal(fast.GetManagedFields())
		want, _ := json.Marshal(slow.GetManagedFields())
		if string(got) != string(want) {
			was, _ := json.Marshal(from)
			is, _ := json.Marshal(slow)
			t.Fatalf("from %s\nto   %s\ngot  %s\nwant %s", was, is, got, want)
		}
		old = fast
	}
	return writes, covered
}

func TestWritesUnderAnySchemaAreTrackedAsStructuredMergeDiffDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	writes, covered := 0, 0
	for range 80 {
		w, c := trackRandomly(t, rng)
		writes, covered = writes+w, covered+c
	}
	if covered*5 < writes*2 {
		t.Errorf("only %d of %d writes were covered", covered, writes)
	}
}

func FuzzTracking(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { trackRandomly(t, rand.New(rand.NewPCG(a, b))) })
}
