package jsonplan

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
)

// filler makes random values that Kubernetes types can hold.
func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.4).NumElements(0, 3).MaxDepth(12).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(int64(c.Int31()), resource.DecimalSI)
		},
		func(t *metav1.Time, c randfill.Continue) {
			if c.Bool() {
				*t = metav1.Unix(int64(c.Int31()), int64(c.Int31n(1e9)))
			}
		},
		func(t *metav1.MicroTime, c randfill.Continue) {
			*t = metav1.NewMicroTime(time.Unix(int64(c.Int31()), 0))
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			if *v = intstr.FromInt32(c.Int31()); c.Bool() {
				*v = intstr.FromString(c.String(9))
			}
		},
		func(f *metav1.FieldsV1, c randfill.Continue) {
			f.Raw = [][]byte{
				[]byte(`{"f:a":{".":{},"k:{\"name\":\"a\\\\b\"}":{"f:name":{}}},"f:b":{}}`), []byte(`{"f:a":{"f:<b>":{}}}`), []byte(`{ "f:<b>": {} }`), []byte("{}"), nil,
			}[c.Intn(5)]
		},
		func(r *runtime.RawExtension, c randfill.Continue) { r.Raw = []byte(`{"a": "<"}`) },
		func(j *apiextensionsv1.JSON, c randfill.Continue) { j.Raw = []byte(`[1, "&"]`) },
		func(o *runtime.Object, c randfill.Continue) {},
		func(v *any, c randfill.Continue) {},
	)
}

func compare(t *testing.T, v any) {
	t.Helper()
	want, wantErr := json.Marshal(v)
	got, err := Append(nil, v)
	if (err != nil) != (wantErr != nil) || err == nil && !bytes.Equal(got, want) {
		t.Fatalf("%T: %v, %v\n%s\n%s", v, err, wantErr, got, want)
	}
}

// Every type that the API knows is written as encoding/json writes it.
func TestEveryKindIsWrittenAsTheStandardDoes(t *testing.T) {
	for i, typ := range apiTypes() {
		compare(t, reflect.New(typ).Interface())
		for seed := range int64(2) {
			v := reflect.New(typ).Interface()
			filler(seed + int64(i)*7).Fill(v)
			compare(t, v)
		}
	}
}

func FuzzPod(f *testing.F) {
	f.Add(int64(1), "<a>", "\u2028\xff")
	f.Fuzz(func(t *testing.T, seed int64, name, value string) {
		p := &corev1.Pod{}
		filler(seed).Fill(p)
		p.Name, p.Annotations = name, map[string]string{name: value, value: name}
		compare(t, p)
	})
}

type odd struct {
	*metav1.ListMeta
	A int     `json:"a,string"`
	B float64 `json:"b"`
}

type zeros struct {
	T metav1.Time            `json:"t,omitzero"`
	P *metav1.Time           `json:"p,omitzero"`
	M metav1.ObjectMeta      `json:"m,omitzero"`
	S []string               `json:"s,omitzero"`
	E []string               `json:"e,omitempty,omitzero"`
	U uint16                 `json:"u,omitempty"`
	F float32                `json:"f,omitempty"`
	I any                    `json:"i,omitempty"`
	B []byte                 `json:"b,omitempty"`
	D map[string]any         `json:"d"`
	K map[int]string         `json:"k,omitempty"`
	Q map[string]*zeros      `json:"q,omitempty"`
	X map[string]metav1.Time `json:"x"`
}

func TestFieldsThatAreNoJSONAreAnError(t *testing.T) {
	for _, raw := range []string{`{"f:a":{}`, `{"f:a":{},}`, `{"f:a"}`, `{f:a:{}}`, `{"f:a":{}}}`, `{"f:\q":{}}`, "{\"f:\x01\":{}}", `{`, `{"`, `{"\`, `x`} {
		compare(t, &metav1.ManagedFieldsEntry{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: []byte(raw)}})
	}
}

func TestWhatKubernetesDoesNotUse(t *testing.T) {
	compare(t, &odd{ListMeta: &metav1.ListMeta{Continue: "c"}, A: 3, B: 1e30})
	compare(t, &zeros{})
	now := metav1.Unix(1, 0)
	compare(t, &zeros{T: now, P: &metav1.Time{}, S: []string{}, E: []string{}, U: 1, F: 2, I: map[string]int{"a": 1}, B: []byte("x"),
		D: map[string]any{"z": nil, "a": "<"}, K: map[int]string{2: "b", 1: "a"}, Q: map[string]*zeros{"n": nil, "o": {}}, X: map[string]metav1.Time{"b": now, "a": {}}})
}

func BenchmarkPod(b *testing.B) {
	p := &corev1.Pod{}
	filler(3).NilChance(0.7).Fill(p)
	b.Run("plan", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf, _ = Append(buf[:0], p)
		}
		b.SetBytes(int64(len(buf)))
	})
	b.Run("standard", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			raw, _ := json.Marshal(p)
			b.SetBytes(int64(len(raw)))
		}
	})
}
