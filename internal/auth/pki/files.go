package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"

	"github.com/google/renameio/v2"
)

func encodeBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeCert(cert *x509.Certificate) []byte { return encodeBlock("CERTIFICATE", cert.Raw) }

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encodeBlock("EC PRIVATE KEY", der), nil
}

func readBlock(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s: no PEM block", path)
	}
	return block.Bytes, nil
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	der, err := readBlock(path)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

func readCA(certFile, keyFile string) (*CA, error) {
	der, err := readBlock(certFile)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s: %v", certFile, err) // a lost key must not be replaced silently
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("certificate authority %s: key %s does not belong to it", certFile, keyFile)
	}
	return &CA{Cert: cert, key: key}, nil
}

// writeFile replaces path whole, so that a crash leaves the old or the new content.
func writeFile(path string, content []byte, mode os.FileMode) error {
	return renameio.WriteFile(path, content, mode, renameio.WithStaticPermissions(mode))
}
