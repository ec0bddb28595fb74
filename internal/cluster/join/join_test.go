package join

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/bootstrapsigner"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/csr"
)

func TestTokensAreOfOneForm(t *testing.T) {
	for text, good := range map[string]bool{
		"abcdef.0123456789abcdef": true, "abcdef.0123456789abcde": false, "ABCDEF.0123456789abcdef": false,
		"abcdef0123456789abcdef": false, "abcdef.0123456789abcdef\n": false, "": false,
	} {
		if token, err := Parse(text); (err == nil) != good || good && token.String() != text {
			t.Errorf("%q: %v, %v", text, token, err)
		}
	}
	token, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(token.String()); err != nil {
		t.Error(err)
	}
}

func TestAGrantKeepsItsWords(t *testing.T) {
	want := Grant{Token: Token{"abcdef", "0123456789abcdef"}, Expires: time.Unix(2e9, 0).UTC(), Usages: []string{UsageAuthentication, UsageSigning},
		Groups: []string{DefaultGroup, "system:bootstrappers:more"}, Description: "a rack"}
	if err := want.Validate(); err != nil {
		t.Error(err)
	}
	got, ok := grantOf(want.secret())
	if a, b := mustJSON(t, got), mustJSON(t, want); !ok || a != b {
		t.Errorf("%s became %s", b, a)
	}
	want.Usages = []string{UsageSigning}
	if err := want.Validate(); err == nil {
		t.Error("groups without authentication are taken")
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The signature was computed apart from this code.
func TestASignatureIsOfOneTokenAndOneContent(t *testing.T) {
	const signature = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..psz1NayrXM3IaFzKZGsb5n_mBl7MjtlsZ1xE8MRmF_4"
	for _, test := range []struct {
		name, content, signature, id, secret string
		good                                 bool
	}{
		{"as signed", "content", signature, "abcdef", "0123456789abcdef", true},
		{"another content", "kontent", signature, "abcdef", "0123456789abcdef", false},
		{"another secret", "content", signature, "abcdef", "0123456789abcdeg", false},
		{"another token", "content", signature, "abcdeg", "0123456789abcdef", false},
		{"no algorithm", "content", "eyJhbGciOiJub25lIiwia2lkIjoiYWJjZGVmIn0..", "abcdef", "0123456789abcdef", false},
		{"no signature", "content", "", "abcdef", "0123456789abcdef", false},
	} {
		if err := verify(test.content, test.signature, Token{test.id, test.secret}); (err == nil) != test.good {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// info is a cluster-info ConfigMap as the signer leaves it.
func signedInfo(t *testing.T, c Cluster, token Token) (info *corev1.ConfigMap) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		for _, ns := range []string{metav1.NamespaceSystem, metav1.NamespacePublic} {
			w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
		}
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{bootstrapsigner.New(c)}
		})()
		for range 2 { // again changes nothing
			if err := Publish(w.T.Context(), w.API, c); err != nil {
				w.T.Fatal(err)
			}
			if err := EnsureToken(w.T.Context(), w.API, Grant{Token: token, Usages: []string{UsageSigning}}); err != nil {
				w.T.Fatal(err)
			}
		}
		w.Settle()
		got, err := client.Of[*corev1.ConfigMap](w.API).Get(w.T.Context(), metav1.NamespacePublic, infoName)
		if err != nil {
			w.T.Fatal(err)
		}
		info = got.DeepCopy()
		if net, err := ReadNetworking(w.T.Context(), w.API); err != nil || net != c.Networking {
			w.T.Errorf("networking %+v, %v", net, err)
		}
		if grants, err := ListTokens(w.T.Context(), w.API); err != nil || len(grants) != 1 || grants[0].Token != token {
			w.T.Errorf("tokens %v, %v", grants, err)
		}
	})
	return info
}

func TestTheAuthorityIsTrustedOnlyIfTokenAndPinSaySo(t *testing.T) {
	token, calls := Token{"abcdef", "0123456789abcdef"}, 0
	var info, second *corev1.ConfigMap
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		answer := info
		if calls > 1 && second != nil {
			answer = second
		}
		if r.URL.Path != "/api/v1/namespaces/kube-public/configmaps/cluster-info" || r.Header.Get("Authorization") != "" {
			t.Errorf("asked %s %v", r.URL, r.Header)
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	cluster := Cluster{Server: server.URL, CA: authority, Networking: Networking{"cluster.local", "10.244.0.0/16", "10.96.0.0/16"}}
	genuine := signedInfo(t, cluster, token)
	other, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cluster.CA = other.CAPEM()
	elsewhere := signedInfo(t, cluster, token)
	changed := genuine.DeepCopy()
	changed.Data[infoKey] += " "
	for _, test := range []struct {
		name         string
		info, second *corev1.ConfigMap
		token        Token
		pins         []string
		want         string
	}{
		{"token", genuine, nil, token, nil, ""},
		{"token and pin", genuine, nil, token, []string{"sha256:" + strings.Repeat("0", 64), strings.ToUpper(Pin(server.Certificate()))}, ""},
		{"another pin", genuine, nil, token, []string{Pin(other.Cluster.Cert)}, "none of the public keys"},
		{"another secret", genuine, nil, Token{"abcdef", "0000000000000000"}, nil, "can't trust this API Server"},
		{"a changed content", changed, nil, token, nil, "can't trust this API Server"},
		{"a server of another authority", elsewhere, nil, token, nil, "certificate signed by unknown authority"},
		{"an answer that changes", genuine, changed, token, nil, "was different from the first"},
	} {
		t.Run(test.name, func(t *testing.T) {
			info, second, calls = test.info, test.second, 0
			ca, err := Discovery{Server: server.URL, Token: test.token, Pins: test.pins}.CA(t.Context())
			switch {
			case test.want == "" && (err != nil || string(ca) != string(authority)):
				t.Errorf("%v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// permissive lets everybody ask for a node's certificate.
type permissive struct{ client.API }

func (p permissive) Create(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.CreateOptions) (client.Object, error) {
	if review, ok := obj.(*authorizationv1.SubjectAccessReview); ok {
		review.Status.Allowed = true
		return review, nil
	}
	return p.API.Create(ctx, ref, obj, opts)
}

func TestACertificateIsRenewedBeforeItsEndAndKept(t *testing.T) {
	dir := t.TempDir()
	controllertest.Run(t, func(w *controllertest.World) {
		authority, err := pki.LoadOrCreate(dir)
		if err != nil {
			w.T.Fatal(err)
		}
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Cache = c.Cache.As(permissive{c.Cache.API()})
			anHour := func(template *x509.Certificate, public crypto.PublicKey, _ time.Duration) ([]byte, error) {
				return authority.Cluster.Sign(template, public, time.Hour)
			}
			return []controllertest.Runner{csr.NewApproving(c, csr.Serving{}), csr.NewSigning(c, anHour)}
		})()
		changes := 0
		config := CertificateConfig{
			File: filepath.Join(dir, "client.pem"), Roots: authority.Cluster.Pool(), Signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usage: certificatesv1.UsageClientAuth, Template: x509.CertificateRequest{Subject: subject("n")},
			Changed: func() { changes++ }, Chance: func() float64 { return 0.5 },
		}
		k, err := LoadCertificate(config)
		if err != nil || k.Current() != nil {
			w.T.Fatalf("a certificate from nowhere, %v", err)
		}
		ctx, stop := context.WithCancel(w.T.Context())
		done := make(chan error)
		go func() { done <- k.Run(ctx, w.As("system:node:n", "system:nodes", "system:masters")) }()
		w.Settle()
		first := k.Current()
		if first == nil || changes != 1 {
			w.T.Fatal("no certificate")
		}
		time.Sleep(46 * time.Minute) // 80 percent of its life, which began five minutes ago, are 47 from now
		w.Settle()
		if k.Current() != first {
			w.T.Error("renewed early")
		}
		time.Sleep(2 * time.Minute)
		w.Settle()
		second := k.Current()
		if second == first || changes != 2 {
			w.T.Error("not renewed")
		}
		stop()
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		again, err := LoadCertificate(config)
		if err != nil || again.Current() == nil || again.Current().Leaf.SerialNumber.Cmp(second.Leaf.SerialNumber) != 0 {
			w.T.Errorf("not kept: %v", err)
		}
		config.Template.Subject = subject("m")
		if other, err := LoadCertificate(config); err != nil || other.Current() != nil {
			w.T.Errorf("another node's certificate is taken: %v", err)
		}
		time.Sleep(61 * time.Minute)
		if again.Current() != nil {
			w.T.Error("an expired certificate is current")
		}
		if info, err := os.Stat(config.File); err != nil || info.Mode().Perm() != 0o600 {
			w.T.Errorf("key file %v, %v", info, err)
		}
	})
}
