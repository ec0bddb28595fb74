// Package auth says who is asking and whether they may. It joins the
// authenticators and authorizers of its sub-packages in upstream's order and
// answers the review kinds with the very same decisions that requests get.
package auth

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/auth/chain"
	"proa/internal/auth/jwt"
	"proa/internal/auth/rbac"
	"proa/internal/auth/token"
	"proa/internal/store"
)

// Handler serves one create-only kind or subresource. Namespace and name are
// those of the request path, empty where it has none. Obj belongs to the handler.
type Handler func(ctx context.Context, u user.Info, namespace, name string, obj apis.Object) (apis.Object, error)

// Config describes authentication and authorization of one server. Store and
// ServiceAccountKey are required.
type Config struct {
	Store *store.Store
	Clock clock.PassiveClock

	// ClientCA verifies client certificates. Nil: none are accepted.
	ClientCA *x509.CertPool
	// FrontProxyCA verifies the aggregator's certificate, whose X-Remote-*
	// headers are believed. Nil: the headers mean nothing. FrontProxyNames limits
	// the certificate's common name; empty: any.
	FrontProxyCA    *x509.CertPool
	FrontProxyNames []string
	// FrontProxyHeaders are the names of these headers; empty ones are upstream's.
	FrontProxyHeaders Headers

	// Issuer is the iss claim of service account tokens, by default
	// https://kubernetes.default.svc.cluster.local. Audiences are those the server
	// itself answers to, by default the issuer.
	Issuer    string
	Audiences []string
	// JWKSURI is what OpenID discovery announces, by default
	// <Issuer>/openid/v1/jwks.
	JWKSURI string
	// ServiceAccountKey signs tokens. Tokens signed by VerificationKeys are
	// accepted too (rotation).
	ServiceAccountKey crypto.Signer
	VerificationKeys  []crypto.PublicKey
	// MaxTokenLife caps requested lifetimes. Zero: no cap.
	MaxTokenLife time.Duration

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

	chain  *chain.Chain
	tokens authenticator.Token
	jwt    *jwt.Authenticator // nil without outside issuers
}

// New joins authenticators and authorizers as c says.
func New(c Config) (*Auth, error) {
	if c.Store == nil {
		return nil, fmt.Errorf("auth: no store")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	tokens, err := token.New(token.Config{
		Store: c.Store, Clock: c.Clock, Issuer: c.Issuer, Audiences: c.Audiences, JWKSURI: c.JWKSURI,
		Key: c.ServiceAccountKey, VerificationKeys: c.VerificationKeys, MaxLife: c.MaxTokenLife,
	})
	if err != nil {
		return nil, err
	}
	a := &Auth{Tokens: tokens}
	if err := a.authenticators(c); err != nil {
		return nil, err
	}
	if err := a.authorizers(c); err != nil {
		return nil, err
	}
	return a, nil
}

// Run reads the keys of outside issuers and follows the changes of configuration
// files until ctx ends.
func (a *Auth) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.chain.Run(ctx) })
	if a.jwt != nil {
		g.Go(func() error { return a.jwt.Run(ctx) })
	}
	return g.Wait()
}

// ticking is a clock that configuration files are followed by; nil, the real one,
// where c only tells the time.
func ticking(c clock.PassiveClock) clock.WithTicker {
	t, _ := c.(clock.WithTicker)
	return t
}
