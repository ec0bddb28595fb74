package identity

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"proa/internal/auth/jwtsigner/signertest"
)

func (s *server) tokenOf(t *testing.T, account string, spec authenticationv1.TokenRequestSpec) (string, error) {
	t.Helper()
	r, err := s.admin(t).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return r.Status.Token, nil
}

// who is the user that a token's bearer is.
func (s *server) who(t *testing.T, token string) (authenticationv1.UserInfo, error) {
	t.Helper()
	c, err := s.client(token, "")
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return r.Status.UserInfo, nil
}

func (s *server) haveAccount(t *testing.T, name string) {
	t.Helper()
	_, err := s.admin(t).CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// auditPolicy writes down every request.
const auditPolicy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"

// audited reports whether a line of the audit log has all of some texts.
func audited(t *testing.T, log string, texts ...string) func() error {
	return func() error {
		data, err := os.ReadFile(log)
		if err != nil {
			return err
		}
	lines:
		for line := range strings.Lines(string(data)) {
			for _, text := range texts {
				if !strings.Contains(line, text) {
					continue lines
				}
			}
			return nil
		}
		return fmt.Errorf("no line of the audit log has %q", texts)
	}
}

// The use of tokens in Secrets is noted: on the Secret, in the audit log and in
// metrics. No such token is made for a service account.
func TestTokensInSecretsAreTracked(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	s := start(t, "--audit-policy-file", file(t, "audit.yaml", auditPolicy), "--audit-log-path", log)
	s.haveAccount(t, "robot")
	secrets := s.admin(t).CoreV1().Secrets("default")
	make := func(name string) string {
		_, err := secrets.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}}, Type: corev1.SecretTypeServiceAccountToken,
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var token string
		eventually(t, func() error {
			token = string(s.secret(t, name).Data[corev1.ServiceAccountTokenKey])
			if token == "" {
				return fmt.Errorf("%s is not filled in", name)
			}
			return nil
		})
		return token
	}
	manual, generated := make("manual"), make("generated")
	robot, err := s.admin(t).CoreV1().ServiceAccounts("default").Get(t.Context(), "robot", metav1.GetOptions{})
	if err != nil || len(robot.Secrets) != 0 {
		t.Errorf("the account lists %v, %v", robot.Secrets, err)
	}
	robot.Secrets = []corev1.ObjectReference{{Name: "generated"}} // as old servers did
	if _, err := s.admin(t).CoreV1().ServiceAccounts("default").Update(t.Context(), robot, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	today := time.Now().UTC().Format(time.DateOnly)
	for name, token := range map[string]string{"manual": manual, "generated": generated} {
		user, err := s.who(t, token)
		if err != nil || user.Username != "system:serviceaccount:default:robot" {
			t.Errorf("%s: %v, %v", name, user, err)
		}
		if got := s.secret(t, name).Labels["kubernetes.io/legacy-token-last-used"]; got != today && got != time.Now().UTC().Format(time.DateOnly) {
			t.Errorf("%s was last used %q", name, got)
		}
	}
	warnings := &warned{}
	config, err := s.config(generated, "")
	if err != nil {
		t.Fatal(err)
	}
	config.WarningHandler = warnings
	if _, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerVersion(); err != nil {
		t.Fatal(err)
	}
	if len(*warnings) != 1 || !strings.HasPrefix((*warnings)[0], "Use tokens from the TokenRequest API or manually created secret-based tokens") {
		t.Errorf("its bearer is warned of %q", *warnings)
	}

	marked := s.secret(t, "generated")
	marked.Labels["kubernetes.io/legacy-token-invalid-since"] = today
	if _, err := secrets.Update(t.Context(), marked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if user, err := s.who(t, generated); err == nil {
		t.Errorf("a token that is marked invalid is good for %v", user)
	}
	eventually(t, audited(t, log, `"authentication.k8s.io/legacy-token":"system:serviceaccount:default:robot"`, `"authentication.k8s.io/legacy-token-manual-secret":"manual"`))
	eventually(t, audited(t, log, `"authentication.k8s.io/legacy-token-autogenerated-secret":"generated"`))
	eventually(t, audited(t, log, `"authentication.k8s.io/legacy-token-invalidated":"generated/default"`))
	for metric, least := range map[string]string{
		"serviceaccount_legacy_tokens_total": " 4", "serviceaccount_legacy_manual_token_uses_total": " 1",
		"serviceaccount_legacy_auto_token_uses_total": " 2", "serviceaccount_invalid_legacy_auto_token_uses_total": " 1",
	} {
		if line := s.metrics(t, metric); !strings.HasSuffix(line, least+"\n") {
			t.Errorf("%s: %q", metric, line)
		}
	}
	eventually(t, func() error {
		since, err := s.admin(t).CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kube-apiserver-legacy-service-account-token-tracking", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, err := time.Parse(time.DateOnly, since.Data["since"]); err != nil {
			return fmt.Errorf("tracked since %q", since.Data["since"])
		}
		return nil
	})
	eventually(t, func() error {
		list, err := s.admin(t).CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || !ours(&list.Items[0]) {
			return fmt.Errorf("identities: %v", list.Items)
		}
		return nil
	})
}

func ours(lease *coordinationv1.Lease) bool {
	return strings.HasPrefix(lease.Name, "apiserver-") && strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), lease.Name+"_") &&
		ptr.Deref(lease.Spec.LeaseDurationSeconds, 0) == 3600
}

// warned are the warnings of answers.
type warned []string

func (w *warned) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// Several issuers: the first signs, the others' tokens stay good.
func TestTokensOfAnOldIssuerStayGood(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	s := start(t, "--service-account-issuer", "https://old.example.com",
		"--audit-policy-file", file(t, "audit.yaml", auditPolicy), "--audit-log-path", log)
	s.haveAccount(t, "robot")
	old, err := s.tokenOf(t, "robot", authenticationv1.TokenRequestSpec{Audiences: []string{"https://old.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	user, err := s.who(t, old)
	if err != nil {
		t.Fatal(err)
	}
	id := user.Extra["authentication.kubernetes.io/credential-id"]
	if len(id) != 1 || !strings.HasPrefix(id[0], "JTI=") {
		t.Fatalf("the token has no id: %v", user.Extra)
	}
	eventually(t, audited(t, log, `"authentication.kubernetes.io/issued-credential-id":"`+id[0]+`"`))
	s.stop(t)
	s.run(t, "--service-account-issuer", "https://new.example.com", "--service-account-issuer", "https://old.example.com")
	if _, err := s.who(t, old); err != nil {
		t.Errorf("a token of the old issuer: %v", err)
	}
	fresh, err := s.tokenOf(t, "robot", authenticationv1.TokenRequestSpec{})
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if parsed, err := jwt.ParseSigned(fresh, []jose.SignatureAlgorithm{jose.ES256, jose.RS256}); err != nil {
		t.Fatal(err)
	} else if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil {
		t.Fatal(err)
	}
	if claims.Issuer != "https://new.example.com" || len(claims.Audience) != 2 {
		t.Errorf("a new token is by %q for %q", claims.Issuer, claims.Audience)
	}
	s.stop(t)
	s.run(t, "--service-account-issuer", "https://new.example.com")
	if _, err := s.who(t, old); err == nil {
		t.Error("a token of an issuer that is gone is good")
	}
}

// Another process signs.
func TestTokensThatAnotherProcessSigns(t *testing.T) {
	t.Parallel()
	signer := signertest.Start(t)
	signer.Set(func(s *signertest.State) { s.Keys, s.Unpublished = []string{"key-1", "key-0"}, "key-0" })
	s := start(t, "--service-account-signing-endpoint", signer.Socket)
	s.haveAccount(t, "robot")
	token, err := s.tokenOf(t, "robot", authenticationv1.TokenRequestSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if user, err := s.who(t, token); err != nil || user.Username != "system:serviceaccount:default:robot" {
		t.Errorf("its bearer is %v, %v", user, err)
	}
	document, err := s.admin(t).Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var published jose.JSONWebKeySet
	if err := json.Unmarshal(document, &published); err != nil || len(published.Keys) != 1 || published.Keys[0].KeyID != "key-1" {
		t.Fatalf("published: %s, %v", document, err)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if err := parsed.Claims(published.Keys[0], &claims); err != nil || claims.Subject != "system:serviceaccount:default:robot" {
		t.Errorf("with the published key: %v, %v", claims, err)
	}

	signer.Set(func(s *signertest.State) { s.Keys = []string{"key-2", "key-1"} }) // the server has not asked since
	later, err := s.tokenOf(t, "robot", authenticationv1.TokenRequestSpec{})
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{"old": token, "new": later} {
		if _, err := s.who(t, token); err != nil {
			t.Errorf("a token of the %s key: %v", name, err)
		}
	}
	for name, change := range map[string]func(*signertest.State){
		"excluded from OIDC discovery docs": func(s *signertest.State) { s.Keys = []string{"key-0", "key-1"} },
		"out of ink":                        func(s *signertest.State) { s.Fail = true },
		"bad signing algorithm":             func(s *signertest.State) { s.Header = map[string]any{"alg": "none", "kid": "key-1", "typ": "JWT"} },
		"unknown field": func(s *signertest.State) {
			s.Header = map[string]any{"alg": "ES256", "kid": "key-1", "typ": "JWT", "crit": 1}
		},
		"bad type": func(s *signertest.State) { s.Header = map[string]any{"alg": "ES256", "kid": "key-1"} },
	} {
		var before signertest.State
		signer.Set(func(s *signertest.State) { before = *s; change(s) })
		if _, err := s.tokenOf(t, "robot", authenticationv1.TokenRequestSpec{}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want %q: %v", name, err)
		}
		signer.Set(func(s *signertest.State) { *s = before })
	}
	for _, metric := range []string{
		`apiserver_externaljwt_sign_request_total{code="OK"} 2`, "apiserver_externaljwt_fetch_keys_request_total{code=\"OK\"}",
		"apiserver_externaljwt_fetch_keys_data_timestamp ", "apiserver_externaljwt_fetch_keys_success_timestamp ",
		`apiserver_externaljwt_request_duration_seconds_count{code="OK",method="Sign"}`,
	} {
		if s.metrics(t, metric) == "" {
			t.Errorf("no metric %s", metric)
		}
	}
}

func TestSignersThatDoNotStart(t *testing.T) {
	t.Parallel()
	key := file(t, "key.pem", "")
	for name, c := range map[string]struct {
		flags []string
		state func(*signertest.State)
		want  string
	}{
		"a key as well":     {[]string{"--service-account-signing-key-file", key}, nil, "service-account-signing-key-file and service-account-signing-endpoint are mutually exclusive"},
		"a public key":      {[]string{"--service-account-key-file", key}, nil, "cannot set mutually exclusive flags `--service-account-key-file` and `--service-account-signing-endpoint`"},
		"short lives":       {nil, func(s *signertest.State) { s.MaxLife = 599 }, "max token life supported by external-jwt-signer (599s) is less than acceptable (min 600s)"},
		"longer than it":    {[]string{"--service-account-max-token-expiration", "48h"}, nil, "cannot be set longer than the token expiration supported by service-account-signing-endpoint: 48h0m0s > 24h0m0s"},
		"no keys":           {nil, func(s *signertest.State) { s.Keys = nil }, "found no keys"},
		"no refresh":        {nil, func(s *signertest.State) { s.Refresh = 0 }, "found invalid refresh hint (0s)"},
		"the issuer twice":  {[]string{"--service-account-issuer", "a", "--service-account-issuer", "a"}, nil, `service-account-issuer "a" is already specified`},
		"keys elsewhere":    {[]string{"--service-account-jwks-uri", "http://x"}, nil, "service-account-jwks-uri requires https scheme"},
		"a life of minutes": {[]string{"--service-account-max-token-expiration", "20m"}, nil, "must be between 1 hour and 2^32 seconds"},
	} {
		t.Run(name, func(t *testing.T) {
			signer := signertest.Start(t)
			if c.state != nil {
				signer.Set(c.state)
			}
			if out := refused(t, append([]string{"--service-account-signing-endpoint", signer.Socket}, c.flags...)...); !strings.Contains(out, c.want) {
				t.Errorf("it says %q, want %q", out, c.want)
			}
		})
	}
}

// The signer says how long its keys may be kept. Then they are fetched again, whoever asks.
func TestKeysOfAnotherProcessAreFetchedAgain(t *testing.T) {
	t.Parallel()
	signer := signertest.Start(t)
	signer.Set(func(s *signertest.State) { s.Refresh = 1 })
	s := start(t, "--service-account-signing-endpoint", signer.Socket)
	s.haveAccount(t, "robot")
	token, err := s.tokenOf(t, "robot", authenticationv1.TokenRequestSpec{})
	if err != nil {
		t.Fatal(err)
	}
	var before int
	signer.Set(func(s *signertest.State) { before, s.Keys = s.Fetched, []string{"key-2"} })
	eventually(t, func() error {
		document, err := s.admin(t).Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context())
		if err != nil || !strings.Contains(string(document), `"key-2"`) || strings.Contains(string(document), `"key-1"`) {
			return fmt.Errorf("published: %s, %w", document, err)
		}
		return nil
	})
	if user, err := s.who(t, token); err == nil {
		t.Errorf("a token of a key that is gone is good for %v", user)
	}
	eventually(t, func() error {
		var fetched int
		signer.Set(func(s *signertest.State) { fetched = s.Fetched })
		if fetched < before+3 {
			return fmt.Errorf("fetched %d times", fetched-before)
		}
		return nil
	})
}
