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
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/auth/authtest"
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

// A bundle of a signer is written by who may attest for it, and found by its signer.
func TestTrustBundlesNeedAttestation(t *testing.T) {
	t.Parallel()
	s := start(t, "--token-auth-file", file(t, "tokens.csv", "t,jane,1\n"))
	s.allow(t, "jane", rbacv1.PolicyRule{Verbs: []string{"create", "update", "delete", "list"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}},
		rbacv1.PolicyRule{Verbs: []string{"attest"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{"example.com/mine"}})
	bundles := s.bearer(t, "t").CertificatesV1().ClusterTrustBundles()
	ca := authtest.NewIssuer(t).CA
	bundle := func(name, signer, ca string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: ca}}
	}
	eventually(t, func() error {
		_, err := bundles.Create(t.Context(), bundle("example.com:mine:a", "example.com/mine", ca), metav1.CreateOptions{})
		return err
	})
	if _, err := bundles.Create(t.Context(), bundle("example.com:foreign:a", "example.com/foreign", ca), metav1.CreateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), `user not permitted to attest for signerName "example.com/foreign"`) {
		t.Errorf("for a foreign signer: %v", err)
	}
	if _, err := bundles.Create(t.Context(), bundle("nobodys", "", ca), metav1.CreateOptions{}); err != nil {
		t.Errorf("for no signer: %v", err)
	}
	for name, wrong := range map[string]*certificatesv1.ClusterTrustBundle{
		"a name that is not the signer's": bundle("a", "example.com/mine", ca), "a signer's name without one": bundle("example.com:mine:b", "", ca),
		"no certificate": bundle("empty", "", ""), "what is no certificate": bundle("stray", "", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), "one twice": bundle("twice", "", ca+ca),
	} {
		if _, err := bundles.Create(t.Context(), wrong, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	list, err := bundles.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=example.com/mine"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "example.com:mine:a" {
		t.Errorf("of its signer: %v, %v", list, err)
	}
	moved := list.Items[0].DeepCopy()
	moved.Spec.SignerName = "example.com/other"
	if _, err := bundles.Update(t.Context(), moved, metav1.UpdateOptions{}); err == nil {
		t.Error("a bundle changes its signer")
	}
}
