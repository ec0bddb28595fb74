package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"slices"
	"time"

	"k8s.io/utils/clock"
)

// CA is one certificate authority.
type CA struct {
	Cert  *x509.Certificate
	key   crypto.Signer
	clock clock.PassiveClock
}

// Leaf says what a certificate is for.
type Leaf struct {
	CommonName    string
	Organizations []string
	Names         []string // DNS names
	IPs           []net.IP
	Usage         x509.ExtKeyUsage
}

// ReadCA reads an authority that somebody else made, of any kind of key.
func ReadCA(certFile, keyFile string, c clock.PassiveClock) (*CA, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: a %T cannot sign", keyFile, pair.PrivateKey)
	}
	return &CA{Cert: pair.Leaf, key: key, clock: c}, nil
}

// Pool returns a pool with this authority alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}

// Issue makes a new key and a certificate for it that lives one year.
func (ca *CA) Issue(leaf Leaf) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Organizations},
		DNSNames:    leaf.Names,
		IPAddresses: leaf.IPs,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{leaf.Usage},
	}
	if certPEM, err = ca.Sign(template, key.Public(), leafLife); err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return certPEM, keyPEM, err
}

// Sign certifies a public key as template says, for the given time but never
// beyond the authority's own end. It fills in the serial number and the
// validity, and returns PEM. The certificate signing controller uses it for
// approved requests.
func (ca *CA) Sign(template *x509.Certificate, public crypto.PublicKey, life time.Duration) ([]byte, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	t, now := *template, ca.clock.Now()
	t.SerialNumber = serial
	t.NotBefore = now.Add(-backdate)
	t.NotAfter = now.Add(life)
	if t.NotAfter.After(ca.Cert.NotAfter) {
		t.NotAfter = ca.Cert.NotAfter
	}
	t.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, &t, ca.Cert, public, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate for %q: %w", t.Subject.CommonName, err)
	}
	return encodeBlock("CERTIFICATE", der), nil
}

// current reports whether a kept pair can stay in use.
func (ca *CA) current(certPEM, keyPEM []byte, leaf Leaf) bool {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return false
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil || cert.CheckSignatureFrom(ca.Cert) != nil {
		return false
	}
	if ca.clock.Now().Before(cert.NotBefore) || ca.clock.Now().Add(renewBefore).After(cert.NotAfter) {
		return false
	}
	return cert.Subject.CommonName == leaf.CommonName &&
		sameSet(cert.Subject.Organization, leaf.Organizations) &&
		sameSet(cert.DNSNames, leaf.Names) &&
		sameSet(ipStrings(cert.IPAddresses), ipStrings(leaf.IPs)) &&
		slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{leaf.Usage})
}

func ipStrings(ips []net.IP) []string {
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = ip.String()
	}
	return out
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}
