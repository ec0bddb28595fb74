package registry

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis/builtin"
	"proa/internal/store"
)

func TestClaimTemplatesKeepTheirTypeInTheStore(t *testing.T) {
	c := NewCodec(builtin.Catalogue())
	key := store.Key{Resource: schema.GroupResource{Group: "apps", Resource: "statefulsets"}, Namespace: "default", Name: "db"}
	value, err := c.Encode(key, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"},
		Spec: appsv1.StatefulSetSpec{VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}, ObjectMeta: metav1.ObjectMeta{Name: "data"},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	obj, err := c.Decode(key, value)
	if err != nil {
		t.Fatal(err)
	}
	if got := obj.(*appsv1.StatefulSet).Spec.VolumeClaimTemplates[0]; got.APIVersion != "v1" || got.Kind != "PersistentVolumeClaim" {
		t.Errorf("the template is a %q of %q", got.Kind, got.APIVersion)
	}
}
