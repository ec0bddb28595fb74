// Package flags has upstream's flags of authentication and authorization, and
// says what they mean for auth.Config. Rules between flags are upstream's, with
// its words.
package flags

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	certutil "k8s.io/client-go/util/cert"

	"proa/internal/auth"
	"proa/internal/auth/chain"
	"proa/internal/configfile"
)

// Flags are what a user may say about who is asking and whether they may.
type Flags struct {
	anonymous      bool
	authentication configfile.Path
	oidc           oidcFlags
	accounts       accountFlags
	tokenFile      configfile.Path
	tokenWebhook   struct {
		kubeconfig configfile.Path
		version    string
		ttl        time.Duration
	}
	requestHeader struct {
		ca    configfile.Path
		names []string
		auth.Headers
	}
	modes         []string
	authorization configfile.Path
	policies      configfile.Path
	webhook       struct {
		kubeconfig                  configfile.Path
		version                     string
		authorized, unauthorizedTTL time.Duration
	}
	set *pflag.FlagSet
}

// Add registers the flags.
func (f *Flags) Add(fs *pflag.FlagSet) {
	f.set = fs
	fs.BoolVar(&f.anonymous, "anonymous-auth", true, "let requests without credentials in as system:anonymous")
	fs.Var(&f.authentication, "authentication-config", "file with an AuthenticationConfiguration: JWT authenticators and anonymous access; read again when it changes")
	f.oidc.add(fs)
	f.accounts.add(fs)
	fs.Var(&f.tokenFile, "token-auth-file", "file with static tokens: token,user,uid,\"group1,group2\"")
	fs.Var(&f.tokenWebhook.kubeconfig, "authentication-token-webhook-config-file", "kubeconfig of a webhook that answers TokenReviews")
	fs.StringVar(&f.tokenWebhook.version, "authentication-token-webhook-version", "v1beta1", "version of authentication.k8s.io that the webhook speaks")
	fs.DurationVar(&f.tokenWebhook.ttl, "authentication-token-webhook-cache-ttl", 2*time.Minute, "how long the webhook's answers are remembered")
	h := &f.requestHeader
	fs.Var(&h.ca, "requestheader-client-ca-file", "certificate authorities of the front proxy whose identity headers are believed")
	fs.StringSliceVar(&h.names, "requestheader-allowed-names", nil, "common names that the front proxy's certificate may have (default: any)")
	fs.StringSliceVar(&h.User, "requestheader-username-headers", []string{"X-Remote-User"}, "headers with the user's name")
	fs.StringSliceVar(&h.UID, "requestheader-uid-headers", []string{"X-Remote-Uid"}, "headers with the user's uid")
	fs.StringSliceVar(&h.Group, "requestheader-group-headers", []string{"X-Remote-Group"}, "headers with the user's groups")
	fs.StringSliceVar(&h.ExtraPrefix, "requestheader-extra-headers-prefix", []string{"X-Remote-Extra-"}, "prefixes of headers with more about the user")
	fs.StringSliceVar(&f.modes, "authorization-mode", []string{chain.Node, chain.RBAC}, "authorizers in order: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny")
	fs.Var(&f.policies, "authorization-policy-file", "file with the policies of mode ABAC, one in a line")
	fs.Var(&f.authorization, "authorization-config", "file with an AuthorizationConfiguration; read again when it changes")
	fs.Var(&f.webhook.kubeconfig, "authorization-webhook-config-file", "kubeconfig of a webhook that answers SubjectAccessReviews")
	fs.StringVar(&f.webhook.version, "authorization-webhook-version", "v1beta1", "version of authorization.k8s.io that the webhook speaks")
	fs.DurationVar(&f.webhook.authorized, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "how long the webhook's allowances are remembered")
	fs.DurationVar(&f.webhook.unauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "how long the webhook's refusals are remembered")
}

// Apply reads the files that the flags name and changes c to what they ask for.
func (f *Flags) Apply(c *auth.Config) error {
	if err := f.accounts.apply(c); err != nil {
		return err
	}
	if err := f.authenticate(c); err != nil {
		return err
	}
	if err := f.authorize(c); err != nil {
		return err
	}
	for _, a := range c.Authorization.Authorization.Authorizers {
		if a.Type == chain.AlwaysAllow { // everyone may do everything: then only those who are known
			c.NoAnonymous = true
		}
	}
	return nil
}

func (f *Flags) changed(names ...string) bool {
	for _, name := range names {
		if f.set.Changed(name) {
			return true
		}
	}
	return false
}

func (f *Flags) frontProxy(c *auth.Config) error {
	h := f.requestHeader
	if h.ca != "" {
		data, err := os.ReadFile(string(h.ca))
		if err != nil {
			return fmt.Errorf("--requestheader-client-ca-file: %w", err)
		}
		certs, err := certutil.ParseCertsPEM(data)
		if err != nil {
			return fmt.Errorf("--requestheader-client-ca-file: error reading %s: %w", h.ca, err)
		}
		c.FrontProxyCAFile, c.FrontProxyCAData = string(h.ca), data
		c.FrontProxyCA = x509.NewCertPool()
		for _, cert := range certs {
			c.FrontProxyCA.AddCert(cert)
		}
	}
	for _, name := range append(append(append(append([]string{}, h.User...), h.UID...), h.Group...), h.ExtraPrefix...) {
		if name == "" {
			return errors.New("requestheader-*-headers: a header needs a name")
		}
	}
	if f.changed("requestheader-allowed-names") {
		c.FrontProxyNames = h.names
	}
	c.FrontProxyHeaders = h.Headers
	return nil
}
