package apply

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
)

// configure makes a configuration, mostly one without a fault.
func (s *randomSchema) configure(c *customTracker) *unstructured.Unstructured {
	for tries := s.rng.IntN(20); ; tries-- {
		config := s.random()
		if tries <= 0 || c.valid(config) {
			unstructured.RemoveNestedField(config.Object, "metadata", "uid")
			return config
		}
	}
}

// applyRandomly lets managers apply to an object of a random schema, by force and
// without, beside others that update it, and holds every step to
// structured-merge-diff. It counts the applies, and those that were covered.
func applyRandomly(t *testing.T, rng *rand.Rand) (applies, covered int) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newRandomSchema(rng)
	res := s.resource(ctx)
	clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	managers := New(clock)
	configs := map[string]*unstructured.Unstructured{}
	var live *unstructured.Unstructured
	for range 8 {
		clock.SetTime(clock.Now().Add(time.Minute))
		m := managers.mustFor(t, res, "")
		if live != nil && rng.IntN(4) == 0 {
			m = managers.mustFor(t, res, "status")
		}
		who := []string{"one", "two", "three"}[rng.IntN(3)]
		if live != nil && rng.IntN(4) == 0 {
			other := s.change(live)
			m.Updated(other, live, who)
			live = other
			continue
		}
		config := configs[who]
		if config == nil || rng.IntN(4) == 0 {
			config = s.configure(m.custom)
		} else {
			config = config.DeepCopy()
			edit(rng, config.Object)
		}
		configs[who] = config
		var from apis.Object
		if live != nil {
			from = live
		}
		next, fast := m.compareApply(t, from, config, who, rng.IntN(3) > 0)
		if t.Failed() {
			t.FailNow()
		}
		if next == nil {
			continue
		}
		applies++
		if fast {
			covered++
		}
		next.SetUID("u")
		live = next.(*unstructured.Unstructured)
	}
	return applies, covered
}

func TestApplyingUnderAnySchemaIsWhatStructuredMergeDiffDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	applies, covered := 0, 0
	for range 300 {
		a, c := applyRandomly(t, rng)
		applies, covered = applies+a, covered+c
	}
	if covered*10 < applies*8 {
		t.Errorf("only %d of %d applies were covered", covered, applies)
	}
}

func FuzzApplyingToCustomResources(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { applyRandomly(t, rand.New(rand.NewPCG(a, b))) })
}

// gadgets is a kind with everything that merges differently.
const gadgets = `types:
- name: gadget
  map:
    fields:
    - {name: apiVersion, type: {scalar: string}}
    - {name: kind, type: {scalar: string}}
    - {name: metadata, type: {namedType: __untyped_deduced_}}
    - name: spec
      type:
        map:
          fields:
          - {name: size, type: {scalar: numeric}}
          - {name: either, type: {scalar: untyped}}
          - {name: steps, type: {list: {elementType: {scalar: string}, elementRelationship: atomic}}}
          - {name: tags, type: {list: {elementType: {scalar: string}, elementRelationship: associative}}}
          - {name: whole, type: {map: {elementType: {scalar: string}, elementRelationship: atomic}}}
          - {name: settings, type: {map: {elementType: {scalar: string}}}}
          - {name: free, type: {namedType: __untyped_deduced_}}
          - name: ports
            type:
              list:
                elementRelationship: associative
                keys: [port, protocol]
                elementType:
                  map:
                    fields:
                    - {name: port, type: {scalar: numeric}}
                    - {name: protocol, type: {scalar: string}, default: TCP}
                    - {name: name, type: {scalar: string}}
- name: __untyped_deduced_
  scalar: untyped
  list: {elementType: {namedType: __untyped_atomic_}, elementRelationship: atomic}
  map: {elementType: {namedType: __untyped_deduced_}, elementRelationship: separable}
- name: __untyped_atomic_
  scalar: untyped
  list: {elementType: {namedType: __untyped_atomic_}, elementRelationship: atomic}
  map: {elementType: {namedType: __untyped_atomic_}, elementRelationship: atomic}
`

// TestWhatIsMergedInTrees says which applies to custom resources are merged here, and
// holds what comes of them to structured-merge-diff.
func TestWhatIsMergedInTrees(t *testing.T) {
	parser, err := typed.NewParser(gadgets)
	if err != nil {
		t.Fatal(err)
	}
	s := &randomSchema{root: parser.Type("gadget")}
	unchanged := func(obj apis.Object) (apis.Object, error) { return obj, nil }
	m := New(clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))).mustFor(t, &apis.Resource{
		Group: "example.com", Version: "v1", Kind: "Gadget", Plural: "gadgets",
		New:     func() apis.Object { return &unstructured.Unstructured{Object: map[string]any{}} },
		Default: func(apis.Object) {},
		Custom: &apis.Custom{
			Lifetime: t.Context(), Merge: func() managedfields.TypeConverter { return s },
			Convert: func(obj apis.Object, _ string) (apis.Object, error) { return obj, nil }, Load: unchanged,
		},
	}, "")
	gadget := func(spec string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		raw, err := yaml.YAMLToJSON([]byte("{apiVersion: example.com/v1, kind: Gadget, metadata: {name: a}, spec: " + spec + "}"))
		if err == nil {
			err = u.UnmarshalJSON(raw)
		}
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	const spec = "{size: 1, either: 5%, steps: [a, b], tags: [p, q], whole: {a: b}, settings: {a: b, c: d}, free: {a: {b: [1]}, c: null}, ports: [{port: 80, name: web}, {port: 80, protocol: UDP}]}"
	live, err := m.apply(m.empty(), nil, gadget(spec), "one", false)
	if err != nil {
		t.Fatal(err)
	}
	live.SetUID("u")
	older := live.DeepCopyObject().(apis.Object)
	entries := older.GetManagedFields()
	entries[0].APIVersion = "example.com/v0"
	older.SetManagedFields(entries)
	for name, c := range map[string]struct {
		live    apis.Object
		spec    string
		manager string
		force   bool
		covered bool
	}{
		"an object that is new":                 {nil, spec, "one", false, true},
		"the same":                              {live, spec, "one", false, true},
		"the same by another":                   {live, spec, "two", false, true},
		"another number":                        {live, strings.Replace(spec, "size: 1", "size: 2", 1), "one", false, true},
		"a number for a text":                   {live, strings.Replace(spec, "5%", "5", 1), "one", false, true},
		"an atomic list":                        {live, strings.Replace(spec, "[a, b]", "[b]", 1), "one", false, true},
		"an atomic map":                         {live, strings.Replace(spec, "whole: {a: b}", "whole: {a: c}", 1), "one", false, true},
		"another order":                         {live, strings.Replace(spec, "[p, q]", "[q, p]", 1), "one", false, true},
		"an item more":                          {live, strings.Replace(spec, "[p, q]", "[p, z, q]", 1), "one", false, true},
		"an item less":                          {live, strings.Replace(spec, "[p, q]", "[q]", 1), "one", false, true},
		"an item with two keys less":            {live, strings.Replace(spec, ", {port: 80, protocol: UDP}", "", 1), "one", false, true},
		"a field of an item less":               {live, strings.Replace(spec, ", name: web", "", 1), "one", false, true},
		"a part without schema less":            {live, strings.Replace(spec, "b: [1]", "", 1), "one", false, true},
		"all of it less":                        {live, "{}", "one", false, true},
		"nulls":                                 {live, "{size: null, tags: null, settings: null, whole: null, ports: null}", "one", false, true},
		"what is empty":                         {live, "{tags: [], settings: {}, whole: {}, free: {}, ports: []}", "one", false, true},
		"a field of another":                    {live, "{size: 3}", "two", false, false},
		"a field of another, by force":          {live, "{size: 3, tags: [z], settings: {a: z}}", "two", true, true},
		"a key of an item of another":           {live, "{ports: [{port: 80, name: other}]}", "two", true, true},
		"a wrong type":                          {live, "{size: a}", "one", false, false},
		"an unknown field":                      {live, "{unknown: a}", "one", false, false},
		"an item twice":                         {live, "{tags: [p, p]}", "one", false, false},
		"an item without its keys":              {live, "{ports: [null]}", "one", false, false},
		"an owner of fields of another version": {older, spec, "one", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, covered := m.compareApply(t, c.live, gadget(c.spec), c.manager, c.force); covered != c.covered {
				t.Errorf("covered: %v", covered)
			}
		})
	}
}
