// Package jwt believes tokens that others issue: the JWT authenticators of an
// AuthenticationConfiguration (KEP-3331), which may be replaced while the server
// runs. Verifying a token and mapping its claims is upstream's OIDC authenticator.
package jwt

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"

	"proa/internal/apis/expression"
	"proa/internal/configfile"
	"proa/internal/egress"
)

// Config says whose tokens are believed.
type Config struct {
	Authentication *apiserver.AuthenticationConfiguration
	// File is where Authentication was read from, holding Data; its changes are
	// followed. Empty: it stays as it is.
	File string
	Data []byte
	// Algorithms may sign tokens; empty: all that upstream accepts.
	Algorithms []string
	// Audiences are those of this server.
	Audiences authenticator.Audiences
	// OwnIssuers issue the server's own tokens, so no one else may.
	OwnIssuers []string
	// Egress opens the connections to issuers that name one of its selections.
	Egress egress.Dialers

	Clock clock.WithTicker
	Log   *slog.Logger
}

// Authenticator verifies tokens of outside issuers. Before Run, it knows none.
type Authenticator struct {
	config   Config
	compiler authenticationcel.Compiler
	current  atomic.Pointer[issuers]
	retiring sync.WaitGroup
}

var _ authenticator.Token = (*Authenticator)(nil)

// New returns an authenticator, or what is wrong with its configuration.
func New(c Config) (*Authenticator, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if len(c.Algorithms) == 0 {
		c.Algorithms = oidc.AllValidSigningAlgorithms()
	}
	expression.Environment()
	a := &Authenticator{config: c, compiler: authenticationcel.NewDefaultCompiler()}
	if err := a.validate(c.Authentication); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Authenticator) validate(c *apiserver.AuthenticationConfiguration) error {
	errs := validation.ValidateAuthenticationConfiguration(a.compiler, c, a.config.OwnIssuers)
	for i, j := range c.JWT {
		selector := j.Issuer.EgressSelectorType
		if selector == "" {
			continue
		}
		if _, err := a.config.Egress.For(selector); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("jwt").Index(i).Child("issuer", "egressSelectorType"), selector, err.Error()))
		}
	}
	return errs.ToAggregate()
}

// AuthenticateToken implements authenticator.Token. A token of no known issuer is
// no error: it may be another authenticator's.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	current := a.current.Load()
	if current == nil {
		return nil, false, nil
	}
	return current.token.AuthenticateToken(ctx, token)
}

// Run reads the issuers' keys and follows the configuration's file until ctx ends.
func (a *Authenticator) Run(ctx context.Context) error {
	first, err := a.issuers(ctx, a.config.Authentication)
	if err != nil {
		return fmt.Errorf("JWT authenticators: %w", err)
	}
	a.current.Store(first)
	defer a.retiring.Wait()
	if a.config.File == "" {
		<-ctx.Done()
		return nil
	}
	lifetime := ctx
	f := &configfile.Follower{
		Path: a.config.File, Loaded: a.config.Data, Clock: a.config.Clock, Log: a.config.Log,
		Reloads: configfile.NewReloads("authentication"),
		Apply:   func(_ context.Context, data []byte) error { return a.replace(lifetime, data) },
	}
	return f.Run(ctx)
}

const (
	patience = time.Minute            // for new issuers to answer
	grace    = time.Minute            // for requests that still use the old ones
	pace     = 100 * time.Millisecond // of looks at a new issuer
	askTime  = 30 * time.Second       // for one answer of an issuer
)

// replace puts a new configuration in force once all its issuers answer.
func (a *Authenticator) replace(lifetime context.Context, data []byte) error {
	c, err := configfile.Decode[*apiserver.AuthenticationConfiguration](data)
	if err != nil {
		return err
	}
	if err := a.validate(c); err != nil {
		return err
	}
	if !reflect.DeepEqual(c.Anonymous, a.config.Authentication.Anonymous) {
		return field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file")
	}
	next, err := a.issuers(lifetime, c)
	if err != nil {
		return err
	}
	if err := a.await(lifetime, next); err != nil {
		next.end()
		return err
	}
	a.retire(a.current.Swap(next))
	return nil
}

func (a *Authenticator) await(ctx context.Context, next *issuers) error {
	limit := a.config.Clock.NewTimer(patience)
	defer limit.Stop()
	for {
		err := next.healthy()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C():
			return err
		case <-a.config.Clock.After(pace):
		}
	}
}

// issuers are the authenticators of one configuration.
type issuers struct {
	token  authenticator.Token
	checks []func() error
	done   <-chan struct{}
	end    context.CancelFunc
}

func (a *Authenticator) issuers(ctx context.Context, c *apiserver.AuthenticationConfiguration) (*issuers, error) {
	ctx, end := context.WithCancel(ctx)
	out := &issuers{done: ctx.Done(), end: end}
	var tokens []authenticator.Token
	for _, j := range c.JWT {
		options := oidc.Options{
			JWTAuthenticator: j, Compiler: a.compiler, SupportedSigningAlgs: a.config.Algorithms,
			DisallowedIssuers: a.config.OwnIssuers, APIServerID: configfile.ServerID(),
		}
		one, err := a.issuer(ctx, j, options)
		if err != nil {
			end()
			return nil, err
		}
		tokens = append(tokens, one)
		out.checks = append(out.checks, one.HealthCheck)
	}
	out.token = authenticator.WrapAudienceAgnosticToken(a.config.Audiences, tokenunion.NewFailOnError(tokens...))
	return out, nil
}

// issuer makes one authenticator, which asks its issuer the way that j names.
func (a *Authenticator) issuer(ctx context.Context, j apiserver.JWTAuthenticator, options oidc.Options) (oidc.AuthenticatorTokenWithHealthCheck, error) {
	authority := j.Issuer.CertificateAuthority
	if j.Issuer.EgressSelectorType == "" {
		if authority != "" {
			options.CAContentProvider = bundle(authority)
		}
		return oidc.New(ctx, options)
	}
	dial, err := a.config.Egress.For(j.Issuer.EgressSelectorType)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{}
	if authority != "" {
		if config.RootCAs, err = cert.NewPoolFromBytes([]byte(authority)); err != nil {
			return nil, fmt.Errorf("read the certificate authorities of issuer %s: %w", j.Issuer.URL, err)
		}
	}
	options.Client = &http.Client{
		Transport: utilnet.SetTransportDefaults(&http.Transport{DialContext: dial, TLSClientConfig: config}), Timeout: askTime,
	}
	return oidc.New(ctx, options)
}

func (i *issuers) healthy() error {
	var errs []error
	for _, check := range i.checks {
		errs = append(errs, check())
	}
	return errors.Join(errs...)
}

// retire ends issuers when no request can be using them any more.
func (a *Authenticator) retire(old *issuers) {
	a.retiring.Go(func() {
		select {
		case <-old.done:
		case <-a.config.Clock.After(grace):
			old.end()
		}
	})
}

// bundle is the PEM text of certificate authorities.
type bundle string

func (b bundle) CurrentCABundleContent() []byte { return []byte(b) }
