package tokencleaner

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestExpiredTokensAreDeleted(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		token := func(name, expiration string) {
			w.Create(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem},
				Type:       corev1.SecretTypeBootstrapToken, Data: map[string][]byte{"expiration": []byte(expiration)},
			})
		}
		token("bootstrap-token-for-ever", "")
		token("bootstrap-token-an-hour", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		token("bootstrap-token-unreadable", "tomorrow")
		w.Settle()
		count := func(want int) {
			t.Helper()
			if got := controllertest.List[*corev1.Secret](w); len(got) != want {
				t.Errorf("%d tokens, want %d", len(got), want)
			}
		}
		count(2)
		time.Sleep(59 * time.Minute)
		w.Settle()
		count(2)
		time.Sleep(2 * time.Minute)
		w.Settle()
		count(1)
	})
}
