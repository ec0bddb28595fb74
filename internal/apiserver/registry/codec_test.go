package registry

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver/wire"
	"proa/internal/store"
)

func TestObjectsAreKeptAsUpstreamKeepsThem(t *testing.T) {
	catalogue := builtin.Catalogue()
	c := NewCodec(catalogue)
	upstream := protobuf.NewSerializer(apis.Scheme(), apis.Scheme())
	for _, r := range catalogue.All() {
		obj := r.New()
		if _, ok := obj.(*unstructured.Unstructured); ok {
			continue
		}
		if _, ok := obj.(message); !ok {
			continue // a review that is never stored
		}
		if r.Group == definitionGroup || r.Group == serviceGroup || r.Storage != "" {
			continue // TestWhatUpstreamWroteIsReadAndWrittenTheSame has them
		}
		obj.SetName("n")
		obj.SetAnnotations(map[string]string{"long": strings.Repeat("x", rand.IntN(300))})
		obj.SetResourceVersion("7")
		key := store.Key{Resource: r.GroupResource(), Name: "n"}
		got, err := c.Encode(key, obj)
		if err != nil {
			t.Fatal(err)
		}
		if obj.GetResourceVersion() != "7" {
			t.Errorf("%s: the object was changed", r.Kind)
		}
		typed := wire.Typed(obj, r.GroupVersionKind())
		typed.SetResourceVersion("")
		var want bytes.Buffer
		if err := upstream.Encode(typed, &want); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s: %q, want %q", r.Kind, got, want.Bytes())
		}
		if _, err := c.Decode(key, got); err != nil {
			t.Errorf("%s: %v", r.Kind, err)
		}
	}
}

func TestCustomResourcesAreKeptInEitherForm(t *testing.T) {
	text, binary := NewCodec(builtin.Catalogue()), NewCodec(builtin.Catalogue())
	binary.CBOR = true
	upstream := cbor.NewSerializer(unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper())
	key := store.Key{Resource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Namespace: "a", Name: "n"}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "n", "namespace": "a"},
		"spec": map[string]any{"size": int64(1) << 40, "share": 0.5, "list": []any{"a", nil, false}},
	}}
	var want bytes.Buffer
	if err := upstream.Encode(obj, &want); err != nil {
		t.Fatal(err)
	}
	seen := obj.DeepCopy()
	seen.SetResourceVersion("7")
	got, err := binary.Encode(key, seen)
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("kept as %x, %v\nwant %x", got, err, want.Bytes())
	}
	asText, err := text.Encode(key, seen)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range [][]byte{got, asText} {
		for _, c := range []*Codec{text, binary} {
			if back, err := c.Decode(key, value); err != nil || !reflect.DeepEqual(back, store.Object(obj)) {
				t.Errorf("%.20q is read as %v, %v", value, back, err)
			}
		}
	}
}
