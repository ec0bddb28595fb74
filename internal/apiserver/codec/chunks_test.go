package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apiserver/negotiate"
	"proa/internal/store"
)

func longList(n int) []*store.Item {
	items := make([]*store.Item, n)
	for i := range items {
		name := fmt.Sprintf("c-%06d", i)
		items[i] = store.NewItem(store.Key{Name: name}, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": strings.Repeat("v", i%50)}})
	}
	return items
}

func TestALongListIsWrittenInOrderByAllProcessors(t *testing.T) {
	items := longList(keepMost + 1)
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	l := List{Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMapList"}, Meta: metav1.ListMeta{ResourceVersion: "9"}}
	for _, kinds := range []bool{false, true} {
		for _, media := range []negotiate.Media{negotiate.JSON, negotiate.Protobuf} {
			t.Run(fmt.Sprintf("%s, items with kinds: %v", media, kinds), func(t *testing.T) {
				l.ItemKinds = kinds
				f := NewForm(kind, negotiate.Format{Media: media}, nil)
				if _, err := items[17].Encoding(f.key, f.encode); err != nil { // one is kept already
					t.Fatal(err)
				}
				var got bytes.Buffer
				if err := f.WriteList(&got, l, items); err != nil {
					t.Fatal(err)
				}
				var list corev1.ConfigMapList
				body := got.Bytes()
				var err error
				if media == negotiate.Protobuf {
					var envelope runtime.Unknown
					if err = envelope.Unmarshal(body[len(magic):]); err == nil {
						err = list.Unmarshal(envelope.Raw)
					}
				} else {
					err = json.Unmarshal(body, &list)
				}
				if err != nil || len(list.Items) != len(items) || list.ResourceVersion != "9" {
					t.Fatalf("%d items at %q, error %v", len(list.Items), list.ResourceVersion, err)
				}
				for i := range items {
					want := items[i].Object.(*corev1.ConfigMap)
					if list.Items[i].Name != want.Name || list.Items[i].Data["k"] != want.Data["k"] {
						t.Fatalf("item %d is %s", i, list.Items[i].Name)
					}
					if media == negotiate.JSON && (list.Items[i].Kind == "ConfigMap") != kinds {
						t.Fatalf("item %d has kind %q", i, list.Items[i].Kind)
					}
				}
			})
		}
	}
}

// fullAfter is a writer that takes some bytes and then no more.
type fullAfter int

var errFull = errors.New("full")

func (f *fullAfter) Write(p []byte) (int, error) {
	if *f -= fullAfter(len(p)); *f < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestALongListEndsWithItsReader(t *testing.T) {
	items := longList(3 * keepMost)
	f := NewForm(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, negotiate.Format{Media: negotiate.JSON}, nil)
	w := fullAfter(100_000)
	if err := f.WriteList(&w, List{Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMapList"}}, items); !errors.Is(err, errFull) {
		t.Errorf("error %v, want %v", err, errFull)
	}
}

func BenchmarkLongList(b *testing.B) {
	items := longList(50_000)
	for _, item := range items {
		item.Object.(*corev1.ConfigMap).Data["k"] = strings.Repeat("v", 2000)
	}
	f := NewForm(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, negotiate.Format{Media: negotiate.JSON}, nil)
	for b.Loop() {
		if err := f.WriteList(io.Discard, List{}, items); err != nil {
			b.Fatal(err)
		}
	}
}
