package flags

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"proa/internal/auth"
	"proa/internal/auth/jwt"
	"proa/internal/configfile"
)

// oidcFlags describe one outside issuer; they mean the same as one JWT
// authenticator of an AuthenticationConfiguration.
type oidcFlags struct {
	issuer, client, usernameClaim, usernamePrefix, groupsClaim, groupsPrefix string

	ca         configfile.Path
	algorithms []string
	required   map[string]string
}

func (o *oidcFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&o.issuer, "oidc-issuer-url", "", "URL of an OpenID issuer whose tokens are believed")
	fs.StringVar(&o.client, "oidc-client-id", "", "audience that the issuer's tokens must have")
	fs.Var(&o.ca, "oidc-ca-file", "certificate authorities of the issuer (default: the host's)")
	fs.StringVar(&o.usernameClaim, "oidc-username-claim", "sub", "claim with the user's name")
	fs.StringVar(&o.usernamePrefix, "oidc-username-prefix", "", "put before the user's name (default: the issuer's URL and #, unless the claim is email); -: nothing")
	fs.StringVar(&o.groupsClaim, "oidc-groups-claim", "", "claim with the user's groups")
	fs.StringVar(&o.groupsPrefix, "oidc-groups-prefix", "", "put before the groups' names")
	fs.StringSliceVar(&o.algorithms, "oidc-signing-algs", []string{"RS256"}, "algorithms that tokens may be signed with")
	fs.StringToStringVar(&o.required, "oidc-required-claim", nil, "claim=value that tokens must have")
}

var oidcNames = []string{
	"oidc-issuer-url", "oidc-client-id", "oidc-ca-file", "oidc-username-claim", "oidc-username-prefix",
	"oidc-groups-claim", "oidc-groups-prefix", "oidc-signing-algs", "oidc-required-claim",
}

func (f *Flags) authenticate(c *auth.Config) error {
	if err := f.frontProxy(c); err != nil {
		return err
	}
	c.NoAnonymous = !f.anonymous
	c.TokenFile = string(f.tokenFile)
	c.TokenWebhook = auth.TokenWebhook{Kubeconfig: string(f.tokenWebhook.kubeconfig), Version: f.tokenWebhook.version, CacheTTL: f.tokenWebhook.ttl}
	switch {
	case f.authentication != "" && f.changed(oidcNames...):
		return errors.New("authentication-config file and oidc-* flags are mutually exclusive")
	case f.authentication != "":
		return f.authenticationFile(c)
	case f.changed(oidcNames...):
		return f.oidc.apply(c)
	}
	return nil
}

func (f *Flags) authenticationFile(c *auth.Config) error {
	file := string(f.authentication)
	data, err := configfile.Read(file)
	if err != nil {
		return fmt.Errorf("--authentication-config: %w", err)
	}
	config, err := configfile.Decode[*apiserver.AuthenticationConfiguration](data)
	if err != nil {
		return fmt.Errorf("--authentication-config %s: %w", file, err)
	}
	c.JWT = &jwt.Config{Authentication: config, File: file, Data: data}
	if config.Anonymous == nil {
		return nil
	}
	if f.changed("anonymous-auth") {
		return errors.New("--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file")
	}
	c.NoAnonymous, c.AnonymousPaths = !config.Anonymous.Enabled, nil
	for _, condition := range config.Anonymous.Conditions {
		c.AnonymousPaths = append(c.AnonymousPaths, condition.Path)
	}
	return nil
}

func (o *oidcFlags) apply(c *auth.Config) error {
	if o.issuer == "" || o.client == "" {
		return errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set")
	}
	if !strings.HasPrefix(o.issuer, "https://") {
		return fmt.Errorf("oidc-issuer-url %q: URL scheme must be https", o.issuer)
	}
	for _, algorithm := range o.algorithms {
		if !slices.Contains(oidc.AllValidSigningAlgorithms(), algorithm) {
			return fmt.Errorf("oidc-signing-algs: unsupported signing alg: %q", algorithm)
		}
	}
	j := apiserver.JWTAuthenticator{
		Issuer:        apiserver.Issuer{URL: o.issuer, Audiences: []string{o.client}},
		ClaimMappings: apiserver.ClaimMappings{Username: apiserver.PrefixedClaimOrExpression{Claim: o.usernameClaim, Prefix: o.prefix()}},
	}
	if o.groupsClaim != "" {
		j.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: o.groupsClaim, Prefix: &o.groupsPrefix}
	}
	for _, claim := range slices.Sorted(maps.Keys(o.required)) {
		j.ClaimValidationRules = append(j.ClaimValidationRules, apiserver.ClaimValidationRule{Claim: claim, RequiredValue: o.required[claim]})
	}
	if o.ca != "" {
		pem, err := configfile.Read(string(o.ca))
		if err != nil {
			return fmt.Errorf("--oidc-ca-file: %w", err)
		}
		j.Issuer.CertificateAuthority = string(pem)
	}
	c.JWT = &jwt.Config{
		Authentication: &apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{j}},
		Algorithms:     o.algorithms,
	}
	return nil
}

// prefix keeps names of an issuer apart from the cluster's own, unless the claim
// is an e-mail address or the user says otherwise.
func (o *oidcFlags) prefix() *string {
	prefix := o.usernamePrefix
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && o.usernameClaim != "email":
		prefix = o.issuer + "#"
	}
	return &prefix
}
