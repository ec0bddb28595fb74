package volumeattributesclass

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestAClassStaysWhileItIsUsed(t *testing.T) {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: size},
		VolumeAttributesClassName: new("wanted"),
	}}
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		for _, name := range []string{"had", "of-volume", "unused", "wanted"} {
			w.Create(&storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: "example.com", Parameters: map[string]string{"iops": "100"}})
		}
		w.Create(claim)
		controllertest.ChangeStatus(w, "data", func(c *corev1.PersistentVolumeClaim) { c.Status.CurrentVolumeAttributesClassName = new("had") })
		of := client.Of[*corev1.PersistentVolume](w.API)
		if _, err := of.Create(w.T.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, Capacity: size, VolumeAttributesClassName: new("of-volume"),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "example.com", VolumeHandle: "h"}},
		}}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		left := func(want ...string) {
			t.Helper()
			w.Settle()
			var names []string
			for _, c := range controllertest.List[*storagev1.VolumeAttributesClass](w) {
				names = append(names, c.Name)
				if !slices.Contains(c.Finalizers, finalizer) {
					t.Errorf("%s: %v", c.Name, c.Finalizers)
				}
			}
			if !slices.Equal(names, want) {
				t.Errorf("left: %v, want %v", names, want)
			}
		}
		left("had", "of-volume", "unused", "wanted")
		for _, name := range []string{"had", "of-volume", "unused", "wanted"} {
			if _, err := client.Of[*storagev1.VolumeAttributesClass](w.API).Delete(w.T.Context(), "", name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		left("had", "of-volume", "wanted")
		controllertest.ChangeStatus(w, "data", func(c *corev1.PersistentVolumeClaim) { c.Status.CurrentVolumeAttributesClassName = new("wanted") })
		left("of-volume", "wanted")
		if _, err := of.Delete(w.T.Context(), "", "v", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		left("wanted")
		controllertest.Delete[*corev1.PersistentVolumeClaim](w, "data")
		left()
	})
}
