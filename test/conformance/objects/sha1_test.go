package objects

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"proa/pkg/proatest"
)

// signedBy starts a server of a certificate that a new authority has signed with
// an algorithm, and returns the authority in PEM. The server reviews whatever it
// is asked, and allows it.
func signedBy(t *testing.T, algorithm x509.SignatureAlgorithm) (*httptest.Server, []byte) {
	t.Helper()
	authorityKey, key := newKey(t), newKey(t)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Unix(1_600_000_000, 0), NotAfter: time.Unix(4_000_000_000, 0), SubjectKeyId: []byte{1},
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), SignatureAlgorithm: algorithm, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		DNSNames: []string{"localhost", "ext.default.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	root := must(x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey))(t)
	signed := must(x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), authorityKey))(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(allow))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{signed}, PrivateKey: key}}}
	server.Config.ErrorLog = nil
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root})
}

func allow(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"ext.example.com/v1","resources":[]}`)
		return
	}
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	json.NewEncoder(w).Encode(review)
}

var algorithms = map[string]struct {
	x509.SignatureAlgorithm
	refused bool
}{"SHA-256": {x509.ECDSAWithSHA256, false}, "SHA-1": {x509.ECDSAWithSHA1, true}}

const insecure = "insecure algorithm"

func TestAWebhookOfASHA1CertificateIsNotAsked(t *testing.T) {
	t.Parallel()
	for name, algorithm := range algorithms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, proatest.Options{})
			ctx := within(t)
			webhook, ca := signedBy(t, algorithm.SignatureAlgorithm)
			address := strings.Replace(webhook.URL, "127.0.0.1", "localhost", 1)
			none := admissionregistrationv1.SideEffectClassNone
			must(s.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: "w"},
				Webhooks: []admissionregistrationv1.ValidatingWebhook{{
					Name: "w.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
					ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &address, CABundle: ca},
					Rules: []admissionregistrationv1.RuleWithOperations{{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
					}},
				}},
			}, metav1.CreateOptions{}))(t)
			_, err := s.CoreV1().ConfigMaps(space).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
			if !algorithm.refused {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), `failed calling webhook "w.example.com"`) || !strings.Contains(err.Error(), insecure) {
				t.Errorf("the create gives %v", err)
			}
		})
	}
}

func TestAnExtensionServerOfASHA1CertificateIsNotAvailable(t *testing.T) {
	t.Parallel()
	for name, algorithm := range algorithms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, proatest.Options{Controllers: []string{"namespace-controller"}})
			ctx := within(t)
			extension, ca := signedBy(t, algorithm.SignatureAlgorithm)
			address := must(url.Parse(extension.URL))(t)
			port := int32(must(strconv.Atoi(address.Port()))(t))
			must(s.CoreV1().Services("default").Create(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
			}, metav1.CreateOptions{}))(t)
			services := must(clientset.NewForConfig(s.access))(t).ApiregistrationV1().APIServices()
			must(services.Create(ctx, &apiregistrationv1.APIService{
				ObjectMeta: metav1.ObjectMeta{Name: "v1.ext.example.com"},
				Spec: apiregistrationv1.APIServiceSpec{
					Group: "ext.example.com", Version: "v1", GroupPriorityMinimum: 1500, VersionPriority: 20, CABundle: ca,
					Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "ext", Port: &port},
				},
			}, metav1.CreateOptions{}))(t)
			w := must(services.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=v1.ext.example.com"}))(t)
			defer w.Stop()
			for {
				for _, c := range next(ctx, t, w).Object.(*apiregistrationv1.APIService).Status.Conditions {
					if c.Type != apiregistrationv1.Available || c.Reason != "Passed" && c.Reason != "FailedDiscoveryCheck" {
						continue
					}
					if available := c.Status == apiregistrationv1.ConditionTrue; available == algorithm.refused || !available && !strings.Contains(c.Message, insecure) {
						t.Errorf("it is %+v", c)
					}
					s.reached(ctx, t, !algorithm.refused)
					return
				}
			}
		})
	}
}

// reached wants requests to get through to the extension server, or not.
func (s *server) reached(ctx context.Context, t *testing.T, want bool) {
	t.Helper()
	var status int
	s.Discovery().RESTClient().Get().AbsPath("/apis/ext.example.com/v1/things").Do(ctx).StatusCode(&status)
	if (status == http.StatusOK) != want {
		t.Errorf("a request to it gives %d", status)
	}
}
