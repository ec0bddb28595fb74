package bootstrapsigner

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

// The signature was computed apart from this code.
func TestASignatureIsTheDetachedFormOfAJWS(t *testing.T) {
	const want = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..psz1NayrXM3IaFzKZGsb5n_mBl7MjtlsZ1xE8MRmF_4"
	if got := signature("content", "abcdef", "0123456789abcdef"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSignaturesFollowTokens(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespacePublic}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		w.Create(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: configMapName, Namespace: metav1.NamespacePublic},
			Data:       map[string]string{kubeconfigKey: "content", signaturePrefix + "gone01": "x"},
		})
		token := func(id, signing string) {
			w.Create(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: metav1.NamespaceSystem}, Type: corev1.SecretTypeBootstrapToken,
				Data: map[string][]byte{"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-signing": []byte(signing)},
			})
		}
		token("abcdef", "true")
		token("fedcba", "false")
		w.Settle()
		keys := func() string {
			cm, err := client.Of[*corev1.ConfigMap](w.API).Get(w.T.Context(), metav1.NamespacePublic, configMapName)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for key := range cm.Data {
				if id, ok := strings.CutPrefix(key, signaturePrefix); ok {
					ids = append(ids, id)
				}
			}
			return strings.Join(ids, " ")
		}
		if got := keys(); got != "abcdef" {
			t.Errorf("signed by %q", got)
		}
		if _, err := client.Of[*corev1.Secret](w.API).Delete(w.T.Context(), metav1.NamespaceSystem, "bootstrap-token-abcdef", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if got := keys(); got != "" {
			t.Errorf("signed by %q after its token is gone", got)
		}
	})
}
