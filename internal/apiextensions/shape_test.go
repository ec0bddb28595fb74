package apiextensions

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

var fieldNames = []string{"a", "b", "c", "kind", "metadata"}

// randomSchema makes a structural schema of a few fields, so that objects meet it.
func randomSchema(rng *rand.Rand, depth int) structural.Structural {
	s := structural.Structural{}
	s.Nullable = rng.IntN(4) == 0
	if n := rng.IntN(6); depth == 0 || n == 0 {
		s.Type = "string"
		if rng.IntN(3) == 0 {
			s.Default.Object = "x"
		}
		return s
	} else if n == 1 {
		s.Type = "array"
		items := randomSchema(rng, depth-1)
		s.Items = &items
		return s
	}
	s.Type = "object"
	s.XPreserveUnknownFields = rng.IntN(4) == 0
	s.XEmbeddedResource = rng.IntN(6) == 0
	switch rng.IntN(4) {
	case 0:
		of := randomSchema(rng, depth-1)
		s.AdditionalProperties = &structural.StructuralOrBool{Structural: &of}
	case 1:
		s.AdditionalProperties = &structural.StructuralOrBool{Bool: true}
	default:
		s.Properties = map[string]structural.Structural{}
		for range rng.IntN(4) {
			s.Properties[fieldNames[rng.IntN(len(fieldNames))]] = randomSchema(rng, depth-1)
		}
	}
	return s
}

func randomValue(rng *rand.Rand, depth int) any {
	switch n := rng.IntN(6); {
	case n < 3 && depth > 0:
		m := map[string]any{}
		for range rng.IntN(4) {
			m[fieldNames[rng.IntN(len(fieldNames))]] = randomValue(rng, depth-1)
		}
		return m
	case n == 3 && depth > 0:
		list := make([]any, rng.IntN(3))
		for i := range list {
			list[i] = randomValue(rng, depth-1)
		}
		return list
	case n == 4:
		return nil
	}
	return "x"
}

func TestAnObjectThatFitsIsNotChangedByPruningAndDefaulting(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	fitting := 0
	for range 20000 {
		s := randomSchema(rng, 3)
		object, ok := randomValue(rng, 4).(map[string]any)
		if !ok {
			continue
		}
		if rng.IntN(2) == 0 { // one that went through it, most likely fits
			pruning.Prune(object, &s, true)
			defaulting.PruneNonNullableNullsWithoutDefaults(object, &s)
			defaulting.Default(object, &s)
		}
		for _, defaults := range []bool{false, true} {
			if !newShape(&s).fitsObject(object, defaults, true) {
				continue
			}
			fitting++
			after := runtime.DeepCopyJSON(object)
			pruning.Prune(after, &s, true)
			defaulting.PruneNonNullableNullsWithoutDefaults(after, &s)
			if defaults {
				defaulting.Default(after, &s)
			}
			if !reflect.DeepEqual(object, after) {
				raw, _ := json.Marshal(object)
				changed, _ := json.Marshal(after)
				t.Fatalf("defaults %t: %s became %s by %+v", defaults, raw, changed, s)
			}
		}
	}
	if fitting < 5000 {
		t.Errorf("only %d objects fitted", fitting)
	}
}

// FuzzMetadata holds the short way of reading metadata to the long one.
func FuzzMetadata(f *testing.F) {
	f.Add(`{"name":"a","labels":{"a":"b"},"generation":1,"creationTimestamp":"2026-01-02T03:04:05Z","finalizers":["x"]}`)
	f.Add(`{"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:a":{}}}]}`)
	f.Add(`{"name":"","labels":{},"generation":0,"creationTimestamp":null}`)
	f.Add(`{"creationTimestamp":"2026-02-30T03:04:05Z"}`)
	f.Fuzz(func(t *testing.T, text string) {
		var meta any
		if kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &meta) != nil || !plainMeta(meta) || meta == nil {
			return
		}
		object := map[string]any{"metadata": meta}
		read, _, unknown, err := objectmeta.GetObjectMetaWithOptions(object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
		if err != nil || len(unknown) > 0 {
			t.Fatalf("%s: %v, unknown %v", text, err, unknown)
		}
		if err := objectmeta.SetObjectMeta(object, read); err != nil {
			t.Fatal(err)
		}
		after := object["metadata"].(map[string]any)
		if after["creationTimestamp"] == nil {
			delete(after, "creationTimestamp")
		}
		if !reflect.DeepEqual(meta, object["metadata"]) {
			t.Fatalf("%v became %v", meta, object["metadata"])
		}
	})
}

// FuzzCoerce feeds arbitrary objects to what reads those of clients.
func FuzzCoerce(f *testing.F) {
	f.Add(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"a":1,"b":[{"c":null}]}}`)
	f.Add(`{"metadata":[],"spec":null}`)
	f.Add(`{"apiVersion":1}`)
	rng := rand.New(rand.NewPCG(1, 1))
	s := structural.Structural{Properties: map[string]structural.Structural{"spec": randomSchema(rng, 4), "a": randomSchema(rng, 2)}}
	v := &version{schema: &s, shape: newShape(&s)}
	f.Fuzz(func(t *testing.T, text string) {
		u := &unstructured.Unstructured{}
		if kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &u.Object) != nil || u.Object == nil {
			return
		}
		if _, err := v.coerce(u, true); err != nil {
			return
		}
		again := u.DeepCopy()
		if unknown, err := v.coerce(again, true); err != nil || len(unknown) > 0 || !reflect.DeepEqual(u.Object, again.Object) {
			t.Fatalf("not settled: %v, %v\n%v\n%v", unknown, err, u.Object, again.Object)
		}
	})
}
