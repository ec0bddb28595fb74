package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

// TestACertificateSignedWithSHA1IsRefused is one of an authority that is trusted:
// the same with SHA-256 is good.
func TestACertificateSignedWithSHA1IsRefused(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(leaf, authority *x509.Certificate) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: start, NotAfter: start.Add(time.Hour), SubjectKeyId: []byte{1},
	}
	ca = issue(ca, ca)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	w := newWorld(t, func(c *Config) { c.ClientCA = pool })
	for name, algorithm := range map[string]x509.SignatureAlgorithm{"jane": x509.ECDSAWithSHA256, "": x509.ECDSAWithSHA1} {
		leaf := issue(&x509.Certificate{
			SerialNumber: big.NewInt(2), SignatureAlgorithm: algorithm, Subject: pkix.Name{CommonName: "jane"},
			NotBefore: start, NotAfter: start.Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, ca)
		who, err := w.who(t, credentials{cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})})
		if got := describe(who); !strings.HasPrefix(got, name) || name == "" && (got != "" || err == nil || !strings.Contains(err.Error(), "insecure algorithm")) {
			t.Errorf("%s: %q, %v", algorithm, got, err)
		}
	}
}
