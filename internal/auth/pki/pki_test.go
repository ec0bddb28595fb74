package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	testclock "k8s.io/utils/clock/testing"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func open(t *testing.T, dir string, now time.Time) *Authority {
	t.Helper()
	a, err := Open(Config{Dir: dir, Clock: testclock.NewFakePassiveClock(now)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func parse(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestAuthorityStaysTheSameWhenOpenedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	a, b := open(t, dir, start), open(t, dir, start)
	if !a.Cluster.Cert.Equal(b.Cluster.Cert) || !a.FrontProxy.Cert.Equal(b.FrontProxy.Cert) || a.KeyID != b.KeyID {
		t.Error("opening the directory again made other authorities")
	}
	if a.Cluster.Cert.Equal(a.FrontProxy.Cert) {
		t.Error("front proxy CA is the cluster CA")
	}
	for name, want := range map[string]os.FileMode{"": 0o700, "ca.key": 0o600, "front-proxy-ca.key": 0o600, "sa.key": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, want %v", name, info.Mode().Perm(), want)
		}
	}
}

func TestALostKeyIsAnErrorAndNotReplaced(t *testing.T) {
	dir := t.TempDir()
	open(t, dir, start)
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOrCreate(dir); err == nil {
		t.Error("opened an authority without its key")
	}
	if _, err := os.Stat(filepath.Join(dir, "ca.key")); !os.IsNotExist(err) {
		t.Error("made a new key for an old certificate")
	}
}

func TestCertificatesVerifyForTheirUseOnly(t *testing.T) {
	a := open(t, t.TempDir(), start)
	clientPEM, _, err := a.Client("jane", "dev", "ops")
	if err != nil {
		t.Fatal(err)
	}
	client := parse(t, clientPEM)
	if client.Subject.CommonName != "jane" || len(client.Subject.Organization) != 2 {
		t.Errorf("subject %v", client.Subject)
	}
	serverPEM, _, err := a.NodeServer("n1", []string{"n1"}, []net.IP{net.IPv4(10, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	server := parse(t, serverPEM)
	if err := server.VerifyHostname("10.0.0.1"); err != nil {
		t.Error(err)
	}
	verify := func(c *x509.Certificate, ca *CA, usage x509.ExtKeyUsage, at time.Time) error {
		_, err := c.Verify(x509.VerifyOptions{Roots: ca.Pool(), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	tests := []struct {
		name  string
		cert  *x509.Certificate
		ca    *CA
		usage x509.ExtKeyUsage
		at    time.Time
		ok    bool
	}{
		{"client certificate for a client", client, a.Cluster, x509.ExtKeyUsageClientAuth, start, true},
		{"client certificate for a server", client, a.Cluster, x509.ExtKeyUsageServerAuth, start, false},
		{"client certificate against the front proxy CA", client, a.FrontProxy, x509.ExtKeyUsageClientAuth, start, false},
		{"client certificate after a year", client, a.Cluster, x509.ExtKeyUsageClientAuth, start.Add(leafLife + time.Hour), false},
		{"server certificate for a server", server, a.Cluster, x509.ExtKeyUsageServerAuth, start, true},
		{"server certificate for a client", server, a.Cluster, x509.ExtKeyUsageClientAuth, start, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := verify(tt.cert, tt.ca, tt.usage, tt.at); (err == nil) != tt.ok {
				t.Errorf("verify: %v, want ok %v", err, tt.ok)
			}
		})
	}
}

func TestKeptCertificateIsRenewedWhenItMustBe(t *testing.T) {
	dir := t.TempDir()
	first, _, err := open(t, dir, start).KeptServer("apiserver", []string{"kubernetes"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		now   time.Time
		names []string
		same  bool
	}{
		{"the next day", start.Add(24 * time.Hour), []string{"kubernetes"}, true},
		{"with 31 days left", start.Add(leafLife - 31*24*time.Hour), []string{"kubernetes"}, true},
		{"with another name", start.Add(24 * time.Hour), []string{"kubernetes", "kubernetes.default"}, false},
		{"with 29 days left", start.Add(leafLife - 29*24*time.Hour), []string{"kubernetes"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			work := t.TempDir()
			if err := os.CopyFS(work, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			got, _, err := open(t, work, tt.now).KeptServer("apiserver", tt.names, nil)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(got, first) != tt.same {
				t.Errorf("kept: %v, want %v", bytes.Equal(got, first), tt.same)
			}
		})
	}
}

func TestKubeconfigLoads(t *testing.T) {
	raw, err := Kubeconfig("https://127.0.0.1:6443", []byte("ca"), []byte("cert"), []byte("key"), "proa")
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "https://127.0.0.1:6443" || string(c.CAData) != "ca" || string(c.CertData) != "cert" || string(c.KeyData) != "key" {
		t.Errorf("loaded %v", c)
	}
}

func TestAServerIsNotNamedAsItsAuthority(t *testing.T) {
	a, err := LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{"kubernetes", "kubernetes.default"}, {"kubernetes.default"}} {
		certPEM, keyPEM, err := a.Server(names, nil)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		if got := pair.Leaf.Subject.CommonName; got != "kubernetes.default" || !slices.Equal(pair.Leaf.DNSNames, names) {
			t.Errorf("%q: common name %q, names %q", names, got, pair.Leaf.DNSNames)
		}
	}
}
