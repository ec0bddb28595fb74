// Package pki keeps a cluster's certificate authorities and keys in a directory
// and issues certificates from them: what kubeadm does with a dozen commands.
//
// All keys are ECDSA P-256. A certificate authority lives ten years; a leaf
// lives one and is replaced when the server starts and less than thirty days of
// it are left.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/utils/clock"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	renewBefore   = 30 * 24 * time.Hour
	backdate      = 5 * time.Minute // a peer whose clock is a little behind accepts the certificate
)

// Authority is what one cluster signs with.
type Authority struct {
	Cluster    *CA // signs API server, kubelet and user certificates
	FrontProxy *CA // signs the aggregator's client certificate, and nothing else

	// ServiceAccountKey signs service account tokens; KeyID is its kid in JWKS.
	ServiceAccountKey *ecdsa.PrivateKey
	KeyID             string

	dir   string
	clock clock.PassiveClock
}

// Config says where the authority lives. Only Dir is required.
type Config struct {
	Dir   string // created with mode 0700; keys inside have mode 0600
	Clock clock.PassiveClock
}

// LoadOrCreate opens the authority kept under dir, creating what is missing.
func LoadOrCreate(dir string) (*Authority, error) { return Open(Config{Dir: dir}) }

// Open is LoadOrCreate with a clock.
func Open(c Config) (*Authority, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(c.Dir, 0o700); err != nil {
		return nil, err
	}
	a := &Authority{dir: c.Dir, clock: c.Clock}
	var err error
	if a.Cluster, err = a.loadOrCreateCA("ca", "kubernetes"); err != nil {
		return nil, err
	}
	if a.FrontProxy, err = a.loadOrCreateCA("front-proxy-ca", "front-proxy-ca"); err != nil {
		return nil, err
	}
	if a.ServiceAccountKey, err = a.loadOrCreateKey("sa"); err != nil {
		return nil, err
	}
	a.KeyID, err = KeyID(a.ServiceAccountKey.Public())
	return a, err
}

// InMemory makes an authority that is kept nowhere, for clusters that end with
// their process. Its Kept certificates are issued anew each time.
func InMemory(c clock.PassiveClock) (*Authority, error) {
	a := &Authority{clock: c}
	if c == nil {
		a.clock = clock.RealClock{}
	}
	var err error
	if a.Cluster, err = a.newCA("kubernetes"); err != nil {
		return nil, err
	}
	if a.FrontProxy, err = a.newCA("front-proxy-ca"); err != nil {
		return nil, err
	}
	if a.ServiceAccountKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	a.KeyID, err = KeyID(a.ServiceAccountKey.Public())
	return a, err
}

func (a *Authority) newCA(commonName string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := selfSigned(commonName, key, a.clock.Now())
	if err != nil {
		return nil, err
	}
	return &CA{Cert: cert, key: key, clock: a.clock}, nil
}

// KeyID derives the kid of a public key from its SubjectPublicKeyInfo, as
// upstream does, so that a key keeps its id wherever it is served.
func KeyID(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("key id: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *Authority) loadOrCreateCA(file, commonName string) (*CA, error) {
	ca, err := readCA(a.path(file+".crt"), a.path(file+".key"))
	if err == nil {
		ca.clock = a.clock
		return ca, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := a.loadOrCreateKey(file)
	if err != nil {
		return nil, err
	}
	cert, err := selfSigned(commonName, key, a.clock.Now())
	if err != nil {
		return nil, err
	}
	if err := writeFile(a.path(file+".crt"), encodeCert(cert), 0o644); err != nil {
		return nil, err
	}
	return &CA{Cert: cert, key: key, clock: a.clock}, nil
}

func (a *Authority) loadOrCreateKey(file string) (*ecdsa.PrivateKey, error) {
	path := a.path(file + ".key")
	key, err := readKey(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	pem, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, writeFile(path, pem, 0o600)
}

// CAPEM is the certificate of the cluster CA.
func (a *Authority) CAPEM() []byte { return encodeCert(a.Cluster.Cert) }

// Client issues a client certificate of the cluster CA for a user and its groups.
func (a *Authority) Client(user string, groups ...string) (certPEM, keyPEM []byte, err error) {
	return a.Cluster.Issue(Leaf{CommonName: user, Organizations: groups, Usage: x509.ExtKeyUsageClientAuth})
}

// Server issues a serving certificate of the cluster CA.
func (a *Authority) Server(names []string, ips []net.IP) (certPEM, keyPEM []byte, err error) {
	return a.Cluster.Issue(a.server(names, ips))
}

// server names a serving certificate by its first name that is not the
// authority's own: OpenSSL takes a certificate whose subject is its issuer for a
// self-signed one.
func (a *Authority) server(names []string, ips []net.IP) Leaf {
	leaf := Leaf{Names: names, IPs: ips, Usage: x509.ExtKeyUsageServerAuth}
	for _, name := range names {
		if name != a.Cluster.Cert.Subject.CommonName {
			leaf.CommonName = name
			break
		}
	}
	return leaf
}

// NodeServer issues the serving certificate of a node agent, with the subject
// that upstream's kubelet-serving signer demands.
func (a *Authority) NodeServer(node string, names []string, ips []net.IP) (certPEM, keyPEM []byte, err error) {
	return a.Cluster.Issue(nodeServer(node, names, ips))
}

func nodeServer(node string, names []string, ips []net.IP) Leaf {
	return Leaf{
		CommonName: "system:node:" + node, Organizations: []string{"system:nodes"},
		Names: names, IPs: ips, Usage: x509.ExtKeyUsageServerAuth,
	}
}

// Kept returns the certificate kept as <name>.crt and <name>.key in the
// authority's directory, issuing it anew when it is missing, near its end,
// signed by another authority, or no longer says what leaf says.
func (a *Authority) Kept(name string, ca *CA, leaf Leaf) (certPEM, keyPEM []byte, err error) {
	if a.dir == "" {
		return ca.Issue(leaf)
	}
	certFile, keyFile := a.path(name+".crt"), a.path(name+".key")
	certPEM, certErr := os.ReadFile(certFile)
	keyPEM, keyErr := os.ReadFile(keyFile)
	if certErr == nil && keyErr == nil && ca.current(certPEM, keyPEM, leaf) {
		return certPEM, keyPEM, nil
	}
	if certPEM, keyPEM, err = ca.Issue(leaf); err != nil {
		return nil, nil, err
	}
	if err := writeFile(keyFile, keyPEM, 0o600); err != nil {
		return nil, nil, err
	}
	return certPEM, keyPEM, writeFile(certFile, certPEM, 0o644)
}

// KeptServer is Kept for a serving certificate of the cluster CA.
func (a *Authority) KeptServer(name string, names []string, ips []net.IP) (certPEM, keyPEM []byte, err error) {
	return a.Kept(name, a.Cluster, a.server(names, ips))
}

// KeptClient is Kept for a client certificate of the cluster CA.
func (a *Authority) KeptClient(name, user string, groups ...string) (certPEM, keyPEM []byte, err error) {
	return a.Kept(name, a.Cluster, Leaf{CommonName: user, Organizations: groups, Usage: x509.ExtKeyUsageClientAuth})
}

// KeptNodeServer is Kept for a node agent's serving certificate.
func (a *Authority) KeptNodeServer(name, node string, names []string, ips []net.IP) (certPEM, keyPEM []byte, err error) {
	return a.Kept(name, a.Cluster, nodeServer(node, names, ips))
}

func selfSigned(commonName string, key *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName},
		DNSNames:              []string{commonName},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate authority %s: %w", commonName, err)
	}
	return x509.ParseCertificate(der)
}

func serialNumber() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}
