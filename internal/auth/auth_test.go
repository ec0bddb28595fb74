package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	testclock "k8s.io/utils/clock/testing"

	"proa/internal/auth/authtest"
	"proa/internal/auth/bootstraptoken"
	"proa/internal/auth/chain"
	"proa/internal/auth/pki"
	"proa/internal/auth/rbac"
	"proa/internal/store"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type world struct {
	*Auth
	pki   *pki.Authority
	store *store.Store
	clock *testclock.FakePassiveClock
}

func bootstrapSecret(id string, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			bootstraptoken.KeyID: []byte(id), bootstraptoken.KeySecret: []byte("0123456789abcdef"), bootstraptoken.KeyAuthentication: []byte("true"),
		},
	}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

func newWorld(t *testing.T, change func(*Config)) world {
	t.Helper()
	w := world{
		clock: testclock.NewFakePassiveClock(start),
		store: authtest.Open(t,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa"}},
			bootstrapSecret("abcdef", map[string]string{bootstraptoken.KeyGroups: "system:bootstrappers:kubeadm:default-node-token"}),
			bootstrapSecret("expire", map[string]string{bootstraptoken.KeyExpiration: start.Add(time.Hour).Format(time.RFC3339)}),
			bootstrapSecret("signer", map[string]string{bootstraptoken.KeyAuthentication: "false"}),
			bootstrapSecret("groups", map[string]string{bootstraptoken.KeyGroups: "system:masters"})),
	}
	if err := rbac.Bootstrap(t.Context(), w.store, w.clock); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.pki, err = pki.Open(pki.Config{Dir: t.TempDir(), Clock: w.clock}); err != nil {
		t.Fatal(err)
	}
	c := Config{
		Store: w.store, Clock: w.clock, ServiceAccountKey: w.pki.ServiceAccountKey,
		ClientCA: w.pki.Cluster.Pool(), FrontProxyCA: w.pki.FrontProxy.Pool(),
	}
	if change != nil {
		change(&c)
	}
	if w.Auth, err = New(c); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w world) token(t *testing.T) string {
	t.Helper()
	r, err := w.Tokens.Request(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}

type credentials struct {
	bearer  string
	cert    []byte
	headers map[string]string
	path    string
}

func (w world) who(t *testing.T, c credentials) (user.Info, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/"+c.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.TLS = &tls.ConnectionState{}
	if c.cert != nil {
		block, _ := pem.Decode(c.cert)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		req.TLS.PeerCertificates = []*x509.Certificate{cert}
	}
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	for k, v := range c.headers {
		req.Header.Set(k, v)
	}
	r, ok, err := w.Authenticator.AuthenticateRequest(req)
	if err != nil || !ok {
		return nil, err
	}
	return r.User, nil
}

func describe(u user.Info) string {
	if u == nil {
		return ""
	}
	return u.GetName() + " " + strings.Join(u.GetGroups(), ",")
}

func TestWhoIsAsking(t *testing.T) {
	w := newWorld(t, nil)
	issue := func(ca *pki.CA, leaf pki.Leaf) []byte {
		t.Helper()
		cert, _, err := ca.Issue(leaf)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	client := func(name string, groups ...string) pki.Leaf {
		return pki.Leaf{CommonName: name, Organizations: groups, Usage: x509.ExtKeyUsageClientAuth}
	}
	elsewhere, err := pki.Open(pki.Config{Dir: t.TempDir(), Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	token := w.token(t)
	const anonymous = "system:anonymous system:unauthenticated"
	tests := []struct {
		name string
		with credentials
		want string // "" for refused
	}{
		{"nobody is anonymous", credentials{}, anonymous},
		{"a client certificate", credentials{cert: issue(w.pki.Cluster, client("jane", "dev"))}, "jane dev,system:authenticated"},
		{"a certificate of another authority", credentials{cert: issue(elsewhere.Cluster, client("jane", "dev"))}, ""},
		{"a server's certificate", credentials{cert: issue(w.pki.Cluster, pki.Leaf{CommonName: "server", Usage: x509.ExtKeyUsageServerAuth})}, ""},
		{"a bearer token", credentials{bearer: token}, "system:serviceaccount:ns:sa system:serviceaccounts,system:serviceaccounts:ns,system:authenticated"},
		{"a changed token", credentials{bearer: token[:len(token)-8] + "AAAAAAAA"}, ""},
		{"an unknown token", credentials{bearer: "nonsense"}, ""},
		{"a bootstrap token", credentials{bearer: "abcdef.0123456789abcdef"},
			"system:bootstrap:abcdef system:bootstrappers,system:bootstrappers:kubeadm:default-node-token,system:authenticated"},
		{"a bootstrap token with another secret", credentials{bearer: "abcdef.0123456789abcdee"}, ""},
		{"a bootstrap token for signing only", credentials{bearer: "signer.0123456789abcdef"}, ""},
		{"a bootstrap token with a forbidden group", credentials{bearer: "groups.0123456789abcdef"}, ""},
		{"a bootstrap token before its end", credentials{bearer: "expire.0123456789abcdef"}, "system:bootstrap:expire system:bootstrappers,system:authenticated"},
		{"proxy headers of the front proxy", credentials{cert: issue(w.pki.FrontProxy, client("front-proxy-client")),
			headers: map[string]string{"X-Remote-User": "joe", "X-Remote-Group": "ops"}}, "joe ops,system:authenticated"},
		{"proxy headers of anyone else", credentials{cert: issue(w.pki.Cluster, client("jane")),
			headers: map[string]string{"X-Remote-User": "joe"}}, "jane system:authenticated"},
		{"proxy headers without a certificate", credentials{headers: map[string]string{"X-Remote-User": "joe"}}, anonymous},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := w.who(t, tt.with)
			if describe(u) != tt.want {
				t.Errorf("got %q (%v), want %q", describe(u), err, tt.want)
			}
			if tt.want == "" && err == nil {
				t.Error("refused without an error: would pass as anonymous")
			}
		})
	}
	w.clock.SetTime(start.Add(time.Hour))
	if u, _ := w.who(t, credentials{bearer: "expire.0123456789abcdef"}); u != nil {
		t.Error("took an expired bootstrap token")
	}
	w.clock.SetTime(start.Add(400 * 24 * time.Hour))
	if u, _ := w.who(t, tests[1].with); u != nil {
		t.Error("took an expired certificate that was verified before")
	}
}

func TestAnonymousCanBeLimited(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.AnonymousPaths = []string{"/healthz"} })
	for path, want := range map[string]string{"healthz": "system:anonymous system:unauthenticated", "healthz/x": "", "api": ""} {
		if u, _ := w.who(t, credentials{path: path}); describe(u) != want {
			t.Errorf("/%s: %q, want %q", path, describe(u), want)
		}
	}
	if u, _ := newWorld(t, func(c *Config) { c.NoAnonymous = true }).who(t, credentials{}); u != nil {
		t.Errorf("anonymous is off, yet %s", u.GetName())
	}
}

func TestModes(t *testing.T) {
	q := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "jane"}, Verb: "get", Resource: "pods", ResourceRequest: true}
	root := q
	root.User = &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}
	tests := []struct {
		name  string
		modes []string
		q     authorizer.Attributes
		want  authorizer.Decision
	}{
		{"no role, no access", nil, q, authorizer.DecisionNoOpinion},
		{"masters may everything", nil, root, authorizer.DecisionAllow},
		{"masters may even when all is denied", []string{chain.AlwaysDeny}, root, authorizer.DecisionAllow},
		{"all is allowed", []string{chain.AlwaysAllow}, q, authorizer.DecisionAllow},
		{"the later mode decides when the first has no opinion", []string{chain.RBAC, chain.AlwaysAllow}, q, authorizer.DecisionAllow},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Modes = tt.modes })
			if d, reason, err := w.Authorizer.Authorize(t.Context(), tt.q); d != tt.want || err != nil {
				t.Errorf("%v %q %v, want %v", d, reason, err, tt.want)
			}
		})
	}
	for _, modes := range [][]string{{"ABAC"}, {chain.RBAC, chain.RBAC}} {
		if _, err := New(Config{Store: authtest.Open(t), ServiceAccountKey: newWorld(t, nil).pki.ServiceAccountKey, Modes: modes}); err == nil {
			t.Errorf("accepted modes %v", modes)
		}
	}
}

func TestReviewsAgreeWithDecisions(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	kcm := &user.DefaultInfo{Name: "system:kube-controller-manager", Groups: []string{"system:authenticated"}}

	got, err := w.SubjectAccessReview(ctx, kcm, "", "", &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:kube-scheduler", ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods", Subresource: "binding", Namespace: "ns"}}})
	if err != nil {
		t.Fatal(err)
	}
	if s := got.(*authorizationv1.SubjectAccessReview).Status; !s.Allowed ||
		s.Reason != `RBAC: allowed by ClusterRoleBinding "system:kube-scheduler" of ClusterRole "system:kube-scheduler" to User "system:kube-scheduler"` {
		t.Errorf("scheduler binds: %+v", s)
	}
	got, err = w.SelfSubjectAccessReview(ctx, kcm, "", "", &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "delete", Resource: "pods", FieldSelector: &authorizationv1.FieldSelectorAttributes{RawSelector: "x"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if s := got.(*authorizationv1.SelfSubjectAccessReview).Status; s.Allowed || !strings.Contains(s.EvaluationError, "invalid selector") {
		t.Errorf("unparsable selector: %+v", s)
	}
	_, err = w.LocalSubjectAccessReview(ctx, kcm, "a", "", &authorizationv1.LocalSubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "jane", ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "b"}}})
	if err == nil {
		t.Error("a local review of another namespace passed")
	}
	got, err = w.SelfSubjectRulesReview(ctx, kcm, "", "", &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "ns"}})
	if err != nil {
		t.Fatal(err)
	}
	rules := got.(*authorizationv1.SelfSubjectRulesReview).Status
	if len(rules.ResourceRules) == 0 || len(rules.NonResourceRules) == 0 || rules.Incomplete || rules.EvaluationError != "" {
		t.Errorf("rules %+v", rules)
	}
}

func TestTokenReview(t *testing.T) {
	w := newWorld(t, nil)
	tests := []struct {
		name      string
		token     string
		audiences []string
		want      bool
		errText   string
	}{
		{"own audience", w.token(t), nil, true, ""},
		{"another audience", w.token(t), []string{"vault"}, false, `token audiences ["https://kubernetes.default.svc.cluster.local"] is invalid for the target audiences ["vault"]`},
		{"a bootstrap token", "abcdef.0123456789abcdef", nil, true, ""},
		{"nonsense", "nonsense", nil, false, "invalid bearer token"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := w.TokenReview(t.Context(), nil, "", "", &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: tt.token, Audiences: tt.audiences}})
			if err != nil {
				t.Fatal(err)
			}
			s := got.(*authenticationv1.TokenReview).Status
			if s.Authenticated != tt.want || s.Error != tt.errText && (tt.errText == "" || !strings.Contains(s.Error, tt.errText)) {
				t.Errorf("status %+v", s)
			}
			if tt.want && (s.User.Username == "" || len(s.Audiences) != 1) {
				t.Errorf("user %+v, audiences %v", s.User, s.Audiences)
			}
		})
	}
	if _, err := w.TokenReview(t.Context(), nil, "", "", &authenticationv1.TokenReview{}); err == nil {
		t.Error("a review without a token passed")
	}
}

func TestSelfSubjectReviewShowsTheCaller(t *testing.T) {
	w := newWorld(t, nil)
	jane := &user.DefaultInfo{Name: "jane", UID: "1", Groups: []string{"dev"}, Extra: map[string][]string{"k": {"v"}}}
	got, err := w.SelfSubjectReview(t.Context(), jane, "", "", &authenticationv1.SelfSubjectReview{})
	if err != nil {
		t.Fatal(err)
	}
	if u := got.(*authenticationv1.SelfSubjectReview).Status.UserInfo; u.Username != "jane" || u.UID != "1" || len(u.Groups) != 1 || len(u.Extra["k"]) != 1 {
		t.Errorf("user %+v", u)
	}
}

func FuzzBootstrapToken(f *testing.F) {
	a := bootstraptoken.New(authtest.Open(f, bootstrapSecret("abcdef", nil)), testclock.NewFakePassiveClock(start))
	f.Add("abcdef.0123456789abcdef")
	f.Add("abcdef.")
	f.Add("abcdef.0123456789abcdef\n")
	f.Fuzz(func(t *testing.T, token string) {
		_, ok, err := a.AuthenticateToken(t.Context(), token)
		if err != nil || ok != (token == "abcdef.0123456789abcdef") {
			t.Errorf("%q: %v %v", token, ok, err)
		}
	})
}

// A file of authorities is followed: those that are gone are not believed, whoever
// was known by them.
func TestAuthoritiesOfClientsAreFollowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	w := newWorld(t, func(c *Config) { c.ClientCAFile = file })
	other, err := pki.Open(pki.Config{Dir: t.TempDir(), Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	replace := func(pem []byte) {
		if err := os.WriteFile(file+".new", pem, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	replace(w.pki.CAPEM())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	leaf := func(a *pki.Authority) []byte {
		cert, _, err := a.Cluster.Issue(pki.Leaf{CommonName: "jane", Usage: x509.ExtKeyUsageClientAuth})
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	ours, theirs := leaf(w.pki), leaf(other)
	known := func(cert []byte) bool {
		u, err := w.who(t, credentials{cert: cert})
		return err == nil && u != nil && u.GetName() == "jane"
	}
	if !known(ours) || known(theirs) {
		t.Fatal("not the authorities that the server began with")
	}
	replace(other.CAPEM())
	for !known(theirs) {
		if t.Context().Err() != nil {
			t.Fatal("the new authority is not believed")
		}
		runtime.Gosched()
	}
	if known(ours) {
		t.Error("the old authority is still believed")
	}
	if !w.ClientCAs().Equal(other.Cluster.Pool()) {
		t.Error("clients are told of the old authority")
	}
}
