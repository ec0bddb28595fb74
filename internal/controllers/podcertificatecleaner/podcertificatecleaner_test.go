package podcertificatecleaner

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestARequestIsKeptForAQuarterOfAnHour(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, func(w *controllertest.World) {
		request := func(name string) {
			w.Create(&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.PodCertificateRequestSpec{
				SignerName: "example.com/signer", PodName: "web", PodUID: "p", ServiceAccountName: "app", ServiceAccountUID: "s",
				NodeName: "node", NodeUID: "n", StubPKCS10Request: stub,
			}})
		}
		request("early") // before the controller starts
		time.Sleep(10 * time.Minute)
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		request("late")
		left := func(want int) {
			t.Helper()
			w.Settle()
			if n := len(controllertest.List[*certificatesv1.PodCertificateRequest](w)); n != want {
				t.Errorf("%d requests are left, want %d", n, want)
			}
		}
		left(2)
		time.Sleep(4 * time.Minute)
		left(2)
		time.Sleep(2 * time.Minute)
		left(1)
		time.Sleep(10 * time.Minute)
		left(0)
	})
}
