package server

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"

	"k8s.io/apimachinery/pkg/util/httpstream"
)

type portforwardDialer = httpstream.Dialer

func pemOf(t *testing.T, c tls.Certificate) (cert, key []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
