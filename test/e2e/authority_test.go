package e2e

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// authority is a certificate authority of a test.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(100 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{key: key}
	a.cert, a.pem = a.sign(t, template, template, &key.PublicKey)
	return a
}

func (a *authority) sign(t testing.TB, template, parent *x509.Certificate, key crypto.PublicKey) (*x509.Certificate, string) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func serial(t testing.TB) *big.Int {
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// bundle publishes certificates as a ClusterTrustBundle until the test ends. A
// bundle of a signer is named after it.
func (l *lab) bundle(signer, name string, labels map[string]string, pems string) *certificatesv1.ClusterTrustBundle {
	l.Helper()
	b := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: pems},
	}
	b, err := clients().CertificatesV1().ClusterTrustBundles().Create(l.Context(), b, metav1.CreateOptions{})
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() {
		_ = clients().CertificatesV1().ClusterTrustBundles().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return b
}

// pathAnnotation is what this signer lets pods choose of their certificates.
const pathAnnotation = "e2e.example.com/path"

// signer answers the requests for pod certificates that name it. Pods get a
// SPIFFE identity of their service account.
type signer struct {
	*authority
	l    *lab
	name string

	mu   sync.Mutex // guards what follows
	seen []certificatesv1.PodCertificateRequest
	// backdated certificates are issued, so that their renewal is due at once.
	backdated int
	denies    bool
}

// startSigner signs the requests of the lab's namespace until the test ends.
func startSigner(l *lab) *signer {
	l.Helper()
	s := &signer{authority: newAuthority(l, l.ns), l: l, name: l.ns + ".example.com/pods"}
	requests := clients().CertificatesV1().PodCertificateRequests(l.ns)
	w, err := requests.Watch(l.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + s.name})
	if err != nil {
		l.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			r, ok := event.Object.(*certificatesv1.PodCertificateRequest)
			if !ok || event.Type != "ADDED" {
				continue
			}
			s.answer(r)
			if _, err := requests.UpdateStatus(l.Context(), r, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) && l.Context().Err() == nil {
				l.Errorf("answer %s: %v", r.Name, err)
			}
		}
	}()
	l.Cleanup(func() { w.Stop(); <-done })
	return s
}

func (s *signer) answer(r *certificatesv1.PodCertificateRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, *r.DeepCopy())
	condition := metav1.Condition{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Reason", Message: "message", LastTransitionTime: metav1.Now()}
	if s.denies {
		condition.Type = certificatesv1.PodCertificateRequestConditionTypeDenied
		r.Status.Conditions = []metav1.Condition{condition}
		return
	}
	stub, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		s.l.Error(err)
		return
	}
	begin := time.Now().Truncate(time.Second)
	if s.backdated > 0 {
		begin = begin.Add(-30 * time.Minute)
		s.backdated--
	}
	path := "sa/" + r.Spec.ServiceAccountName
	if p := r.Spec.UnverifiedUserAnnotations[pathAnnotation]; p != "" {
		path = p
	}
	cert, chain := s.sign(s.l, &x509.Certificate{
		SerialNumber: serial(s.l), NotBefore: begin, NotAfter: begin.Add(time.Duration(*r.Spec.MaxExpirationSeconds) * time.Second),
		URIs:        []*url.URL{{Scheme: "spiffe", Host: s.l.ns, Path: "/" + path}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, s.cert, stub.PublicKey)
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{condition}, CertificateChain: "issued by a test\n" + chain,
		NotBefore: &metav1.Time{Time: cert.NotBefore}, NotAfter: &metav1.Time{Time: cert.NotAfter},
		BeginRefreshAt: &metav1.Time{Time: cert.NotBefore.Add(10 * time.Minute)},
	}
}

// requests that have come, by pod.
func (s *signer) requests(pod string) []certificatesv1.PodCertificateRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []certificatesv1.PodCertificateRequest
	for _, r := range s.seen {
		if r.Spec.PodName == pod {
			out = append(out, r)
		}
	}
	return out
}

// credential reads a private key and the certificate of it, in PEM.
func credential(text string) (key crypto.Signer, cert *x509.Certificate, err error) {
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "PRIVATE KEY":
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			key, _ = parsed.(crypto.Signer)
		case "CERTIFICATE":
			if cert, err = x509.ParseCertificate(block.Bytes); err != nil {
				return nil, nil, err
			}
		}
	}
	if key == nil || cert == nil {
		return nil, nil, fmt.Errorf("no key and certificate in %q", text)
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(cert.PublicKey) {
		return nil, nil, fmt.Errorf("the certificate is not of the key %T", key)
	}
	return key, cert, nil
}
