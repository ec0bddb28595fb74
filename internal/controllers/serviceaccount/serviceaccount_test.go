package serviceaccount

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestEveryNamespaceHasADefaultAccount(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		controllertest.Get[*corev1.ServiceAccount](w, "default")
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
		w.Settle()
		if got := controllertest.List[*corev1.ServiceAccount](w); len(got) != 2 || got[1].Namespace != "other" {
			t.Errorf("accounts %v", got)
		}
		first := controllertest.Get[*corev1.ServiceAccount](w, "default").UID
		controllertest.Delete[*corev1.ServiceAccount](w, "default")
		if again := controllertest.Get[*corev1.ServiceAccount](w, "default"); again.UID == first {
			t.Error("the account was not deleted")
		}
		w.Writes()
		controllertest.Change(w, "other", func(ns *corev1.Namespace) { ns.Labels["a"] = "b" })
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v", got)
		}
	})
}

func TestANamespaceThatGoesGetsNoAccount(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		controllertest.Delete[*corev1.Namespace](w, "default")
		controllertest.Delete[*corev1.ServiceAccount](w, "default")
		if got := controllertest.List[*corev1.ServiceAccount](w); len(got) != 0 {
			t.Errorf("accounts %v", got)
		}
	})
}
