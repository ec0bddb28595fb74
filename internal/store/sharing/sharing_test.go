package sharing

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	semantic "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

func pod(name string) *corev1.Pod {
	optional := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "a"}, Annotations: map[string]string{"own": name}},
		Spec: corev1.PodSpec{
			NodeName: "n",
			Containers: []corev1.Container{{
				Name: "c", Env: []corev1.EnvVar{{Name: "k", Value: "v"}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}},
			}},
			EnableServiceLinks: &optional,
			SecurityContext:    &corev1.PodSecurityContext{},
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "Ready", LastTransitionTime: metav1.Now()}}},
	}
}

func TestEqualPartsAreShared(t *testing.T) {
	a, b := pod("a"), pod("b")
	was := b.DeepCopy()
	Parts(b, a)
	if diff := cmp.Diff(was, b); diff != "" {
		t.Errorf("the object is another: %s", diff)
	}
	if &a.Spec.Containers[0] != &b.Spec.Containers[0] || a.Spec.SecurityContext != b.Spec.SecurityContext ||
		a.Spec.EnableServiceLinks != b.Spec.EnableServiceLinks ||
		reflect.ValueOf(a.Labels).Pointer() != reflect.ValueOf(b.Labels).Pointer() ||
		unsafe.StringData(a.Spec.NodeName) != unsafe.StringData(b.Spec.NodeName) {
		t.Error("equal parts are not shared")
	}
	if cap(b.Spec.Containers) != 1 {
		t.Error("the room behind a shared slice is shared too")
	}
	if &a.Status.Conditions[0] == &b.Status.Conditions[0] || a.Annotations["own"] == b.Annotations["own"] {
		t.Error("what differs is shared")
	}
}

func TestNilIsNotEmpty(t *testing.T) {
	a, b := pod("a"), pod("b")
	a.Spec.Tolerations, b.Spec.Tolerations = []corev1.Toleration{}, nil
	a.Labels, b.Labels = nil, map[string]string{}
	Parts(b, a)
	if b.Spec.Tolerations != nil || b.Labels == nil {
		t.Error("nil and empty are taken for the same")
	}
}

func TestObjectsWithoutATypeAreShared(t *testing.T) {
	object := func(name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": name, "labels": map[string]any{"a": "b"}},
			"spec":     map[string]any{"list": []any{int64(1), "x", nil, true}},
			"own":      map[string]any{"name": name},
		}}
	}
	a, b := object("a"), object("b")
	Parts(b, a)
	at := func(u *unstructured.Unstructured, path ...string) uintptr {
		m, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
		return reflect.ValueOf(m).Pointer()
	}
	if at(a, "spec") != at(b, "spec") || at(a, "metadata", "labels") != at(b, "metadata", "labels") {
		t.Error("equal parts are not shared")
	}
	if at(a, "metadata") == at(b, "metadata") || !reflect.DeepEqual(b, object("b")) {
		t.Error("the object is another")
	}
}

// Whatever two objects are, sharing changes neither, and writes to nothing but the
// first one's own struct.
func TestSharingChangesNothing(t *testing.T) {
	codecs := serializer.NewCodecFactory(scheme.Scheme)
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), codecs)
	for _, kind := range []any{
		&corev1.Pod{}, &corev1.Service{}, &corev1.Node{}, &corev1.ConfigMap{}, &corev1.PersistentVolume{},
	} {
		for range 50 {
			a := reflect.New(reflect.TypeOf(kind).Elem()).Interface()
			fill.Fill(a)
			b := reflect.New(reflect.TypeOf(kind).Elem()).Interface()
			if rand.Intn(2) == 0 {
				b = copied(a)
			} else {
				fill.Fill(b)
			}
			before, own := copied(b), copied(a)
			shallow := reflect.New(reflect.TypeOf(kind).Elem())
			shallow.Elem().Set(reflect.ValueOf(b).Elem())
			Parts(b, a)
			if !semantic.Semantic.DeepEqual(b, before) || !semantic.Semantic.DeepEqual(a, own) ||
				!semantic.Semantic.DeepEqual(shallow.Interface(), before) {
				t.Fatalf("sharing changes a %T", kind)
			}
		}
	}
}

// Whatever Equal says yes to is written alike and equal in meaning; a copy is equal.
func TestWhatIsEqualIsWrittenAlike(t *testing.T) {
	codecs := serializer.NewCodecFactory(scheme.Scheme)
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(2), codecs)
	for _, kind := range []any{&corev1.Pod{}, &corev1.Service{}, &corev1.Node{}, &corev1.ConfigMap{}} {
		for range 50 {
			a, b := reflect.New(reflect.TypeOf(kind).Elem()).Interface(), reflect.New(reflect.TypeOf(kind).Elem()).Interface()
			fill.Fill(a)
			fill.Fill(b)
			for _, pair := range [][2]any{{a, b}, {a, copied(a)}} {
				x, errX := json.Marshal(pair[0])
				y, errY := json.Marshal(pair[1])
				if errX != nil || errY != nil {
					continue
				}
				if Equal(pair[0], pair[1]) && (!bytes.Equal(x, y) || !semantic.Semantic.DeepEqual(pair[0], pair[1])) {
					t.Fatalf("equal, but written as\n%s\n%s", x, y)
				}
			}
		}
	}
	a, b := pod("a"), pod("a")
	a.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Unix(7, 0).UTC())
	b.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Unix(7, 0).In(time.FixedZone("east", 3600)))
	if !Equal(a, b) {
		t.Error("equal pods are not found equal")
	}
	for name, change := range map[string]func(*corev1.Pod){
		"a label":     func(p *corev1.Pod) { p.Labels["app"] = "b" },
		"a quantity":  func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("1") },
		"a variable":  func(p *corev1.Pod) { p.Spec.Containers[0].Env[0].Value = "w" },
		"a second":    func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.Unix(8, 0) },
		"an empty":    func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{} },
		"a pointer":   func(p *corev1.Pod) { p.Spec.EnableServiceLinks = nil },
		"a condition": func(p *corev1.Pod) { p.Status.Conditions = nil },
	} {
		if c := b.DeepCopy(); !Equal(c, b) {
			t.Error("a copy is not equal")
		} else if change(c); Equal(c, b) {
			t.Errorf("%s makes no difference", name)
		}
	}
}

func TestTypesThatContainThemselvesAreCompared(t *testing.T) {
	schema := func(name, leaf string) *apiextensionsv1.CustomResourceDefinition {
		nested := map[string]apiextensionsv1.JSONSchemaProps{"spec": {Items: &apiextensionsv1.JSONSchemaPropsOrArray{
			Schema: &apiextensionsv1.JSONSchemaProps{Type: leaf},
		}}}
		return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Properties: nested},
			}}},
		}}
	}
	a, b, c := schema("a", "string"), schema("b", "string"), schema("c", "integer")
	Parts(b, a)
	Parts(c, a)
	if &a.Spec.Versions[0] != &b.Spec.Versions[0] || &a.Spec.Versions[0] == &c.Spec.Versions[0] {
		t.Error("equal schemas are not shared, or different ones are")
	}
}

func copied(obj any) any {
	return reflect.ValueOf(obj).MethodByName("DeepCopy").Call(nil)[0].Interface()
}

func BenchmarkParts(b *testing.B) {
	x, y := pod("x"), pod("y")
	for b.Loop() {
		Parts(y.DeepCopy(), x)
	}
}
