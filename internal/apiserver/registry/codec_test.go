package registry

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
