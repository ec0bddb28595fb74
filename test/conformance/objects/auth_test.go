package objects

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"proa/pkg/proatest"
)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

// signingRequest is a certificate request in PEM.
func signingRequest(t *testing.T) []byte {
	t.Helper()
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "e2e.example.com"}, DNSNames: []string{"e2e.example.com"}}
	der := must(x509.CreateCertificateRequest(rand.Reader, template, newKey(t)))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// certificate is one in PEM, signed by itself.
func certificate(t *testing.T) []byte {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(1_800_000_000, 0), NotAfter: time.Unix(1_900_000_000, 0)}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestEveryVerbOfAuthKinds(t *testing.T) {
	t.Parallel()
	everyVerb(t, newServer(t, proatest.Options{}), []kind{
		{
			gvr: resourceOf("certificates.k8s.io", "v1", "certificatesigningrequests"), kind: "CertificateSigningRequest", clustered: true,
			object: "spec: {signerName: example.com/s, expirationSeconds: 3600, usages: [digital signature], request: " +
				base64.StdEncoding.EncodeToString(signingRequest(t)) + "}",
			status: `{"status":{"conditions":[{"type":"Test","status":"True","reason":"Test","message":"m",` +
				`"lastUpdateTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
		},
		{
			gvr: resourceOf("", "v1", "serviceaccounts"), kind: "ServiceAccount",
			object: "automountServiceAccountToken: true",
			change: "automountServiceAccountToken: false",
		},
	})
}

// TestASigningRequestIsApprovedAndSigned writes each side by the subresource
// that is for it.
func TestASigningRequestIsApprovedAndSigned(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	for _, r := range must(s.Discovery().ServerResourcesForGroupVersion("certificates.k8s.io/v1"))(t).APIResources {
		if r.Name == "certificatesigningrequests/approval" && !slices.Equal(r.Verbs, statusVerbs) {
			t.Errorf("approval is discovered as %+v", r)
		}
	}
	requests := s.CertificatesV1().CertificateSigningRequests()
	hour := int32(3600)
	created := must(requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: signingRequest(t), SignerName: "example.com/e2e", ExpirationSeconds: &hour,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}, metav1.CreateOptions{}))(t)
	if !strings.HasPrefix(created.Name, "e2e-") || created.Spec.Username != "proatest" || *created.Spec.ExpirationSeconds != hour {
		t.Errorf("created as %s: %+v", created.Name, created.Spec)
	}
	name := created.Name
	if list := must(requests.List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=example.com/e2e"}))(t); len(list.Items) != 1 {
		t.Errorf("the signer has %v", list.Items)
	}

	signed := must(json.Marshal(certificate(t)))(t)
	var approval certificatesv1.CertificateSigningRequest
	if err := s.CertificatesV1().RESTClient().Get().Resource("certificatesigningrequests").Name(name).SubResource("approval").Do(ctx).Into(&approval); err != nil || approval.UID != created.UID {
		t.Errorf("approval reads %v: %v", approval, err)
	}
	patch := `{"metadata":{"annotations":{"approval":"patched"}},"status":{"certificate":` + string(signed) +
		`,"conditions":[{"type":"ApprovalPatch","status":"True","reason":"e2e"}]}}`
	patched := must(requests.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "approval"))(t)
	if len(patched.Status.Conditions) != 1 || patched.Status.Conditions[0].Type != "ApprovalPatch" || patched.Annotations["approval"] != "patched" || len(patched.Status.Certificate) != 0 {
		t.Errorf("approval is patched to %v, %v", patched.Annotations, patched.Status)
	}
	if c := patched.Status.Conditions[0]; c.LastUpdateTime.IsZero() || c.LastTransitionTime.IsZero() {
		t.Errorf("a condition without times: %v", c)
	}
	approved := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "E2E", Message: "by a test"}
	patched.Status.Conditions = append(patched.Status.Conditions, approved)
	if _, err := requests.UpdateStatus(ctx, patched, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("approved by the status: %v", err)
	}
	patched = must(requests.UpdateApproval(ctx, name, patched, metav1.UpdateOptions{}))(t)
	if len(patched.Status.Conditions) != 2 || patched.Status.Conditions[1].Type != certificatesv1.CertificateApproved {
		t.Errorf("approval is updated to %v", patched.Status)
	}

	patch = `{"metadata":{"annotations":{"status":"patched"}},"status":{"certificate":` + string(signed) + `}}`
	status := must(requests.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"))(t)
	if base64.StdEncoding.EncodeToString(status.Status.Certificate) != strings.Trim(string(signed), `"`) || status.Annotations["status"] != "patched" {
		t.Errorf("the status is patched to %v, %v", status.Annotations, status.Status)
	}
	status.Status.Conditions = append(status.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: "StatusUpdate", Status: corev1.ConditionTrue, Reason: "E2E"})
	if got := must(requests.UpdateStatus(ctx, status, metav1.UpdateOptions{}))(t); len(got.Status.Conditions) != 3 || got.Status.Conditions[2].Type != "StatusUpdate" {
		t.Errorf("the status is updated to %v", got.Status)
	}
	if err := requests.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.signerName=example.com/e2e"}); err != nil {
		t.Fatal(err)
	}
	if _, err := requests.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted, it reads %v", err)
	}
}

// account makes a service account of the namespace of the test.
func (s *server) account(ctx context.Context, t *testing.T, name string, automount *bool) *corev1.ServiceAccount {
	t.Helper()
	return must(s.CoreV1().ServiceAccounts(space).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: name}, AutomountServiceAccountToken: automount,
	}, metav1.CreateOptions{}))(t)
}

func (s *server) token(ctx context.Context, t *testing.T, account string, audiences ...string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	return must(s.CoreV1().ServiceAccounts(space).CreateToken(ctx, account, request, metav1.CreateOptions{}))(t).Status.Token
}

// TestATokenIsReviewed asks for the token of an account, and who it is.
func TestATokenIsReviewed(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	account := s.account(ctx, t, "a", nil)
	review := func(token string) authenticationv1.TokenReviewStatus {
		t.Helper()
		r := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		return must(s.AuthenticationV1().TokenReviews().Create(ctx, r, metav1.CreateOptions{}))(t).Status
	}
	token := s.token(ctx, t, "a")
	if token == "" {
		t.Fatal("the token is empty")
	}
	status := review(token)
	want := []string{"system:serviceaccounts", "system:serviceaccounts:" + space, "system:authenticated"}
	if !status.Authenticated || status.Error != "" || status.User.Username != "system:serviceaccount:"+space+":a" ||
		status.User.UID != string(account.UID) || !slices.Equal(status.User.Groups, want) {
		t.Errorf("the token is %+v", status)
	}
	if id := status.User.Extra["authentication.kubernetes.io/credential-id"]; len(id) != 1 || !strings.HasPrefix(id[0], "JTI=") {
		t.Errorf("its id is %v", id)
	}
	if status := review(s.token(ctx, t, "a", "vault")); status.Authenticated || status.Error == "" {
		t.Errorf("a token for somebody else is %+v", status)
	}
	if err := s.CoreV1().ServiceAccounts(space).Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if status := review(token); status.Authenticated {
		t.Errorf("without its account the token is %+v", status)
	}
}

// TestATokenIsVerifiedByWhatTheIssuerPublishes follows OpenID discovery as the
// account itself, without asking the server who the token is.
func TestATokenIsVerifiedByWhatTheIssuerPublishes(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	s.account(ctx, t, "a", nil)
	access := rest.AnonymousClientConfig(s.access)
	access.BearerToken = s.token(ctx, t, "a")
	itself := must(kubernetes.NewForConfig(access))(t).Discovery().RESTClient()
	var issuer struct {
		Issuer     string   `json:"issuer"`
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := json.Unmarshal(must(itself.Get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx))(t), &issuer); err != nil {
		t.Fatal(err)
	}
	_, path, found := strings.Cut(issuer.Keys, "/openid/")
	if !found || issuer.Issuer == "" {
		t.Fatalf("the issuer says %+v", issuer)
	}
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal(must(itself.Get().AbsPath("/openid/"+path).DoRaw(ctx))(t), &keys); err != nil {
		t.Fatal(err)
	}
	var algorithms []jose.SignatureAlgorithm
	for _, name := range issuer.Algorithms {
		algorithms = append(algorithms, jose.SignatureAlgorithm(name))
	}
	signed := must(jose.ParseSigned(access.BearerToken, algorithms))(t)
	key := keys.Key(signed.Signatures[0].Header.KeyID)
	if len(key) != 1 {
		t.Fatalf("the key %q is published %d times", signed.Signatures[0].Header.KeyID, len(key))
	}
	var claims struct {
		Issuer  string `json:"iss"`
		Subject string `json:"sub"`
	}
	if err := json.Unmarshal(must(signed.Verify(key[0]))(t), &claims); err != nil {
		t.Fatal(err)
	}
	if claims.Issuer != issuer.Issuer || claims.Subject != "system:serviceaccount:"+space+":a" {
		t.Errorf("the claims are %+v", claims)
	}
}

// TestAPodGetsTheTokenUnlessItOrItsAccountRefuses is every combination of what a
// pod and its account say.
func TestAPodGetsTheTokenUnlessItOrItsAccountRefuses(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{EnableAdmissionPlugins: []string{"ServiceAccount"}})
	ctx := within(t)
	says := map[string]*bool{"nothing": nil, "yes": new(true), "no": new(false)}
	for account, automount := range says {
		s.account(ctx, t, account, automount)
		for pod, asks := range says {
			spec := podSpec(nil, nil)
			spec.ServiceAccountName, spec.AutomountServiceAccountToken = account, asks
			got := must(s.pod(ctx, "pod-"+pod+"-account-"+account, spec))(t)
			want := pod == "yes" || pod == "nothing" && account != "no"
			mounted := slices.ContainsFunc(got.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.MountPath == "/var/run/secrets/kubernetes.io/serviceaccount" && m.ReadOnly
			})
			if mounted != want {
				t.Errorf("the pod says %s and the account %s: mounted is %t", pod, account, mounted)
			}
		}
	}
}

// TestReviewsSayWhatARequestGets compares both reviews of what an account may do
// with what it gets, before and after it is granted.
func TestReviewsSayWhatARequestGets(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	account := s.account(ctx, t, "a", nil)
	user := "system:serviceaccount:" + space + ":a"
	groups := []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + space}
	access := rest.CopyConfig(s.access)
	access.Impersonate = rest.ImpersonationConfig{UserName: user, UID: string(account.UID), Groups: groups}
	itself := must(kubernetes.NewForConfig(access))(t)
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user, UID: string(account.UID), Groups: groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: space, Verb: "list", Version: "v1", Resource: "configmaps"},
	}
	agree := func(want bool) {
		t.Helper()
		_, err := itself.CoreV1().ConfigMaps(space).List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		review := must(s.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{}))(t)
		local := must(s.AuthorizationV1().LocalSubjectAccessReviews(space).Create(ctx, &authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: space}, Spec: spec,
		}, metav1.CreateOptions{}))(t)
		if (err == nil) != want || review.Status.Allowed != want || local.Status.Allowed != want || !equality.Semantic.DeepEqual(review.Spec, spec) {
			t.Errorf("want %t: the request gets %v, the reviews say %+v and %+v", want, err, review.Status, local.Status)
		}
	}
	agree(false)
	must(s.RbacV1().Roles(space).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	}, metav1.CreateOptions{}))(t)
	must(s.RbacV1().RoleBindings(space).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "r"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "a", Namespace: space}},
	}, metav1.CreateOptions{}))(t)
	agree(true)
}
