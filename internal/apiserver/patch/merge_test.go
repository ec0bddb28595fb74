package patch

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// value makes a random JSON value; names are few, so that documents and patches meet.
func value(rng *rand.Rand, depth int) any {
	switch n := rng.IntN(7); {
	case n < 3 && depth > 0:
		m := map[string]any{}
		for range rng.IntN(4) {
			m[string(rune('a'+rng.IntN(4)))] = value(rng, depth-1)
		}
		return m
	case n == 3 && depth > 0:
		list := make([]any, rng.IntN(3))
		for i := range list {
			list[i] = value(rng, depth-1)
		}
		return list
	case n == 4:
		return nil
	case n == 5:
		return "<text>"
	}
	return rng.IntN(10)
}

func TestMergingIsWhatTheLibraryDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		doc, _ := json.Marshal(value(rng, 4))
		patch, _ := json.MarshalIndent(value(rng, 4), "", " ")
		want, wantErr := jsonpatch.MergePatch(doc, patch)
		got, err := mergeObjects(doc, patch)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%s and %s: error %v, want %v", doc, patch, err, wantErr)
		}
		var x, y any
		if err == nil && (json.Unmarshal(got, &x) != nil || json.Unmarshal(want, &y) != nil || !reflect.DeepEqual(x, y)) {
			t.Fatalf("%s and %s: %s, want %s", doc, patch, got, want)
		}
	}
}
