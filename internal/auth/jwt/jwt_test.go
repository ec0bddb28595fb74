package jwt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"proa/internal/auth/authtest"
	"proa/internal/configfile"
)

const own = "https://kubernetes.default.svc.cluster.local"

// authenticatorYAML is one entry of jwt with rules of every sort.
func authenticatorYAML(i *authtest.Issuer) string {
	return fmt.Sprintf(`- issuer:
    url: %s
    audiences: [proa, other]
    audienceMatchPolicy: MatchAny
    certificateAuthority: |
%s
  claimValidationRules:
  - {claim: tenant, requiredValue: blue}
  - {expression: "claims.level >= 2", message: too low}
  claimMappings:
    username: {expression: "claims.sub + '@' + claims.tenant"}
    groups: {claim: roles, prefix: "idp:"}
    uid: {expression: "claims.sub"}
    extra:
    - {key: example.com/level, valueExpression: "string(claims.level)"}
  userValidationRules:
  - {expression: "!user.username.startsWith('system:')", message: reserved}
`, i.URL, "      "+strings.ReplaceAll(strings.TrimSpace(i.CA), "\n", "\n      "))
}

const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n"

func started(t *testing.T, text string) (a *Authenticator, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "authn.yaml")
	write(t, file, text)
	config, err := configfile.Decode[*apiserver.AuthenticationConfiguration]([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	a, err = New(Config{
		Authentication: config, File: file, Data: []byte(text),
		Audiences: authenticator.Audiences{own}, OwnIssuers: []string{own},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a, file
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// until asks again until the answer satisfies: issuers are read in the background.
func until(t *testing.T, a *Authenticator, token string, enough func(*authenticator.Response, error) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		r, _, err := a.AuthenticateToken(ctx, token)
		if enough(r, err) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still %v, %v", r, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func believed(r *authenticator.Response, err error) bool { return r != nil && err == nil }
func unknown(r *authenticator.Response, err error) bool  { return r == nil && err == nil }

func TestTokensOfTwoIssuers(t *testing.T) {
	one, two := authtest.NewIssuer(t), authtest.NewIssuer(t)
	a, _ := started(t, head+authenticatorYAML(one)+authenticatorYAML(two))
	good := func(change ...any) map[string]any {
		claims := map[string]any{"sub": "jane", "aud": "proa", "tenant": "blue", "level": 3, "roles": []string{"dev", "ops"}}
		for i := 0; i < len(change); i += 2 {
			claims[change[i].(string)] = change[i+1]
		}
		return claims
	}
	for _, issuer := range []*authtest.Issuer{one, two} {
		until(t, a, issuer.Token(t, good()), believed)
	}
	r, _, err := a.AuthenticateToken(t.Context(), two.Token(t, good()))
	if err != nil {
		t.Fatal(err)
	}
	u := r.User
	if u.GetName() != "jane@blue" || u.GetUID() != "jane" || !reflect.DeepEqual(u.GetGroups(), []string{"idp:dev", "idp:ops"}) ||
		!reflect.DeepEqual(u.GetExtra()["example.com/level"], []string{"3"}) {
		t.Errorf("user is %+v", u)
	}
	tests := []struct {
		name, token string
	}{
		{"a claim without the required value", one.Token(t, good("tenant", "red"))},
		{"an expression that is false", one.Token(t, good("level", 1))},
		{"a user that a rule refuses", one.Token(t, good("sub", "system:masters"))},
		{"another audience", one.Token(t, good("aud", "elsewhere"))},
		{"a token that has ended", one.Token(t, good("exp", time.Now().Add(-time.Minute).Unix()))},
		{"another issuer's key", one.Token(t, good("iss", two.URL))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if r, ok, err := a.AuthenticateToken(t.Context(), tt.token); ok || err == nil {
				t.Errorf("believed: %v, err: %v", r, err)
			}
		})
	}
	stranger := authtest.NewIssuer(t)
	if r, ok, err := a.AuthenticateToken(t.Context(), stranger.Token(t, good())); ok || err != nil {
		t.Errorf("a token of no known issuer is for others to judge, got %v, %v", r, err)
	}
}

func TestConfigurationIsReplaced(t *testing.T) {
	one, two := authtest.NewIssuer(t), authtest.NewIssuer(t)
	claims := map[string]any{"sub": "jane", "aud": "proa", "tenant": "blue", "level": 3}
	a, file := started(t, head+authenticatorYAML(one))
	until(t, a, one.Token(t, claims), believed)

	write(t, file, head+"- issuer: {url: broken")
	write(t, file, head+authenticatorYAML(one)+"anonymous: {enabled: false}\n") // fixed at the start
	until(t, a, one.Token(t, claims), believed)

	write(t, file, head+authenticatorYAML(two))
	until(t, a, two.Token(t, claims), believed)
	until(t, a, one.Token(t, claims), unknown)
}

func TestAnIssuerThatDoesNotAnswerReplacesNothing(t *testing.T) {
	one, gone := authtest.NewIssuer(t), authtest.NewIssuer(t)
	a, _ := started(t, head+authenticatorYAML(one))
	gone.Close()
	ctx, stop := context.WithCancel(t.Context())
	stop() // patience ends at once
	err := a.replace(ctx, []byte(head+authenticatorYAML(gone)))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err is %v", err)
	}
	until(t, a, one.Token(t, map[string]any{"sub": "jane", "aud": "proa", "tenant": "blue", "level": 3}), believed)
}

func TestConfigurationIsJudgedAtTheStart(t *testing.T) {
	issuer := authtest.NewIssuer(t)
	tests := []struct{ name, text, want string }{
		{"an issuer that is given twice", head + authenticatorYAML(issuer) + authenticatorYAML(issuer), "Duplicate value"},
		{"the server's own issuer", head + strings.ReplaceAll(authenticatorYAML(issuer), issuer.URL, own), "URL must not overlap with disallowed issuers"},
		{"an e-mail address that need not be verified", head + strings.ReplaceAll(authenticatorYAML(issuer), "claims.sub + '@' + claims.tenant", "claims.email"), "claims.email_verified"},
		{"an expression that does not compile", head + strings.ReplaceAll(authenticatorYAML(issuer), "claims.level >= 2", "claims.level >"), "compilation failed"},
		{"an egress selector that is not there", head + strings.ReplaceAll(authenticatorYAML(issuer), "audienceMatchPolicy: MatchAny", "audienceMatchPolicy: MatchAny\n    egressSelectorType: cluster"), "egress lookup required"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config, err := configfile.Decode[*apiserver.AuthenticationConfiguration]([]byte(tt.text))
			if err == nil {
				_, err = New(Config{Authentication: config, OwnIssuers: []string{own}})
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err is %v, want one about %q", err, tt.want)
			}
		})
	}
}
