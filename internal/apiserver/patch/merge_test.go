package patch

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis"
	"proa/internal/apiserver/wire"
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
		doc, _ := json.Marshal(map[string]any{"a": value(rng, 3), "b": value(rng, 3), "c": value(rng, 3)})
		patch, _ := json.MarshalIndent(value(rng, 4), "", " ")
		agree(t, doc, patch)
	}
	deep := []byte(strings.Repeat(`{"a":{"b":null},"c":`, 2*rawLevels) + "1" + strings.Repeat("}", 2*rawLevels))
	agree(t, deep, []byte(strings.ReplaceAll(string(deep), `{"b":null}`, `{"d":[{"e":null},1]}`)))
	agree(t, deep, []byte(strings.ReplaceAll(string(deep), "1", `{"f":null,"g":1e400}`)))
}

// agree compares with the library. What is deep is too much for that.
func agree(t *testing.T, doc, patch []byte) {
	t.Helper()
	want, wantErr := jsonpatch.MergePatch(doc, patch)
	got, err := mergeObjects(doc, patch)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%s and %s: error %v, want %v", doc, patch, err, wantErr)
	}
	if err != nil {
		return
	}
	x, gotErr := decodeValue(got)
	y, wantErr := decodeValue(want)
	if gotErr != nil || wantErr != nil || !reflect.DeepEqual(x, y) {
		t.Fatalf("%s and %s: %s, want %s", doc, patch, got, want)
	}
}

// The library takes minutes for it. Nothing is measured: a test that takes minutes
// is noticed.
func TestDeepPatchesAreMergedInOneGo(t *testing.T) {
	nested := func(inner string) []byte {
		return []byte(strings.Repeat(`{"a":`, 9000) + inner + strings.Repeat("}", 9000))
	}
	large := `"` + strings.Repeat("x", 1<<20) + `"`
	for name, tt := range map[string][2][]byte{
		"into nothing":       {[]byte("{}"), nested(large)},
		"into what is deep":  {nested(large), nested("1")},
		"in place of a list": {[]byte(`{"a":[]}`), nested(large)},
		"as a list":          {[]byte("{}"), []byte(strings.Repeat("[", 9000) + large + strings.Repeat("]", 9000))},
	} {
		got, err := mergeObjects(tt[0], tt[1])
		if err != nil || tt[1][0] == '{' && depth(got) != 9000 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPatchesOfUnreasonableEffortAreRefused(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", Annotations: map[string]string{"a": strings.Repeat("x", 1<<20)}}}
	form := wire.Form{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, New: func() apis.Object { return new(corev1.Pod) }}
	containers := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,{"name":"c%d"}`, i)
		}
		return `{"spec":{"containers":[` + b.String()[1:] + "]}}"
	}
	tests := []struct {
		name    string
		kind    types.PatchType
		data    string
		refused bool
	}{
		{"a JSON patch of a deep value", types.JSONPatchType, `[{"op":"add","path":"/x","value":` + strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000) + "}]", true},
		{"a JSON patch of a deep path", types.JSONPatchType, `[{"op":"test","path":"` + strings.Repeat("/a", 5000) + `"}]`, true},
		{"a JSON patch of some depth", types.JSONPatchType, `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"test","path":"/metadata/labels","value":{"a":"b"}}]`, false},
		{"a strategic merge patch of a long list", types.StrategicMergePatchType, containers(5000), true},
		{"a strategic merge patch of a list", types.StrategicMergePatchType, containers(50), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := (&Patch{Type: tt.kind, Data: []byte(tt.data), Form: form}).Apply(t.Context(), pod)
			if apierrors.IsRequestEntityTooLargeError(err) != tt.refused || !tt.refused && err != nil {
				t.Errorf("%.200v", err)
			}
		})
	}
}
