package flags

import (
	"crypto"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/util/keyutil"

	"proa/internal/auth"
	"proa/internal/configfile"
)

// accountFlags describe the tokens of service accounts.
type accountFlags struct {
	issuers, audiences []string
	jwksURI            string
	keyFiles           configfile.Paths
	signingKey         configfile.Path
	endpoint           string
	maxLife            time.Duration
	extend             bool
}

func (a *accountFlags) add(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.issuers, "service-account-issuer", nil, "iss claims of service account tokens that are good; the first is that of new ones")
	fs.StringVar(&a.jwksURI, "service-account-jwks-uri", "", "URL of the keys that discovery of service account tokens announces (default: <issuer>/openid/v1/jwks)")
	fs.StringSliceVar(&a.audiences, "api-audiences", nil, "audiences of tokens that are good here (default: the issuers)")
	fs.Var(&a.keyFiles, "service-account-key-file", "PEM keys or certificates that verify service account tokens (default: the signing key)")
	fs.Var(&a.signingKey, "service-account-signing-key-file", "PEM key that signs service account tokens")
	fs.StringVar(&a.endpoint, "service-account-signing-endpoint", "", "socket of a process that signs service account tokens: a path, or @name in the abstract namespace")
	fs.DurationVar(&a.maxLife, "service-account-max-token-expiration", 0, "longest life of a token; 0: no limit")
	fs.BoolVar(&a.extend, "service-account-extend-token-expiration", true, "let tokens in pods live a year, for clients that read them once; their use after an hour is counted")
}

// RequireAccounts says which flags of service account tokens are missing, for a
// server that has no keys of its own.
func (f *Flags) RequireAccounts() (missing []error) {
	a := &f.accounts
	if len(a.issuers) == 0 {
		missing = append(missing, errors.New("service-account-issuer is a required flag"))
	}
	if len(a.issuers) == 0 || a.signingKey == "" && a.endpoint == "" {
		missing = append(missing, errors.New("--service-account-signing-key-file and --service-account-issuer are required flags"))
	}
	return missing
}

// apply keeps what c says where no flag does.
func (a *accountFlags) apply(c *auth.Config) error {
	if err := a.validate(); err != nil {
		return err
	}
	if len(a.issuers) > 0 {
		c.Issuers = a.issuers
	}
	if len(a.audiences) > 0 {
		c.Audiences = a.audiences
	}
	if a.jwksURI != "" {
		c.JWKSURI = a.jwksURI
	}
	c.MaxTokenLife, c.ExactTokenLives = a.maxLife, !a.extend
	if a.endpoint != "" {
		c.ServiceAccountKey, c.SigningEndpoint = nil, a.endpoint
		return nil
	}
	return a.keys(c)
}

func (a *accountFlags) validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, issuer := range a.issuers {
		switch _, err := url.Parse(issuer); {
		case strings.Contains(issuer, ":") && err != nil:
			errs = append(errs, fmt.Errorf("service-account-issuer %q contained a ':' but was not a valid URL: %w", issuer, err))
		case issuer == "":
			errs = append(errs, errors.New("service-account-issuer should not be an empty string"))
		case seen[issuer]:
			errs = append(errs, fmt.Errorf("service-account-issuer %q is already specified", issuer))
		}
		seen[issuer] = true
	}
	if a.jwksURI != "" {
		if u, err := url.Parse(a.jwksURI); err != nil {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri must be a valid URL: %w", err))
		} else if u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri requires https scheme, parsed as: %s", u))
		}
	}
	if a.maxLife != 0 && (a.maxLife < time.Hour || a.maxLife > 1<<32*time.Second) {
		errs = append(errs, errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds"))
	}
	if a.endpoint != "" && a.signingKey != "" {
		errs = append(errs, errors.New("service-account-signing-key-file and service-account-signing-endpoint are mutually exclusive and cannot be set at the same time"))
	}
	if a.endpoint != "" && len(a.keyFiles) > 0 {
		errs = append(errs, errors.New("cannot set mutually exclusive flags `--service-account-key-file` and `--service-account-signing-endpoint` at the same time"))
	}
	return errors.Join(errs...)
}

// keys reads the files.
func (a *accountFlags) keys(c *auth.Config) error {
	if a.signingKey != "" {
		key, err := keyutil.PrivateKeyFromFile(string(a.signingKey))
		if err != nil {
			return fmt.Errorf("failed to parse service-account-issuer-key-file: %w", err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return fmt.Errorf("--service-account-signing-key-file: a %T cannot sign", key)
		}
		c.ServiceAccountKey = signer
	}
	for _, file := range a.keyFiles {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return fmt.Errorf("--service-account-key-file: %w", err)
		}
		for _, k := range keys {
			c.VerificationKeys = append(c.VerificationKeys, k)
		}
	}
	return nil
}
