package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Who asks for a certificate says how long it shall live.
func TestCertificatesLiveAsLongAsAsked(t *testing.T) {
	t.Parallel()
	s := start(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	requests := s.admin(t).CertificatesV1().CertificateSigningRequests()
	ask := func(name string, seconds int32) (*certificatesv1.CertificateSigningRequest, error) {
		return requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: certificatesv1.KubeAPIServerClientSignerName, ExpirationSeconds: ptr.To(seconds),
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			},
		}, metav1.CreateOptions{})
	}
	if _, err := ask("short", 599); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)") {
		t.Errorf("599 seconds: %v", err)
	}
	request, err := ask("ten-minutes", 600)
	if err != nil {
		t.Fatal(err)
	}
	longer := request.DeepCopy()
	longer.Spec.ExpirationSeconds = ptr.To[int32](6000)
	if changed, err := requests.Update(t.Context(), longer, metav1.UpdateOptions{}); err != nil || *changed.Spec.ExpirationSeconds != 600 {
		t.Errorf("the duration was changed: %v, %v", changed, err)
	} else {
		request = changed
	}
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	if _, err := requests.UpdateApproval(t.Context(), request.Name, request, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		got, err := requests.Get(t.Context(), request.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		block, _ := pem.Decode(got.Status.Certificate)
		if block == nil {
			return fmt.Errorf("no certificate: %v", got.Status)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if life := cert.NotAfter.Sub(cert.NotBefore); life < 10*time.Minute || life > 15*time.Minute {
			t.Errorf("it lives %v", life)
		}
		return nil
	})
	for _, metric := range []string{"requested", "honored"} {
		line := fmt.Sprintf(`apiserver_certificates_registry_csr_%s_duration_total{signerName="kubernetes.io/kube-apiserver-client"} 1`, metric)
		if s.metrics(t, line) == "" {
			t.Errorf("no metric %s", line)
		}
	}
}
