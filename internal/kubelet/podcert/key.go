package podcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
)

// keyTypes are the keys that a projection may ask for.
var keyTypes = map[string]func() (crypto.Signer, error){
	"RSA3072":   rsaKey(3072),
	"RSA4096":   rsaKey(4096),
	"ECDSAP256": ecdsaKey(elliptic.P256()),
	"ECDSAP384": ecdsaKey(elliptic.P384()),
	"ECDSAP521": ecdsaKey(elliptic.P521()),
	"ED25519": func() (crypto.Signer, error) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	},
}

func rsaKey(bits int) func() (crypto.Signer, error) {
	return func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, bits) }
}

func ecdsaKey(curve elliptic.Curve) func() (crypto.Signer, error) {
	return func() (crypto.Signer, error) { return ecdsa.GenerateKey(curve, rand.Reader) }
}

// newKey makes a private key, as PKCS#8 in PEM, and the PKCS#10 request that
// shows the public key and proves that whoever asks has the private one.
func newKey(kind string) (keyPEM, stub []byte, err error) {
	make, ok := keyTypes[kind]
	if !ok {
		return nil, nil, fmt.Errorf("unknown key type %q", kind)
	}
	key, err := make()
	if err != nil {
		return nil, nil, fmt.Errorf("make %s key: %w", kind, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode %s key: %w", kind, err)
	}
	if stub, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key); err != nil {
		return nil, nil, fmt.Errorf("request with %s key: %w", kind, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), stub, nil
}
