package codec

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"proa/internal/apis"
	"proa/internal/apiserver/negotiate"
	"proa/internal/store"
)

func cborPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "ns", Labels: map[string]string{"app": "a", "nicht-ASCII": "ü"},
			CreationTimestamp: metav1.Unix(1e9, 0).Rfc3339Copy(),
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("100m")}},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}}},
		}}},
	}
}

func cborForm(kind schema.GroupVersionKind) *Form {
	return NewForm(kind, negotiate.Format{Media: negotiate.CBOR}, nil)
}

// upstreams decodes as upstream does.
func upstreams(t *testing.T, doc []byte, into runtime.Object) runtime.Object {
	t.Helper()
	if !bytes.HasPrefix(doc, []byte{0xd9, 0xd9, 0xf7}) {
		t.Fatalf("starts with % x", doc[:min(3, len(doc))])
	}
	s := apis.Scheme()
	obj, _, err := cbor.NewSerializer(s, s, cbor.Strict(true)).Decode(doc, nil, into)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func TestCBORItemsAreUpstreams(t *testing.T) {
	pod := cborPod("a")
	var b bytes.Buffer
	if err := cborForm(podKind).WriteItem(&b, store.NewItem(store.Key{}, pod)); err != nil {
		t.Fatal(err)
	}
	got := upstreams(t, b.Bytes(), nil).(*corev1.Pod)
	want := pod.DeepCopy()
	want.SetGroupVersionKind(podKind)
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	back, warnings, err := Decode(b.Bytes(), negotiate.CBOR, podKind, &corev1.Pod{}, metav1.FieldValidationStrict)
	if err != nil || len(warnings) > 0 || !equality.Semantic.DeepEqual(back, pod) {
		t.Errorf("read back: %+v, %v, %v", back, warnings, err)
	}
	custom := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "e/v1", "kind": "W", "metadata": map[string]any{"name": "w"}, "spec": map[string]any{"n": int64(1), "f": 1.5, "l": []any{"x", nil, true}},
	}}
	b.Reset()
	if err := cborForm(custom.GroupVersionKind()).WriteItem(&b, store.NewItem(store.Key{}, custom)); err != nil {
		t.Fatal(err)
	}
	if got := upstreams(t, b.Bytes(), &unstructured.Unstructured{}).(*unstructured.Unstructured); !reflect.DeepEqual(got.Object, custom.Object) {
		t.Errorf("got %v\nwant %v", got.Object, custom.Object)
	}
}

func TestCBORListsAreUpstreams(t *testing.T) {
	for _, n := range []int{0, 1, 23, 24, 300} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			var items []*store.Item
			for i := range n {
				items = append(items, store.NewItem(store.Key{}, cborPod(fmt.Sprint("p", i))))
			}
			var b bytes.Buffer
			l := List{Kind: schema.GroupVersionKind{Version: "v1", Kind: "PodList"}, Meta: metav1.ListMeta{ResourceVersion: "7"}}
			if err := cborForm(podKind).WriteList(&b, l, items); err != nil {
				t.Fatal(err)
			}
			list := upstreams(t, b.Bytes(), nil).(*corev1.PodList)
			if len(list.Items) != n || list.ResourceVersion != "7" || n > 0 && list.Items[n-1].Name != fmt.Sprint("p", n-1) {
				t.Errorf("%d items at %s", len(list.Items), list.ResourceVersion)
			}
		})
	}
}

func TestCBOREventsAreUpstreams(t *testing.T) {
	f := cborForm(podKind)
	if f.StreamType() != "application/cbor-seq" {
		t.Errorf("stream type is %s", f.StreamType())
	}
	for name, write := range map[string]func(*bytes.Buffer) error{
		"Pod": func(b *bytes.Buffer) error {
			return f.WriteEvent(b, watch.Added, store.NewItem(store.Key{}, cborPod("a")))
		},
		"Status": func(b *bytes.Buffer) error { return f.WriteError(b, &metav1.Status{Code: 410, Reason: "Expired"}) },
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			s := apis.Scheme()
			event := &metav1.WatchEvent{}
			if _, _, err := cbor.NewSerializer(s, s, cbor.Transcode(false)).Decode(b.Bytes(), &schema.GroupVersionKind{Version: "v1", Kind: "WatchEvent"}, event); err != nil {
				t.Fatal(err)
			}
			obj := upstreams(t, event.Object.Raw, nil)
			if got := obj.GetObjectKind().GroupVersionKind().Kind; got != name {
				t.Errorf("%s event holds a %s", event.Type, got)
			}
			if status, ok := obj.(*metav1.Status); ok && status.Code != 410 {
				t.Errorf("status is %+v", status)
			}
		})
	}
}

func TestCBORBodiesThatAreRefused(t *testing.T) {
	const head = "\xa3\x44kind\x43Pod\x4aapiVersion\x42v1"
	tests := []struct {
		name, body string
		directive  string
		valid      bool
	}{
		{"an unknown field under Strict", head + "\x44what\x01", metav1.FieldValidationStrict, false},
		{"an unknown field under Warn", head + "\x44what\x01", metav1.FieldValidationWarn, true},
		{"a key that is there twice", head + "\x44kind\x43Pod", metav1.FieldValidationIgnore, false},
		{"the end is missing", head + "\x48metadata\xa1", metav1.FieldValidationIgnore, false},
		{"more than one item", "\xa2\x44kind\x43Pod\x4aapiVersion\x42v1\x00", metav1.FieldValidationIgnore, false},
		{"an array of unknown length", head + "\x44spec\x9f\xff", metav1.FieldValidationIgnore, false},
		{"a map that says it is huge", "\xbb\x7f\xff\xff\xff\xff\xff\xff\xff", metav1.FieldValidationIgnore, false},
		{"JSON", `{"kind":"Pod","apiVersion":"v1"}`, metav1.FieldValidationIgnore, false},
		{"nothing", "", metav1.FieldValidationIgnore, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := Decode([]byte(tt.body), negotiate.CBOR, podKind, &corev1.Pod{}, tt.directive)
			if (err == nil) != tt.valid {
				t.Errorf("valid: %v, err: %v", tt.valid, err)
			}
		})
	}
}

func FuzzJSONOf(f *testing.F) {
	f.Add([]byte("\xd9\xd9\xf7\xa1\x44kind\x43Pod"))
	f.Add([]byte("\xf9\x7e\x00")) // NaN
	f.Fuzz(func(t *testing.T, body []byte) {
		doc, err := JSONOf(body)
		if err == nil && len(doc) == 0 {
			t.Error("neither a document nor an error")
		}
	})
}
