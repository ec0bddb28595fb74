package legacytokentracking

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestTheDateIsKeptUnlessItIsNone(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		configMaps := client.Of[*corev1.ConfigMap](w.API)
		today := time.Now().UTC().Format(time.DateOnly)
		for _, step := range []struct{ given, want string }{{"", today}, {"2020-02-02", "2020-02-02"}, {"last week", today}} {
			w.Settle()
			cm, err := configMaps.Get(w.T.Context(), metav1.NamespaceSystem, ConfigMapName)
			if err != nil {
				t.Fatal(err)
			}
			if step.given != "" {
				cm = cm.DeepCopy()
				cm.Data = map[string]string{SinceKey: step.given}
				if _, err := configMaps.Update(w.T.Context(), cm); err != nil {
					t.Fatal(err)
				}
				w.Settle()
				if cm, err = configMaps.Get(w.T.Context(), metav1.NamespaceSystem, ConfigMapName); err != nil {
					t.Fatal(err)
				}
			}
			if got := cm.Data[SinceKey]; got != step.want {
				t.Errorf("given %q it says %q", step.given, got)
			}
		}
		if _, err := configMaps.Delete(w.T.Context(), metav1.NamespaceSystem, ConfigMapName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pace) // it is made at most that often
		w.Settle()
		if _, err := configMaps.Get(w.T.Context(), metav1.NamespaceSystem, ConfigMapName); err != nil {
			t.Errorf("it is not made again: %v", err)
		}
	})
}
