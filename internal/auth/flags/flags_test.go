package flags

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/apis/apiserver"

	"proa/internal/auth"
	"proa/internal/auth/authtest"
)

func apply(t *testing.T, args ...string) (*auth.Config, error) {
	t.Helper()
	var f Flags
	fs := pflag.NewFlagSet("server", pflag.ContinueOnError)
	f.Add(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	c := &auth.Config{}
	return c, f.Apply(c)
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const (
	authentication = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	authorization  = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}]\n"
)

func TestRulesBetweenFlags(t *testing.T) {
	authn, authz, hook := file(t, authentication), file(t, authorization), authtest.Webhook(t, nil)
	anonymous := file(t, authentication+"anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}]}\n")
	policies, abac := file(t, `{"user":"alice"}`), file(t, strings.ReplaceAll(strings.ReplaceAll(authorization, "RBAC", "ABAC"), "rbac", "abac"))
	const issuer = "--oidc-issuer-url=https://issuer.example"
	tests := []struct {
		name string
		args []string
		want string // part of the error; empty: none
	}{
		{"nothing is said", nil, ""},
		{"a file of authentication", []string{"--authentication-config", authn, "--anonymous-auth=false"}, ""},
		{"a file and an OIDC flag", []string{"--authentication-config", authn, issuer}, "authentication-config file and oidc-* flags are mutually exclusive"},
		{"anonymous twice", []string{"--authentication-config", anonymous, "--anonymous-auth=true"}, "--anonymous-auth flag cannot be set"},
		{"a file that is not there", []string{"--authentication-config", authn + "x"}, "no such file"},
		{"an issuer without a client", []string{issuer}, "must be specified together"},
		{"an issuer without TLS", []string{"--oidc-issuer-url=http://issuer.example", "--oidc-client-id=proa"}, "URL scheme must be https"},
		{"an algorithm without a signature", []string{issuer, "--oidc-client-id=proa", "--oidc-signing-algs=none"}, "unsupported signing alg"},
		{"a file of authorization", []string{"--authorization-config", authz}, ""},
		{"a file and modes", []string{"--authorization-config", authz, "--authorization-mode=RBAC"}, "--authorization-config can not be specified when"},
		{"a file and a webhook", []string{"--authorization-config", authz, "--authorization-webhook-version=v1"}, "--authorization-config can not be specified when"},
		{"a webhook without its kubeconfig", []string{"--authorization-mode=Webhook"}, "authorization-mode Webhook's authorization config file not passed"},
		{"a kubeconfig without the webhook", []string{"--authorization-webhook-config-file", hook}, "cannot specify --authorization-webhook-config-file without mode Webhook"},
		{"ABAC without its policies", []string{"--authorization-mode=ABAC"}, "authorization-mode ABAC's authorization policy file not passed"},
		{"policies without ABAC", []string{"--authorization-policy-file", policies}, "cannot specify --authorization-policy-file without mode ABAC"},
		{"ABAC", []string{"--authorization-mode=RBAC,ABAC", "--authorization-policy-file", policies}, ""},
		{"ABAC in a file", []string{"--authorization-config", abac, "--authorization-policy-file", policies}, ""},
		{"modes with a webhook", []string{"--authorization-mode=Node,Webhook,RBAC", "--authorization-webhook-config-file", hook}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := apply(t, tt.args...)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err is %v, want %q", err, tt.want)
			}
		})
	}
}

func TestOIDCFlagsAreOneAuthenticator(t *testing.T) {
	tests := []struct {
		name, claim, prefix, want string
	}{
		{"names are kept apart by the issuer", "", "", "https://issuer.example#"},
		{"e-mail addresses are not", "email", "", ""},
		{"a prefix", "email", "corp:", "corp:"},
		{"none by wish", "sub", "-", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := []string{
				"--oidc-issuer-url=https://issuer.example", "--oidc-client-id=proa", "--oidc-groups-claim=roles", "--oidc-groups-prefix=g:",
				"--oidc-required-claim=b=2,a=1", "--oidc-signing-algs=ES256", "--oidc-username-prefix", tt.prefix,
			}
			claim := "sub"
			if tt.claim != "" {
				claim = tt.claim
				args = append(args, "--oidc-username-claim", claim)
			}
			c, err := apply(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			groups := "g:"
			want := []apiserver.JWTAuthenticator{{
				Issuer:               apiserver.Issuer{URL: "https://issuer.example", Audiences: []string{"proa"}},
				ClaimValidationRules: []apiserver.ClaimValidationRule{{Claim: "a", RequiredValue: "1"}, {Claim: "b", RequiredValue: "2"}},
				ClaimMappings: apiserver.ClaimMappings{
					Username: apiserver.PrefixedClaimOrExpression{Claim: claim, Prefix: &tt.want},
					Groups:   apiserver.PrefixedClaimOrExpression{Claim: "roles", Prefix: &groups},
				},
			}}
			if got := c.JWT.Authentication.JWT; !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
			if !reflect.DeepEqual(c.JWT.Algorithms, []string{"ES256"}) || c.JWT.File != "" {
				t.Errorf("algorithms %v, file %q", c.JWT.Algorithms, c.JWT.File)
			}
		})
	}
}

func TestWhoMayBeAnonymous(t *testing.T) {
	tests := []struct {
		name  string
		args  []string
		none  bool
		paths []string
	}{
		{"everyone", nil, false, nil},
		{"nobody", []string{"--anonymous-auth=false"}, true, nil},
		{"nobody where all is allowed", []string{"--authorization-mode=AlwaysAllow"}, true, nil},
		{"by the file", []string{"--authentication-config", file(t, authentication+"anonymous: {enabled: true, conditions: [{path: /livez}]}\n")}, false, []string{"/livez"}},
		{"nobody by the file", []string{"--authentication-config", file(t, authentication+"anonymous: {enabled: false}\n")}, true, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := apply(t, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if c.NoAnonymous != tt.none || !reflect.DeepEqual(c.AnonymousPaths, tt.paths) {
				t.Errorf("nobody: %v, paths: %v", c.NoAnonymous, c.AnonymousPaths)
			}
		})
	}
}
