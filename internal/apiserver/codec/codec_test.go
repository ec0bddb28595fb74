package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
	"proa/internal/apiserver/negotiate"
	"proa/internal/store"
)

var (
	podKind  = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	listKind = schema.GroupVersionKind{Version: "v1", Kind: "PodList"}
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", ResourceVersion: "7", Labels: map[string]string{"a": "<b>"}, CreationTimestamp: metav1.Unix(1e9, 0)},
		Spec:       corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}},
	}
}

func items(pods ...*corev1.Pod) []*store.Item {
	var list []*store.Item
	for _, p := range pods {
		list = append(list, store.NewItem(store.Key{}, p))
	}
	return list
}

// upstream encodes as the libraries that clients use do.
func upstream(t testing.TB, media string, obj runtime.Object) []byte {
	t.Helper()
	scheme := apis.Scheme()
	info, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme).SupportedMediaTypes(), media)
	var b bytes.Buffer
	if err := info.Serializer.Encode(obj, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestItemIsWhatUpstreamWrites(t *testing.T) {
	for _, media := range []negotiate.Media{negotiate.JSON, negotiate.Protobuf, negotiate.YAML} {
		f := NewForm(podKind, negotiate.Format{Media: media}, nil)
		var b bytes.Buffer
		if err := f.WriteItem(&b, items(pod("a"))[0]); err != nil {
			t.Fatal(err)
		}
		typed := pod("a")
		typed.SetGroupVersionKind(podKind)
		if want := upstream(t, string(media), typed); !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s:\n%q\n%q", media, b.Bytes(), want)
		}
	}
}

func TestListIsWhatUpstreamWrites(t *testing.T) {
	left := int64(3)
	for _, n := range []int{0, 1, 3} {
		for _, media := range []negotiate.Media{negotiate.JSON, negotiate.Protobuf, negotiate.YAML} {
			list := &corev1.PodList{Items: []corev1.Pod{}, ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "x", RemainingItemCount: &left}}
			var pods []*corev1.Pod
			for i := range n {
				pods = append(pods, pod(fmt.Sprint(i)))
				list.Items = append(list.Items, *pods[i])
			}
			f := NewForm(podKind, negotiate.Format{Media: media}, nil)
			for range 2 { // the second time from kept bytes
				var b bytes.Buffer
				if err := f.WriteList(&b, List{Kind: listKind, Meta: list.ListMeta}, items(pods...)); err != nil {
					t.Fatal(err)
				}
				list.SetGroupVersionKind(listKind)
				if want := upstream(t, string(media), list); !bytes.Equal(b.Bytes(), want) {
					t.Errorf("%d %s:\n%s\n%s", n, media, b.Bytes(), want)
				}
			}
		}
	}
}

func TestPrettyListIsIndented(t *testing.T) {
	f := NewForm(podKind, negotiate.Format{Media: negotiate.JSON, Pretty: true}, nil)
	for n := range 3 {
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
		var pods []*corev1.Pod
		for range n {
			pods = append(pods, pod("a"))
			list.Items = append(list.Items, *pod("a"))
		}
		var b bytes.Buffer
		if err := f.WriteList(&b, List{Kind: listKind}, items(pods...)); err != nil {
			t.Fatal(err)
		}
		want, _ := json.MarshalIndent(list, "", "  ")
		if !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s\n%s", b.Bytes(), want)
		}
	}
}

func TestCustomResourcesKeepTheirOwnKind(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "x.io", Version: "v1", Kind: "Foo"}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "x.io/v1", "kind": "Foo", "metadata": map[string]any{"name": "a"}}}
	f := NewForm(kind, negotiate.Format{Media: negotiate.JSON}, nil)
	item := store.NewItem(store.Key{}, u)
	var b bytes.Buffer
	if err := f.WriteItem(&b, item); err != nil || b.String() != `{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"a"}}`+"\n" {
		t.Errorf("%s, %v", b.String(), err)
	}
	b.Reset()
	l := List{Kind: kind.GroupVersion().WithKind("FooList")}
	if err := f.WriteList(&b, l, []*store.Item{item}); err != nil || b.String() != `{"kind":"FooList","apiVersion":"x.io/v1","metadata":{},"items":[{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"a"}}]}`+"\n" {
		t.Errorf("%s, %v", b.String(), err)
	}
}

func TestMetadataOnly(t *testing.T) {
	kind := metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
	f := NewForm(podKind, negotiate.Format{Media: negotiate.JSON}, nil).Variant("metadata", kind, func(obj apis.Object) (apis.Object, error) { return Partial(obj), nil })
	var b bytes.Buffer
	if err := f.WriteList(&b, List{Kind: metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList"), ItemKinds: true}, items(pod("a"))); err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"`
	if !strings.HasPrefix(b.String(), want) || strings.Contains(b.String(), "spec") {
		t.Error(b.String())
	}
}

func TestPartialKeepsTheMetadataOfEveryObject(t *testing.T) {
	now := metav1.NewTime(time.Unix(1e9, 0))
	grace := int64(3)
	meta := metav1.ObjectMeta{
		Name: "n", GenerateName: "g", Namespace: "ns", UID: "u", ResourceVersion: "1", Generation: 2, CreationTimestamp: now, DeletionTimestamp: &now,
		DeletionGracePeriodSeconds: &grace, Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		OwnerReferences: []metav1.OwnerReference{{Name: "o"}}, Finalizers: []string{"f"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Pod{ObjectMeta: meta})
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range []apis.Object{&corev1.Pod{ObjectMeta: meta}, &unstructured.Unstructured{Object: raw}} {
		if got := Partial(obj); !equality.Semantic.DeepEqual(got.ObjectMeta, meta) {
			t.Errorf("%T: %+v", obj, got)
		}
	}
}

func TestWatchFramesAreWhatClientsRead(t *testing.T) {
	scheme := apis.Scheme()
	for _, media := range []negotiate.Media{negotiate.JSON, negotiate.Protobuf} {
		f := NewForm(podKind, negotiate.Format{Media: media}, nil)
		var b bytes.Buffer
		for _, typ := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark} {
			if err := f.WriteEvent(&b, typ, items(pod("a"))[0]); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.WriteError(&b, &metav1.Status{Status: "Failure", Code: 410}); err != nil {
			t.Fatal(err)
		}
		info, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme).SupportedMediaTypes(), string(media))
		reader := streaming.NewDecoder(info.StreamSerializer.Framer.NewFrameReader(io.NopCloser(&b)), info.StreamSerializer.Serializer)
		for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, watch.Error} {
			var e metav1.WatchEvent
			if _, _, err := reader.Decode(nil, &e); err != nil || e.Type != string(want) {
				t.Fatalf("%s %s: %v, %v", media, want, e, err)
			}
			obj, gvk, err := info.Serializer.Decode(e.Object.Raw, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want == watch.Error {
				if obj.(*metav1.Status).Code != 410 {
					t.Errorf("%v", obj)
				}
				continue
			}
			got := obj.(*corev1.Pod)
			got.TypeMeta = metav1.TypeMeta{}
			if *gvk != podKind || !equality.Semantic.DeepEqual(got, pod("a")) {
				t.Errorf("%s: %v", media, got)
			}
		}
	}
}

func TestEncodingIsKeptOnce(t *testing.T) {
	encoded := 0
	f := NewForm(podKind, negotiate.Format{Media: negotiate.JSON}, func(obj apis.Object) (apis.Object, error) { encoded++; return obj, nil })
	item := items(pod("a"))[0]
	for range 3 {
		if err := f.WriteEvent(io.Discard, watch.Added, item); err != nil {
			t.Fatal(err)
		}
		if err := f.WriteItem(io.Discard, item); err != nil {
			t.Fatal(err)
		}
		if err := f.WriteList(io.Discard, List{Kind: listKind}, []*store.Item{item}); err != nil {
			t.Fatal(err)
		}
	}
	if encoded != 1 {
		t.Errorf("encoded %d times", encoded)
	}
}

func TestALongBeginningIsWrittenAsAnyEventAndNotKept(t *testing.T) {
	convert := func(obj apis.Object) (apis.Object, error) { return obj, nil }
	for _, media := range []negotiate.Media{negotiate.JSON, negotiate.Protobuf} {
		for _, convert := range []func(apis.Object) (apis.Object, error){nil, convert} {
			f := NewForm(podKind, negotiate.Format{Media: media}, convert)
			item := items(pod("a"))[0]
			var page, event bytes.Buffer
			initial, err := f.AppendInitial(nil, watch.Added, item, new(Memo))
			if err != nil {
				t.Fatal(err)
			}
			if err := f.WriteList(&page, List{Kind: listKind, Meta: metav1.ListMeta{Continue: "more"}}, []*store.Item{item}); err != nil {
				t.Fatal(err)
			}
			if _, kept := f.peek(item); kept {
				t.Errorf("%s: the bytes of one of many are kept", media)
			}
			if err := f.WriteEvent(&event, watch.Added, item); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(initial, event.Bytes()) {
				t.Errorf("%s: got\n%q, want\n%q", media, initial, event.Bytes())
			}
			if initial, err = f.AppendInitial(nil, watch.Added, item, new(Memo)); err != nil || !bytes.Equal(initial, event.Bytes()) {
				t.Errorf("%s: kept bytes make %q, %v", media, initial, err)
			}
		}
	}
}

func TestObjectsThatSharePartsBeginAWatchAsAnyOther(t *testing.T) {
	first := pod("a")
	second := first.DeepCopy()
	second.Name, second.Spec.Containers, second.Labels = "b", first.Spec.Containers, first.Labels
	typed := second.DeepCopy()
	typed.Kind, typed.APIVersion = "Pod", "v1"
	for _, media := range []negotiate.Media{negotiate.JSON, negotiate.Protobuf} {
		beginAsAnyOther(t, NewForm(podKind, negotiate.Format{Media: media}, nil), first, second, typed, second, &corev1.Pod{}, first)
	}
}

func beginAsAnyOther(t *testing.T, f *Form, pods ...*corev1.Pod) {
	t.Helper()
	var got []byte
	var want bytes.Buffer
	var memo Memo
	for _, p := range pods {
		item := store.NewItem(store.Key{Name: p.Name}, p)
		var err error
		if got, err = f.AppendInitial(got, watch.Added, item, &memo); err != nil {
			t.Fatal(err)
		}
		if err := f.WriteEvent(&want, watch.Added, item); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("got\n%s, want\n%s", got, want.Bytes())
	}
}

func TestDecode(t *testing.T) {
	cm := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	tests := []struct {
		name, body, directive string
		media                 negotiate.Media
		warnings              []string
		err                   string
	}{
		{"a good body", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`, "Strict", negotiate.JSON, nil, ""},
		{"kind and version may be left out", `{"metadata":{"name":"a"}}`, "Strict", negotiate.JSON, nil, ""},
		{"YAML", "metadata:\n  name: a\n", "Strict", negotiate.YAML, nil, ""},
		{"an unknown field warns", `{"metadata":{"name":"a","x":1}}`, "", negotiate.JSON, []string{`unknown field "metadata.x"`}, ""},
		{"an unknown field is ignored", `{"metadata":{"name":"a","x":1}}`, "Ignore", negotiate.JSON, nil, ""},
		{"an unknown field fails", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","x":1}}`, "Strict", negotiate.JSON, nil,
			`ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "metadata.x"`},
		{"YAML warns line by line", "metadata:\n  name: a\n  x: 1\n  x: 2\n", "", negotiate.YAML,
			[]string{`line 4: key "x" already set in map`, `unknown field "metadata.x"`}, ""},
		{"a wrong type", `{"kind":"ConfigMap","apiVersion":"v1","data":[]}`, "", negotiate.JSON, nil,
			`ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string`},
		{"no body", ``, "", negotiate.JSON, nil, `unexpected end of JSON input`},
		{"protobuf without its magic", `x`, "", negotiate.Protobuf, nil, `provided data does not appear to be a protobuf message`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			obj, warnings, err := Decode([]byte(tt.body), tt.media, cm, &corev1.ConfigMap{}, tt.directive)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || obj.GetName() != "a" || !reflect.DeepEqual(warnings, tt.warnings) || obj.GetObjectKind().GroupVersionKind() != (schema.GroupVersionKind{}) {
				t.Errorf("got %v, %q, %v", obj, warnings, err)
			}
		})
	}
}

// Whatever a pod holds, what is spliced reads back as the pods.
func FuzzListSplicing(f *testing.F) {
	f.Add("a", "b", "c", 2)
	f.Add("", "\x00\xff", "]}", 0)
	scheme := apis.Scheme()
	proto := protobuf.NewSerializer(scheme, scheme)
	f.Fuzz(func(t *testing.T, name, label, token string, n int) {
		for _, s := range []*string{&name, &label, &token} {
			*s = strings.ToValidUTF8(*s, "?")
		}
		want := &corev1.PodList{ListMeta: metav1.ListMeta{Continue: token}}
		var pods []*corev1.Pod
		for i := range min(max(n, 0), 5) {
			p := pod(name + fmt.Sprint(i))
			p.Labels[label] = token
			pods = append(pods, p)
			want.Items = append(want.Items, *p)
		}
		for _, media := range []negotiate.Media{negotiate.JSON, negotiate.Protobuf} {
			var b bytes.Buffer
			if err := NewForm(podKind, negotiate.Format{Media: media}, nil).WriteList(&b, List{Kind: listKind, Meta: want.ListMeta}, items(pods...)); err != nil {
				t.Fatal(err)
			}
			got := &corev1.PodList{}
			var err error
			if media == negotiate.JSON {
				err = json.Unmarshal(b.Bytes(), got)
			} else {
				_, _, err = proto.Decode(b.Bytes(), nil, got)
			}
			got.TypeMeta = metav1.TypeMeta{}
			if err != nil || !equality.Semantic.DeepEqual(got, want) {
				t.Fatalf("%s: %v\n%v\n%v", media, err, got, want)
			}
		}
		var text bytes.Buffer
		if err := NewForm(podKind, negotiate.Format{Media: negotiate.YAML}, nil).WriteList(&text, List{Kind: listKind, Meta: want.ListMeta}, items(pods...)); err != nil {
			if strings.Contains(err.Error(), "control characters are not allowed") {
				return // the library has no form for them
			}
			t.Fatal(err)
		}
		got := &corev1.PodList{}
		if err := yaml.Unmarshal(text.Bytes(), got); err != nil || len(got.Items) != len(want.Items) {
			t.Fatalf("%v\n%s", err, text.Bytes())
		}
	})
}

// No body makes the decoder panic, or decodes into another kind.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"b"}}`), 0)
	f.Add([]byte("apiVersion: v1\nkind: ConfigMap\n"), 1)
	f.Add([]byte("k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x00"), 2)
	f.Add([]byte("\xd9\xd9\xf7\xa2\x44kind\x49ConfigMap\x4aapiVersion\x42v1"), 3)
	f.Add([]byte("\xbb\x7f\xff\xff\xff\xff\xff\xff\xff"), 3)
	media := []negotiate.Media{negotiate.JSON, negotiate.YAML, negotiate.Protobuf, negotiate.CBOR}
	f.Fuzz(func(t *testing.T, body []byte, m int) {
		obj, _, err := Decode(body, media[uint(m)%4], schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, &corev1.ConfigMap{}, "")
		if _, ok := obj.(*corev1.ConfigMap); err == nil && !ok {
			t.Fatalf("decoded %T", obj)
		}
	})
}

func largePod(i int) *corev1.Pod {
	p := pod(fmt.Sprintf("pod-%06d", i))
	p.UID = "11111111-2222-3333-4444-555555555555"
	c := &p.Spec.Containers[0]
	c.Command = []string{"/bin/server", "--listen=:8080", "--config=/etc/config/server.yaml"}
	for i := range 12 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", i), Value: "some value of a usual length"})
	}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}, {Name: "data", MountPath: "/data"}}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "bench", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:command":{},"f:env":{".":{},"k:{\"name\":\"VARIABLE_0\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:name":{},"f:resources":{}}}}}`)}}}
	for _, typ := range []corev1.PodConditionType{"Ready", "Initialized", "ContainersReady", "PodScheduled"} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: typ, Status: "True", LastTransitionTime: metav1.Unix(1e9, 0)})
	}
	return p
}

func BenchmarkList(b *testing.B) {
	for _, n := range []int{1000, 50_000} {
		pods := make([]*corev1.Pod, n)
		for i := range pods {
			pods[i] = largePod(i)
		}
		list := items(pods...)
		for _, media := range []negotiate.Media{negotiate.JSON, negotiate.Protobuf} {
			b.Run(fmt.Sprintf("%d/%s", n, media), func(b *testing.B) {
				f := NewForm(podKind, negotiate.Format{Media: media}, nil)
				b.ReportAllocs()
				for b.Loop() {
					var size counter
					if err := f.WriteList(&size, List{Kind: listKind}, list); err != nil {
						b.Fatal(err)
					}
					b.SetBytes(int64(size))
				}
			})
		}
	}
}

type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }
