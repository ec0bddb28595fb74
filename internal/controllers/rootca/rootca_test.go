package rootca

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestTheCAIsPublishedAndRestored(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = w.Registry()
			return []controllertest.Runner{New(c, []byte("CA"))}
		})()
		check := func(when string) {
			t.Helper()
			if cm := controllertest.Get[*corev1.ConfigMap](w, configMapName); cm.Data["ca.crt"] != "CA" || len(cm.Data) != 1 || cm.Annotations[descriptionAnnotation] != description {
				t.Errorf("%s: %+v", when, cm)
			}
		}
		check("at first")
		controllertest.Change(w, configMapName, func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"mine": "x"} })
		check("after a change")
		controllertest.Delete[*corev1.ConfigMap](w, configMapName)
		check("after a deletion")
		w.Writes()
		controllertest.Change(w, configMapName, func(cm *corev1.ConfigMap) { cm.Labels = map[string]string{"a": "b"} })
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v", got)
		}
		w.FailWrites(func(int) (before, after error) {
			return apierrors.NewForbidden(corev1.Resource("configmaps"), configMapName, nil), nil
		})
		controllertest.Delete[*corev1.ConfigMap](w, configMapName)
		w.Measured(`root_ca_cert_publisher_sync_total{code="403"} 1`)
	})
}
