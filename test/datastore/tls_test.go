package datastore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// certificate writes a certificate that is its own authority, for both sides of a
// connection to 127.0.0.1, and its key.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "etcd"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "EC PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func TestCertificatesAndPrefixReachEtcd(t *testing.T) {
	t.Parallel()
	certFile, keyFile := certificate(t)
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(pair.Leaf)
	secure := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}
	e := startEtcdWith(t, "https", &http.Client{Transport: &http.Transport{TLSClientConfig: secure}},
		"--cert-file", certFile, "--key-file", keyFile, "--trusted-ca-file", certFile, "--client-cert-auth")
	s := startServer(t, "", "--etcd-servers", e.url, "--etcd-cafile", certFile, "--etcd-certfile", certFile, "--etcd-keyfile", keyFile, "--etcd-prefix", "/elsewhere")
	made, err := s.configMaps().Create(t.Context(), configMap("a", "1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.url}, TLS: secure})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got, err := client.Get(t.Context(), "/elsewhere/configmaps/default/a")
	if err != nil || len(got.Kvs) != 1 || made.GetResourceVersion() == "" {
		t.Errorf("etcd holds %v, %v, want the object below its prefix", got, err)
	}
	if got, err := client.Get(t.Context(), "/registry", clientv3.WithPrefix()); err != nil || len(got.Kvs) != 0 {
		t.Errorf("etcd holds %v, %v, want nothing below another prefix", got, err)
	}

	args := append([]string{"server", "--no-node", "--data-dir", t.TempDir(), "--etcd-servers", e.url, "--etcd-cafile", certFile}, alone(t)...)
	out, err := exec.CommandContext(t.Context(), proa(t), args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), e.url) {
		t.Errorf("a server without the client certificate gives %v, %s", err, out)
	}
}
