package identity

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/auth/pki"
)

// frontProxy is an authority of front proxies, in PEM, and a client that it certified.
func frontProxy(t *testing.T) (authority string, client *http.Client) {
	t.Helper()
	a, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := a.FrontProxy.Issue(pki.Leaf{CommonName: "proxy", Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.FrontProxy.Cert.Raw})),
		&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
		}, DisableKeepAlives: true}}
}

// The authorities of front proxies change in their file: who has the new one's
// certificate is believed, who has the old one's no more, and extension servers can
// read of both.
func TestTheAuthorityOfFrontProxiesIsRotated(t *testing.T) {
	t.Parallel()
	oldCA, oldProxy := frontProxy(t)
	newCA, newProxy := frontProxy(t)
	path := file(t, "front-proxy-ca.crt", oldCA)
	s := start(t, "--requestheader-client-ca-file", path, "--requestheader-allowed-names", "proxy")
	who := func(proxy *http.Client) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("https://127.0.0.1:%d/apis/authentication.k8s.io/v1/selfsubjectreviews", s.port),
			strings.NewReader(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Remote-User", "jane")
		req.Header.Set("Content-Type", "application/json")
		resp, err := proxy.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return string(body)
	}
	published := func() error {
		cm, err := s.admin(t).CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := cm.Data["requestheader-client-ca-file"]; !strings.Contains(got, newCA) || !strings.Contains(got, oldCA) {
			return fmt.Errorf("published is %s", got)
		}
		return nil
	}
	if got := who(oldProxy); !strings.Contains(got, `"username":"jane"`) {
		t.Errorf("the proxy is not believed: %s", got)
	}
	if got := who(newProxy); strings.Contains(got, "jane") {
		t.Errorf("a proxy of another authority is believed: %s", got)
	}
	if published() == nil {
		t.Error("the new authority is published before it is in the file")
	}
	replace(t, path, newCA)
	eventually(t, func() error {
		if got := who(newProxy); !strings.Contains(got, `"username":"jane"`) {
			return fmt.Errorf("the new proxy is not believed: %s", got)
		}
		return published()
	})
	if got := who(oldProxy); strings.Contains(got, "jane") {
		t.Errorf("the old proxy is still believed: %s", got)
	}
}
