package security

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/pkg/proatest"
)

// signingRequest is a PKCS #10 request for jane in groups, as a CSR object has it.
func signingRequest(t *testing.T, groups ...string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: groups}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// certificate is one, signed by itself, as a CSR's status has it.
func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "jane"}}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// TestOwnersReachIntoNoOtherNamespace: who can write an ownerReference in one
// namespace has nothing deleted in another, and no object of the cluster.
func TestOwnersReachIntoNoOtherNamespace(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{Controllers: []string{"garbage-collector-controller"}})
	s.make(t, core+"/namespaces", `{"metadata": {"name": "theirs"}}`, `{"metadata": {"name": "mine"}}`)
	theirs, mine := core+"/namespaces/theirs/configmaps", core+"/namespaces/mine/configmaps"
	uid := func(path string) string {
		_, text := s.do(t, step{method: get, path: path})
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		return string(o.UID)
	}
	s.make(t, theirs, `{"metadata": {"name": "owner"}}`)
	owned := func(name, uid string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q, "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": %q, "blockOwnerDeletion": true}]}}`, name, uid)
	}
	id := uid(theirs + "/owner")
	s.make(t, mine, owned("thief", id))
	s.make(t, theirs, owned("child", id))
	s.make(t, "/apis/rbac.authorization.k8s.io/v1/clusterroles", owned("role", id))
	s.gone(t, mine+"/thief") // its owner is not where it could own it
	s.play(t, step{method: get, path: theirs + "/owner", code: 200}, step{method: get, path: theirs + "/child", code: 200})
	// What pretends to be a dependent elsewhere does not hold its owner back.
	s.play(t, step{method: remove, path: theirs + "/owner", body: `{"propagationPolicy": "Foreground"}`, code: 200})
	s.gone(t, theirs+"/child")
	s.gone(t, theirs+"/owner")
	s.play(t, step{method: get, path: "/apis/rbac.authorization.k8s.io/v1/clusterroles/role", code: 200})
}

// gone waits until an object does not exist.
func (s *server) gone(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if code, _ := s.do(t, step{method: get, path: path}); code == http.StatusNotFound {
			return
		}
	}
	t.Fatalf("%s stays", path)
}
