package jsonplan

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/store/sharing"
)

// Values of every kind that have parts in common are written as if they had none.
func TestSharedPartsAreWrittenAsTheStandardDoes(t *testing.T) {
	var memo Memo
	for i, typ := range apiTypes() {
		first, other := reflect.New(typ).Interface(), reflect.New(typ).Interface()
		filler(int64(i) * 3).Fill(first)
		filler(int64(i)*3 + 1).Fill(other)
		like := reflect.New(typ).Interface() // all its parts are those of the first
		reflect.ValueOf(like).Elem().Set(reflect.ValueOf(first).Elem())
		partly := reflect.New(typ).Interface()
		filler(int64(i) * 3).Fill(partly)
		sharing.Parts(partly, first)
		var got, want []byte
		memo.Reset()
		for _, v := range []any{first, like, other, like, partly, other, reflect.New(typ).Interface()} {
			text, err := json.Marshal(v)
			if err != nil {
				break
			}
			want = append(want, text...)
			if got, err = memo.Append(got, v); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: %v\n%s\n%s", typ, err, got, want)
			}
		}
	}
}

func TestWhatIsSharedIsCopied(t *testing.T) {
	p := usualPod()
	q := *p
	q.Name = "another"
	p.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}}
	q.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: p.ManagedFields[0].FieldsV1.Raw}}}
	var memo Memo
	b, err := memo.Append(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	mark := bytes.Index(b, []byte("SETTING_00"))
	b[mark] = 'X' // what is copied from here tells
	if b, err = memo.Append(b, &q); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b, []byte("XETTING_00")); n != 2 {
		t.Errorf("the containers are written anew: %s", b)
	}
	memo.Reset()
	if b, err = memo.Append(b[:0], p); err != nil || bytes.Contains(b, []byte("XETTING_00")) {
		t.Errorf("what was forgotten is copied: %v, %s", err, b)
	}
}

func FuzzMemo(f *testing.F) {
	f.Add(int64(1), int64(2), "a")
	f.Fuzz(func(t *testing.T, seed, seed2 int64, name string) {
		var memo Memo
		var got, want []byte
		last := &corev1.Pod{}
		for _, s := range []int64{seed, seed2, seed, seed} {
			p := &corev1.Pod{}
			filler(s).Fill(p)
			p.Name = name
			sharing.Parts(p, last)
			last = p
			text, err := json.Marshal(p)
			if err != nil {
				return
			}
			want = append(want, text...)
			if got, err = memo.Append(got, p); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%v\n%s\n%s", err, got, want)
			}
		}
	})
}

func BenchmarkPodsOfOneTemplate(b *testing.B) {
	pods := make([]*corev1.Pod, 64)
	for i := range pods {
		p := *usualPod()
		pods[i] = &p
		if i > 0 {
			pods[i].Spec, pods[i].Labels = pods[0].Spec, pods[0].Labels
		}
	}
	for name, memo := range map[string]*Memo{"copied": {}, "written": nil} {
		b.Run(name, func(b *testing.B) {
			var buf []byte
			for b.Loop() {
				buf = buf[:0]
				memo.Reset()
				for _, p := range pods {
					buf, _ = memo.Append(buf, p)
				}
			}
			b.SetBytes(int64(len(buf)))
		})
	}
}
