package csr

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"slices"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

// reviewing answers access reviews: requestors may what is in allowed.
type reviewing struct {
	client.API
	allowed map[string]string // subresource by user
}

func (r reviewing) Create(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.CreateOptions) (client.Object, error) {
	review, ok := obj.(*authorizationv1.SubjectAccessReview)
	if !ok {
		return r.API.Create(ctx, ref, obj, opts)
	}
	a := review.Spec.ResourceAttributes
	review.Status.Allowed = a.Verb == "create" && a.Resource == "certificatesigningrequests" && a.Subresource == r.allowed[review.Spec.User]
	return review, nil
}

func run(t *testing.T, allowed map[string]string, test func(w *controllertest.World, ca *pki.Authority)) {
	t.Helper()
	dir := t.TempDir()
	controllertest.Run(t, func(w *controllertest.World) {
		ca, err := pki.LoadOrCreate(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Cache = c.Cache.As(reviewing{c.Cache.API(), allowed})
			return []controllertest.Runner{NewApproving(c, serving), NewSigning(c, ca.Cluster.Sign), NewCleaning(c)}
		})()
		test(w, ca)
	})
}

type request struct {
	user, signer, name string
	organizations, dns []string
	usages             []certificatesv1.KeyUsage
	seconds            *int32
}

func (r request) create(w *controllertest.World) {
	w.T.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.T.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: r.name, Organization: r.organizations}, DNSNames: r.dns,
	}, key)
	if err != nil {
		w.T.Fatal(err)
	}
	_, err = client.Of[*certificatesv1.CertificateSigningRequest](w.As(r.user)).Create(w.T.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), Username: "forged",
			SignerName: r.signer, Usages: r.usages, ExpirationSeconds: r.seconds,
		},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func kubelet(user string) request {
	return request{
		user: user, signer: certificatesv1.KubeAPIServerClientKubeletSignerName, name: "system:node:n", organizations: []string{"system:nodes"},
		usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	}
}

func get(w *controllertest.World) *certificatesv1.CertificateSigningRequest {
	return controllertest.Get[*certificatesv1.CertificateSigningRequest](w, "csr")
}

func approve(w *controllertest.World) {
	w.T.Helper()
	csr := get(w).DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"})
	ref := client.Ref{Resource: certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), Name: "csr", Subresource: "approval"}
	if _, err := w.API.Update(w.T.Context(), ref, csr, metav1.UpdateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func issued(w *controllertest.World) *x509.Certificate {
	w.T.Helper()
	block, _ := pem.Decode(get(w).Status.Certificate)
	if block == nil {
		w.T.Fatalf("no certificate: %+v", get(w).Status)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		w.T.Fatal(err)
	}
	return cert
}

func TestKubeletsGetClientCertificatesByThemselves(t *testing.T) {
	allowed := map[string]string{"system:bootstrap:abcdef": "nodeclient", "system:node:n": "selfnodeclient", "system:node:other": "selfnodeclient"}
	change := func(f func(*request)) request { r := kubelet("system:node:n"); f(&r); return r }
	tests := []struct {
		name     string
		request  request
		approved bool
	}{
		{"a joining node", kubelet("system:bootstrap:abcdef"), true},
		{"a node for itself", kubelet("system:node:n"), true},
		{"not a node for another", kubelet("system:node:other"), false},
		{"not somebody without the permission", kubelet("mallory"), false},
		{"not with a name of a host", change(func(r *request) { r.dns = []string{"h"} }), false},
		{"not in another group", change(func(r *request) { r.organizations = []string{"system:nodes", "system:masters"} }), false},
		{"not to serve with", change(func(r *request) {
			r.usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
		}), false},
		{"not by another signer", change(func(r *request) { r.signer = certificatesv1.KubeAPIServerClientSignerName }), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run(t, allowed, func(w *controllertest.World, ca *pki.Authority) {
				test.request.create(w)
				csr := get(w)
				if got := has(csr, certificatesv1.CertificateApproved); got != test.approved {
					t.Fatalf("approved: %v", got)
				}
				if !test.approved {
					if len(csr.Status.Certificate) > 0 {
						t.Error("signed without approval")
					}
					return
				}
				cert := issued(w)
				if err := cert.CheckSignatureFrom(ca.Cluster.Cert); err != nil || cert.Subject.CommonName != "system:node:n" || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || cert.IsCA {
					t.Errorf("certificate %+v, %v", cert, err)
				}
				w.Writes()
				time.Sleep(keptSettled / 2)
				w.Settle()
				if got := w.Writes(); len(got) != 0 {
					t.Errorf("wrote %v", got)
				}
			})
		})
	}
}

func TestARequestIsApprovedOnceItsRequestorMayHaveIt(t *testing.T) {
	allowed := map[string]string{}
	run(t, allowed, func(w *controllertest.World, _ *pki.Authority) {
		kubelet("system:bootstrap:abcdef").create(w)
		time.Sleep(time.Hour)
		w.Settle()
		if has(get(w), certificatesv1.CertificateApproved) {
			t.Fatal("approved too early")
		}
		allowed["system:bootstrap:abcdef"] = "nodeclient"
		time.Sleep(reviewAgain)
		w.Settle()
		issued(w)
	})
}

func TestAnApprovedRequestThatItsSignerRefusesFails(t *testing.T) {
	run(t, nil, func(w *controllertest.World, _ *pki.Authority) {
		r := kubelet("x")
		r.signer = certificatesv1.KubeletServingSignerName
		r.create(w)
		approve(w)
		csr := get(w)
		i := slices.IndexFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateFailed
		})
		if i < 0 || csr.Status.Conditions[i].Reason != "SignerValidationFailure" || len(csr.Status.Certificate) > 0 {
			t.Errorf("status %+v", csr.Status)
		}
	})
}

func TestACertificateLivesAsLongAsAsked(t *testing.T) {
	tests := []struct {
		name    string
		seconds *int32
		want    time.Duration
	}{
		{"a year", nil, longestLife},
		{"an hour", ptr.To[int32](3600), time.Hour},
		{"never more than a year", ptr.To[int32](10 * 365 * 24 * 3600), longestLife},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run(t, nil, func(w *controllertest.World, _ *pki.Authority) {
				r := request{user: "jane", signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane", usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}, seconds: test.seconds}
				r.create(w)
				approve(w)
				if got := time.Until(issued(w).NotAfter).Round(time.Minute); got != test.want {
					t.Errorf("lives %v, want %v", got, test.want)
				}
			})
		})
	}
}

func TestOldRequestsAreRemoved(t *testing.T) {
	run(t, nil, func(w *controllertest.World, _ *pki.Authority) {
		r := kubelet("mallory")
		r.create(w)
		time.Sleep(keptPending - time.Minute)
		w.Settle()
		get(w)
		time.Sleep(2 * time.Minute)
		w.Settle()
		if left := controllertest.List[*certificatesv1.CertificateSigningRequest](w); len(left) != 0 {
			t.Error("a pending request is kept for ever")
		}
		r.create(w)
		approve(w)
		time.Sleep(keptSettled + time.Minute)
		w.Settle()
		if left := controllertest.List[*certificatesv1.CertificateSigningRequest](w); len(left) != 0 {
			t.Error("an issued request is kept for ever")
		}
	})
}

func TestAnApprovedRequestWaitsForItsSigner(t *testing.T) {
	run(t, nil, func(w *controllertest.World, _ *pki.Authority) {
		r := kubelet("mallory")
		r.signer = "example.com/slow"
		r.create(w)
		approve(w)
		time.Sleep(2 * keptPending)
		w.Settle()
		if len(get(w).Status.Certificate) > 0 {
			t.Error("signed by somebody else")
		}
	})
}
