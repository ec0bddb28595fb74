// Package auth says who is asking and whether they may. It joins the
// authenticators and authorizers of its sub-packages in upstream's order and
// answers the review kinds with the very same decisions that requests get.
package auth

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/auth/chain"
	"proa/internal/auth/clientcert"
	"proa/internal/auth/jwt"
	"proa/internal/auth/jwtsigner"
	"proa/internal/auth/rbac"
	"proa/internal/auth/token"
	"proa/internal/configfile"
	"proa/internal/egress"
	"proa/internal/store"
)

// Handler serves one create-only kind or subresource. Namespace and name are
// those of the request path, empty where it has none. Obj belongs to the handler.
type Handler func(ctx context.Context, u user.Info, namespace, name string, obj apis.Object) (apis.Object, error)

// Config describes authentication and authorization of one server. Store, and
// ServiceAccountKey or SigningEndpoint, are required.
type Config struct {
	Store *store.Store
	Clock clock.PassiveClock

	// ClientCA verifies client certificates. Nil: none are accepted.
	ClientCA *x509.CertPool
	// ClientCAFile is where ClientCA was read from, holding ClientCAData; its changes
	// are followed. Empty: it stays as it is.
	ClientCAFile string
	ClientCAData []byte
	// FrontProxyCA verifies the aggregator's certificate, whose X-Remote-*
	// headers are believed. Nil: the headers mean nothing. FrontProxyNames limits
	// the certificate's common name; empty: any.
	FrontProxyCA    *x509.CertPool
	FrontProxyNames []string
	// FrontProxyCAFile is to FrontProxyCA what ClientCAFile is to ClientCA.
	FrontProxyCAFile string
	FrontProxyCAData []byte
	// Trusts is told what a file of authorities holds now, in PEM, when it has changed:
	// nil for the file that has not. Nil: nobody asks.
	Trusts func(clientCA, frontProxyCA []byte)
	// FrontProxyHeaders are the names of these headers; empty ones are upstream's.
	FrontProxyHeaders Headers

	// Issuers are the iss claims of service account tokens, the first that of new
	// ones; by default https://kubernetes.default.svc.cluster.local. Audiences are
	// those the server itself answers to, by default the issuers.
	Issuers   []string
	Audiences []string
	// JWKSURI is what OpenID discovery announces, by default
	// <Issuer>/openid/v1/jwks.
	JWKSURI string
	// ServiceAccountKey signs tokens. Tokens signed by VerificationKeys are
	// accepted too (rotation).
	ServiceAccountKey crypto.Signer
	VerificationKeys  []crypto.PublicKey
	// SigningEndpoint is the socket of a process that signs them instead.
	SigningEndpoint string
	// MaxTokenLife caps requested lifetimes. Zero: no cap.
	MaxTokenLife time.Duration
	// ExactTokenLives gives pods no tokens that live longer than they asked for.
	ExactTokenLives bool

	// JWT believes tokens of outside issuers. Nil: none.
	JWT *jwt.Config
	// TokenFile lists static tokens: token,user,uid,"group1,group2". Empty: none.
	TokenFile string
	// TokenWebhook asks another server about tokens that nobody else knows.
	TokenWebhook TokenWebhook

	// NoAnonymous refuses requests without credentials. AnonymousPaths, when not
	// empty, admits them on exactly these paths only.
	NoAnonymous    bool
	AnonymousPaths []string

	// Egress opens the connections to webhooks and to outside issuers.
	Egress egress.Dialers

	// Authorization says which authorizers are asked, in order; by default Node,
	// RBAC. Modes names them where none of them is a webhook.
	Authorization chain.Config
	Modes         []string
}

// Headers are the names of the headers in which a front proxy tells who asks.
type Headers struct {
	User, UID, Group, ExtraPrefix []string
}

// TokenWebhook answers TokenReviews.
type TokenWebhook struct {
	Kubeconfig string        // empty: nobody is asked
	Version    string        // of authentication.k8s.io; v1beta1 by default
	CacheTTL   time.Duration // of answers; 2 min by default
}

// Auth answers who and whether.
type Auth struct {
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// RBAC knows all roles and bindings, for escalation checks.
	RBAC *rbac.Authorizer
	// Tokens issues and verifies service account tokens and publishes their keys.
	Tokens *token.Service

	config       Config
	frontProxyCA atomic.Pointer[x509.CertPool]

	chain   *chain.Chain
	tokens  authenticator.Token
	clients *clientcert.Authenticator // nil without authorities
	jwt     *jwt.Authenticator        // nil without outside issuers
	signer  *jwtsigner.Signer         // nil when this process signs
}

// New joins authenticators and authorizers as c says.
func New(c Config) (*Auth, error) {
	if c.Store == nil {
		return nil, fmt.Errorf("auth: no store")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	a := &Auth{config: c}
	if err := a.issuer(c); err != nil {
		return nil, err
	}
	if err := a.authenticators(c); err != nil {
		return nil, err
	}
	if err := a.authorizers(c); err != nil {
		return nil, err
	}
	return a, nil
}

// issuer makes what issues service account tokens.
func (a *Auth) issuer(c Config) (err error) {
	t := token.Config{
		Store: c.Store, Clock: c.Clock, Issuers: c.Issuers, Audiences: c.Audiences, JWKSURI: c.JWKSURI,
		Key: c.ServiceAccountKey, VerificationKeys: c.VerificationKeys, MaxLife: c.MaxTokenLife, ExactLives: c.ExactTokenLives,
	}
	if c.SigningEndpoint != "" {
		if a.signer, err = jwtsigner.Open(context.Background(), c.SigningEndpoint, ticking(c.Clock)); err != nil {
			return err
		}
		switch longest := a.signer.MaxLife(); {
		case t.MaxLife == 0:
			t.MaxLife = longest
		case t.MaxLife > longest:
			return fmt.Errorf("service-account-max-token-expiration cannot be set longer than the token expiration supported by service-account-signing-endpoint: %s > %s", t.MaxLife, longest)
		}
		t.Signer = a.signer
	}
	a.Tokens, err = token.New(t)
	return err
}

// Run reads the keys of outside issuers and follows the changes of configuration
// files until ctx ends.
func (a *Auth) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.chain.Run(ctx) })
	follow := func(file string, loaded []byte, apply func(context.Context, []byte) error) {
		if file == "" {
			return
		}
		f := &configfile.Follower{Path: file, Loaded: loaded, Clock: ticking(a.config.Clock), Apply: apply}
		g.Go(func() error { return f.Run(ctx) })
	}
	follow(a.config.ClientCAFile, a.config.ClientCAData, a.trustClients)
	follow(a.config.FrontProxyCAFile, a.config.FrontProxyCAData, a.trustFrontProxies)
	if a.jwt != nil {
		g.Go(func() error { return a.jwt.Run(ctx) })
	}
	if a.signer != nil {
		defer a.signer.Close()
		g.Go(func() error { return a.signer.Run(ctx) })
	}
	return g.Wait()
}

// trustClients believes the authorities of a file from now on.
func (a *Auth) trustClients(_ context.Context, data []byte) error {
	roots, err := authorities(data)
	if err != nil {
		return err
	}
	a.clients.Trust(roots)
	a.tell(data, nil)
	return nil
}

// trustFrontProxies believes the headers of others from now on.
func (a *Auth) trustFrontProxies(_ context.Context, data []byte) error {
	roots, err := authorities(data)
	if err != nil {
		return err
	}
	a.frontProxyCA.Store(roots)
	a.tell(nil, data)
	return nil
}

func (a *Auth) tell(clientCA, frontProxyCA []byte) {
	if a.config.Trusts != nil {
		a.config.Trusts(clientCA, frontProxyCA)
	}
}

func authorities(data []byte) (*x509.CertPool, error) {
	certificates, err := cert.ParseCertsPEM(data)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for _, c := range certificates {
		roots.AddCert(c)
	}
	return roots, nil
}

// ClientCAs are the authorities of client certificates now, nil for none.
func (a *Auth) ClientCAs() *x509.CertPool {
	if a.clients == nil {
		return nil
	}
	return a.clients.Roots()
}

// ticking is a clock that configuration files are followed by; nil, the real one,
// where c only tells the time.
func ticking(c clock.PassiveClock) clock.WithTicker {
	t, _ := c.(clock.WithTicker)
	return t
}
