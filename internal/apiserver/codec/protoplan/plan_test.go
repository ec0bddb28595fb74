package protoplan

import (
	"bytes"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"proa/internal/apis"
	"proa/internal/store/sharing"
)

// filler makes random values that Kubernetes types can hold.
func filler(seed int64) *randfill.Filler {
	raw := func(serializer.CodecFactory) []any {
		return []any{func(r *runtime.RawExtension, c randfill.Continue) { r.Raw = []byte(`{"a":1}`) }}
	}
	funcs := fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, raw)
	return fuzzer.FuzzerFor(funcs, rand.NewSource(seed), serializer.NewCodecFactory(apis.Scheme()))
}

func generated(t *testing.T, m Message) []byte {
	t.Helper()
	b := make([]byte, m.Size())
	if n, err := m.MarshalToSizedBuffer(b); err != nil || n != len(b) {
		t.Fatalf("%T: %d of %d bytes: %v", m, n, len(b), err)
	}
	return b
}

// messages are all types of the API that have a protobuf form, in a fixed order.
func messages() []reflect.Type {
	seen := map[reflect.Type]bool{}
	var types []reflect.Type
	for _, typ := range apis.Scheme().AllKnownTypes() {
		if !seen[typ] && reflect.PointerTo(typ).Implements(messageType) {
			seen[typ] = true
			types = append(types, typ)
		}
	}
	slices.SortFunc(types, func(a, b reflect.Type) int { return strings.Compare(a.String(), b.String()) })
	return types
}

// Every kind is written as its generated methods write it, whatever its values share.
func TestEveryKindIsWrittenAsGeneratedCodeDoes(t *testing.T) {
	var memo Memo
	all := messages()
	if len(all) < 100 {
		t.Fatalf("only %d kinds", len(all))
	}
	for i, typ := range all {
		fresh := func(seed int64) Message {
			v := reflect.New(typ).Interface()
			filler(seed).Fill(v)
			return v.(Message)
		}
		first, other, partly := fresh(int64(i)*2), fresh(int64(i)*2+1), fresh(int64(i)*2)
		like := reflect.New(typ)
		like.Elem().Set(reflect.ValueOf(first).Elem())
		sharing.Parts(partly, first)
		memo.Reset()
		var got, want []byte
		for _, m := range []Message{first, like.Interface().(Message), other, first, partly, other, reflect.New(typ).Interface().(Message)} {
			want = append(want, generated(t, m)...)
			var err error
			if got, err = memo.Append(got, m, m.Size()); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: %v\n%x\n%x", typ, err, got, want)
			}
		}
	}
}

func TestWhatIsSharedIsCopied(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "image:1"}}}}
	q := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: p.Spec}
	var memo Memo
	b, err := memo.Append(nil, p, p.Size())
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte("image:1"))] = 'X' // what is copied from here tells
	if b, err = memo.Append(b, q, q.Size()); err != nil || bytes.Count(b, []byte("Xmage:1")) != 2 {
		t.Errorf("the containers are written anew: %v, %q", err, b)
	}
}

func TestAWrongSizeIsAnError(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}}}
	for _, size := range []int{0, p.Size() - 1, p.Size() + 1} {
		var memo Memo
		if b, err := memo.Append([]byte("before"), p, size); err == nil || string(b) != "before" {
			t.Errorf("%d bytes: %q, %v", size, b, err)
		}
	}
}

func FuzzPods(f *testing.F) {
	f.Add(int64(1), int64(2))
	f.Fuzz(func(t *testing.T, seed, seed2 int64) {
		var memo Memo
		var got, want []byte
		last := &corev1.Pod{}
		for _, s := range []int64{seed, seed2, seed, seed} {
			p := &corev1.Pod{}
			filler(s).Fill(p)
			sharing.Parts(p, last)
			last = p
			want = append(want, generated(t, p)...)
			var err error
			if got, err = memo.Append(got, p, p.Size()); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%v\n%x\n%x", err, got, want)
			}
		}
	})
}
