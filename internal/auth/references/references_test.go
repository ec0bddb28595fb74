package references

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNoSecretReferenceIsForgotten walks every field of a pod's spec that is
// named like a reference to a Secret, sets it alone and asks for the visitor's
// answer: a new field of the API fails here until the visitor knows it.
func TestNoSecretReferenceIsForgotten(t *testing.T) {
	forEachField(reflect.TypeFor[corev1.PodSpec](), nil, func(path []step) {
		last := path[len(path)-1].name
		if last != "SecretName" && !(last == "Name" && namesSecret(path)) {
			return
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
		set(reflect.ValueOf(&pod.Spec).Elem(), path, "found")
		var got []string
		for name := range Secrets(pod) {
			got = append(got, name)
		}
		if !slices.Equal(got, []string{"found"}) {
			t.Errorf("%s: visited %v", pathString(path), got)
		}
	})
}

// TestNoConfigMapReferenceIsForgotten is the same for ConfigMaps.
func TestNoConfigMapReferenceIsForgotten(t *testing.T) {
	forEachField(reflect.TypeFor[corev1.PodSpec](), nil, func(path []step) {
		if path[len(path)-1].name != "Name" || !slices.ContainsFunc(path, func(s step) bool { return strings.HasPrefix(s.name, "ConfigMap") }) {
			return
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
		set(reflect.ValueOf(&pod.Spec).Elem(), path, "found")
		var got []string
		for name := range ConfigMaps(pod) {
			got = append(got, name)
		}
		if !slices.Equal(got, []string{"found"}) {
			t.Errorf("%s: visited %v", pathString(path), got)
		}
	})
}

func namesSecret(path []step) bool {
	return slices.ContainsFunc(path, func(s step) bool {
		return s.name == "Secret" || s.name == "ImagePullSecrets" || strings.HasSuffix(s.name, "SecretRef") || s.name == "SecretKeyRef"
	})
}

type step struct {
	name  string
	index int
}

// forEachField visits the paths of all string fields, through pointers and slices.
func forEachField(t reflect.Type, path []step, visit func([]step)) {
	for i := range t.NumField() {
		f := t.Field(i)
		p := append(slices.Clip(path), step{f.Name, i})
		ft := f.Type
		for ft.Kind() == reflect.Pointer || ft.Kind() == reflect.Slice {
			ft = ft.Elem()
		}
		switch {
		case ft.Kind() == reflect.String:
			visit(p)
		case ft.Kind() == reflect.Struct && strings.HasPrefix(ft.PkgPath(), "k8s.io/api/core"):
			forEachField(ft, p, visit)
		}
	}
}

func set(v reflect.Value, path []step, value string) {
	for _, s := range path {
		v = v.Field(s.index)
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			if v.Kind() == reflect.Pointer {
				v.Set(reflect.New(v.Type().Elem()))
				v = v.Elem()
			} else {
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
				v = v.Index(0)
			}
		}
	}
	v.SetString(value)
}

func pathString(path []step) string {
	var parts []string
	for _, s := range path {
		parts = append(parts, s.name)
	}
	return fmt.Sprint(strings.Join(parts, "."))
}
