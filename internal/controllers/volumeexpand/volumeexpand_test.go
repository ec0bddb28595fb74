package volumeexpand

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestAClaimThatWantsToGrowIsLeftToItsProvisioner(t *testing.T) {
	size := func(s string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
	}
	access := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: access, Resources: corev1.VolumeResourceRequirements{Requests: size("1Gi")}, VolumeName: "v", StorageClassName: new("s"),
		}})
		claim := controllertest.Get[*corev1.PersistentVolumeClaim](w, "data")
		if _, err := client.Of[*corev1.PersistentVolume](w.API).Create(w.T.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
				AccessModes: access, Capacity: size("1Gi"), StorageClassName: "s", ClaimRef: &corev1.ObjectReference{Namespace: claim.Namespace, Name: "data", UID: claim.UID},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "example.com", VolumeHandle: "h"}},
			},
		}); err != nil {
			t.Fatal(err)
		}
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		controllertest.ChangeStatus(w, "data", func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase, c.Status.Capacity, c.Status.AccessModes = corev1.ClaimBound, size("1Gi"), access
		})
		if got := w.Events(); len(got) != 0 {
			t.Fatalf("events of a claim that has what it wants: %v", got)
		}
		controllertest.Change(w, "data", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = size("2Gi") })
		want := []string{"Normal ExternalExpanding waiting for an external controller to expand this PVC"}
		if got := w.Events(); !slices.Equal(got, want) {
			t.Errorf("events: %v", got)
		}
		controllertest.ChangeStatus(w, "data", func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = size("2Gi") })
		if got := w.Events(); len(got) != 1 {
			t.Errorf("events: %v", got)
		}
	})
}
