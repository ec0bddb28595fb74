package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"proa/internal/auth/authtest"
)

const authentication = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

func jwtEntry(i *authtest.Issuer, prefix string) string {
	return fmt.Sprintf(`- issuer:
    url: %s
    audiences: [proa]
    certificateAuthority: |
      %s
  claimValidationRules:
  - {expression: "claims.level >= 2", message: too low}
  claimMappings:
    username: {expression: "'%s' + claims.sub"}
    groups: {claim: roles, prefix: "%s"}
    extra:
    - {key: example.com/level, valueExpression: "string(claims.level)"}
`, i.URL, strings.ReplaceAll(strings.TrimSpace(i.CA), "\n", "\n      "), prefix, prefix)
}

func claims(level int) map[string]any {
	return map[string]any{"sub": "jane", "aud": "proa", "roles": []string{"dev"}, "level": level}
}

func whoami(ctx context.Context, c kubernetes.Interface) (authenticationv1.UserInfo, error) {
	r, err := c.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return r.Status.UserInfo, nil
}

func is(ctx context.Context, c kubernetes.Interface, name string) func() error {
	return func() error {
		u, err := whoami(ctx, c)
		if err == nil && u.Username != name {
			err = fmt.Errorf("user is %q, want %q", u.Username, name)
		}
		return err
	}
}

// Two issuers at once, with claims judged and mapped by CEL; the file is read
// again when it changes, and a broken one changes nothing.
func TestAuthenticationConfiguration(t *testing.T) {
	t.Parallel()
	one, two := authtest.NewIssuer(t), authtest.NewIssuer(t)
	config := file(t, "authn.yaml", authentication+"jwt:\n"+jwtEntry(one, "one:")+jwtEntry(two, "two:"))
	s := start(t, "--authentication-config", config)
	ctx := t.Context()
	jane1, jane2 := s.bearer(t, one.Token(t, claims(2))), s.bearer(t, two.Token(t, claims(3)))
	eventually(t, is(ctx, jane1, "one:jane"))
	eventually(t, is(ctx, jane2, "two:jane"))
	u, err := whoami(ctx, jane2)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(u.Groups, "two:dev") || !slices.Contains(u.Groups, "system:authenticated") || fmt.Sprint(u.Extra["example.com/level"]) != "[3]" {
		t.Errorf("user is %+v", u)
	}
	if code := s.status(t, "/api", one.Token(t, claims(1))); code != http.StatusUnauthorized {
		t.Errorf("a token that a rule refuses: %d, want 401", code)
	}
	review, err := s.admin(t).AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: one.Token(t, claims(2))},
	}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != "one:jane" {
		t.Errorf("TokenReview: %+v, %v", review.Status, err)
	}

	replace(t, config, authentication+"jwt: [broken")
	eventually(t, func() error {
		if lines := s.metrics(t, "apiserver_authentication_config_controller_automatic_reloads_total"); !strings.Contains(lines, `status="failure"`) {
			return fmt.Errorf("no failed reload is counted: %s", lines)
		}
		return nil
	})
	if err := is(ctx, jane1, "one:jane")(); err != nil {
		t.Errorf("after a broken file: %v", err)
	}
	replace(t, config, authentication+"jwt:\n"+jwtEntry(two, "renamed:"))
	fresh := func(i *authtest.Issuer) string { return i.Token(t, claims(9)) } // no answer is remembered for it
	eventually(t, func() error { return is(ctx, s.bearer(t, fresh(two)), "renamed:jane")() })
	if code := s.status(t, "/api", one.Token(t, claims(8))); code != http.StatusUnauthorized {
		t.Errorf("a token of an issuer that is gone: %d, want 401", code)
	}
	for _, name := range []string{
		`apiserver_authentication_config_controller_automatic_reloads_total{apiserver_id_hash="sha256:`,
		"apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds{",
		"apiserver_authentication_config_controller_last_config_info{",
		"apiserver_authentication_jwt_authenticator_latency_seconds_count{",
	} {
		if s.metrics(t, name) == "" {
			t.Errorf("no metric %s", name)
		}
	}
}

func TestOIDCFlags(t *testing.T) {
	t.Parallel()
	issuer := authtest.NewIssuer(t)
	s := start(t, "--oidc-issuer-url", issuer.URL, "--oidc-client-id=proa", "--oidc-ca-file", file(t, "ca.pem", issuer.CA),
		"--oidc-groups-claim=roles", "--oidc-groups-prefix=corp:", "--oidc-signing-algs=ES256", "--oidc-required-claim=tenant=blue")
	mine := claims(1)
	mine["tenant"] = "blue"
	eventually(t, is(t.Context(), s.bearer(t, issuer.Token(t, mine)), issuer.URL+"#jane"))
	if code := s.status(t, "/api", issuer.Token(t, claims(1))); code != http.StatusUnauthorized {
		t.Errorf("a token without the required claim: %d, want 401", code)
	}
	s.stop(t)
	s.run(t) // the flags are remembered
	eventually(t, is(t.Context(), s.bearer(t, issuer.Token(t, mine)), issuer.URL+"#jane"))
}

func TestAnonymousOnListedPaths(t *testing.T) {
	t.Parallel()
	s := start(t, "--authentication-config", file(t, "authn.yaml", authentication+"anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}]}\n"))
	if _, err := s.admin(t).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "anonymous-admin"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: "system:anonymous"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/livez": 200, "/readyz": 200, "/readyz/": 401, "/readyz/ping": 401, "/READYZ": 401, "/healthz": 401, "/api/v1/pods": 401, "/api": 401,
	} {
		if got := s.status(t, path, ""); got != want {
			t.Errorf("%s without credentials: %d, want %d", path, got, want)
		}
	}
	if got := s.status(t, "/livez", "nonsense"); got != 401 {
		t.Errorf("/livez with a bad token: %d, want 401", got)
	}
}

func TestStaticTokensWebhookAndNoAnonymous(t *testing.T) {
	t.Parallel()
	hook := authtest.Webhook(t, func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		json.NewDecoder(r.Body).Decode(&review)
		if review.Spec.Token == "magic" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "merlin", Groups: []string{"wizards"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(review)
	})
	s := start(t, "--anonymous-auth=false", "--token-auth-file", file(t, "tokens.csv", "sesame,ali,7,\"thieves,forty\"\n"),
		"--authentication-token-webhook-config-file", hook, "--authentication-token-webhook-version=v1")
	ali, err := whoami(t.Context(), s.bearer(t, "sesame"))
	if err != nil || ali.Username != "ali" || ali.UID != "7" || !slices.Contains(ali.Groups, "forty") {
		t.Errorf("static token: %+v, %v", ali, err)
	}
	merlin, err := whoami(t.Context(), s.bearer(t, "magic"))
	if err != nil || merlin.Username != "merlin" || !slices.Contains(merlin.Groups, "wizards") {
		t.Errorf("webhook token: %+v, %v", merlin, err)
	}
	for what, got := range map[string]int{"an unknown token": s.status(t, "/livez", "muggle"), "no credentials": s.status(t, "/livez", "")} {
		if got != http.StatusUnauthorized {
			t.Errorf("%s: %d, want 401", what, got)
		}
	}
}

func TestBadConfigurationsDoNotStart(t *testing.T) {
	t.Parallel()
	good := file(t, "authn.yaml", authentication)
	tests := []struct {
		name, want string
		flags      []string
	}{
		{"a file and an OIDC flag", "mutually exclusive", []string{"--authentication-config", good, "--oidc-client-id=x"}},
		{"conditions where nobody is anonymous", "enabled should be set to true when conditions are defined",
			[]string{"--authentication-config", file(t, "a.yaml", authentication+"anonymous: {enabled: false, conditions: [{path: /livez}]}\n")}},
		{"an unknown field", "unknown field", []string{"--authentication-config", file(t, "b.yaml", authentication+"jwts: []\n")}},
		{"an unknown mode", "Unsupported value", []string{"--authorization-mode=Nobody"}},
		{"policies without their file", "authorization-mode ABAC's authorization policy file not passed", []string{"--authorization-mode=ABAC"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if out := refused(t, tt.flags...); !strings.Contains(out, tt.want) {
				t.Errorf("it says %q, want %q", out, tt.want)
			}
		})
	}
}
