package join

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/clock"

	"proa/internal/client"
)

// CertificateConfig says what a Certificate certifies. Clock and Chance have defaults.
type CertificateConfig struct {
	File     string // where certificate and key are kept, in PEM
	Signer   string
	Usage    certificatesv1.KeyUsage // besides digital signature
	Template x509.CertificateRequest
	Roots    *x509.CertPool // the authority that must have signed it
	Changed  func()         // told when another certificate is current; may be nil

	Clock  clock.Clock
	Chance func() float64 // in [0, 1): when in its span a rotation happens
}

// Certificate is one certificate of this node, kept current: it is asked for by
// a CertificateSigningRequest with a new key, written to a file, and replaced
// when 70 to 90 percent of its life are over.
type Certificate struct {
	c CertificateConfig

	mu      sync.Mutex
	current *tls.Certificate // guarded by mu; with its leaf
}

// LoadCertificate returns the certificate that c describes, with the one its
// file holds if that is still good.
func LoadCertificate(c CertificateConfig) (*Certificate, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Chance == nil {
		c.Chance = mathrand.Float64
	}
	k := &Certificate{c: c}
	data, err := os.ReadFile(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, err
	}
	if pair, err := tls.X509KeyPair(data, data); err == nil && k.good(pair.Leaf) {
		k.current = &pair
	}
	return k, nil
}

// good says whether a certificate is what would be asked for today.
func (k *Certificate) good(leaf *x509.Certificate) bool {
	now, want := k.c.Clock.Now(), &k.c.Template
	_, err := leaf.Verify(x509.VerifyOptions{Roots: k.c.Roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil && leaf.Subject.CommonName == want.Subject.CommonName &&
		slices.Equal(leaf.Subject.Organization, want.Subject.Organization) &&
		slices.Equal(leaf.DNSNames, want.DNSNames) &&
		slices.EqualFunc(leaf.IPAddresses, want.IPAddresses, net.IP.Equal)
}

// Current returns the certificate, nil when there is none that has not expired.
func (k *Certificate) Current() *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil || k.c.Clock.Now().After(k.current.Leaf.NotAfter) {
		return nil
	}
	return k.current
}

// requestTimeout bounds how long a request may wait for its approval.
const requestTimeout = time.Minute

// Obtain asks for a certificate through api and waits for it.
func (k *Certificate) Obtain(ctx context.Context, api client.API) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &k.c.Template, key)
	if err != nil {
		return err
	}
	created, err := client.Of[*certificatesv1.CertificateSigningRequest](api).Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: k.c.Signer,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, k.c.Usage},
		},
	})
	if err != nil {
		return fmt.Errorf("ask for a certificate: %w", err)
	}
	certPEM, err := await(ctx, api, created)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return k.take(certPEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

// take makes a certificate the current one.
func (k *Certificate) take(certPEM, keyPEM []byte) error {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("the certificate that was issued: %w", err)
	}
	if err := renameio.WriteFile(k.c.File, slices.Concat(certPEM, keyPEM), 0o600); err != nil {
		return err
	}
	k.mu.Lock()
	k.current = &pair
	k.mu.Unlock()
	if k.c.Changed != nil {
		k.c.Changed()
	}
	return nil
}

// await follows a request until it is settled.
func await(ctx context.Context, api client.API, request *certificatesv1.CertificateSigningRequest) (certPEM []byte, err error) {
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	settled := false
	f := client.Follower{
		API: api, Resource: certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"),
		Options: metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", request.Name).String()},
		Begin:   func() {}, Complete: func() {},
		Change: func(obj client.Object, removed bool) error {
			csr, ok := obj.(*certificatesv1.CertificateSigningRequest)
			if !ok || csr.UID != request.UID || settled {
				return nil
			}
			if certPEM, err = outcome(csr, removed); certPEM != nil || err != nil {
				settled = true
				cancel()
			}
			return nil
		},
	}
	_ = f.Run(limited)
	switch {
	case settled:
		return certPEM, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("nobody approved the certificate request %s within %s; look at it with: kubectl get csr", request.Name, requestTimeout)
}

func outcome(csr *certificatesv1.CertificateSigningRequest, removed bool) ([]byte, error) {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return nil, fmt.Errorf("the certificate request %s is %s: %s: %s", csr.Name, c.Type, c.Reason, c.Message)
		}
	}
	if removed {
		return nil, fmt.Errorf("the certificate request %s was deleted", csr.Name)
	}
	if len(csr.Status.Certificate) == 0 {
		return nil, nil
	}
	return csr.Status.Certificate, nil
}

const (
	retryFirst = time.Second
	retryLast  = 5 * time.Minute
)

// Run keeps the certificate current through api until ctx ends.
func (k *Certificate) Run(ctx context.Context, api client.API) error {
	retry := retryFirst
	for {
		wait := k.untilRotation()
		if wait <= 0 {
			err := k.Obtain(ctx, api)
			if ctx.Err() != nil {
				return nil
			}
			if err == nil {
				retry = retryFirst
				continue
			}
			slog.WarnContext(ctx, "certificate of this node", "signer", k.c.Signer, "err", err)
			wait, retry = retry, min(2*retry, retryLast)
		}
		select {
		case <-k.c.Clock.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// untilRotation is how long the current certificate shall stay; none is over at once.
func (k *Certificate) untilRotation() time.Duration {
	pair := k.Current()
	if pair == nil {
		return 0
	}
	life := pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)
	share := 0.7 + 0.2*k.c.Chance()
	return pair.Leaf.NotBefore.Add(time.Duration(share * float64(life))).Sub(k.c.Clock.Now())
}
