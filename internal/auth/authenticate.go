package auth

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	requestunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	"proa/internal/auth/bootstraptoken"
	"proa/internal/auth/clientcert"
	"proa/internal/auth/jwt"
	"proa/internal/auth/remote"
)

// authenticators makes the bearer token authenticator, which TokenReview asks
// too, and the one for requests: front proxy headers, client certificate, bearer
// token in a header or a websocket protocol, then anonymous. Bad credentials are
// an error; only absent ones are anonymous.
func (a *Auth) authenticators(c Config) error {
	tokens, err := a.tokenAuthenticators(c)
	if err != nil {
		return err
	}
	bearer := authenticated{tokenunion.New(tokens...)}
	var methods []authenticator.Request
	if c.FrontProxyCA != nil {
		a.frontProxyCA.Store(c.FrontProxyCA)
		methods = append(methods, a.frontProxy(c))
	}
	if c.ClientCA != nil {
		a.clients = clientcert.New(c.ClientCA, c.Clock)
		methods = append(methods, a.clients)
	}
	methods = append(methods, bearertoken.New(bearer), websocket.NewProtocolAuthenticator(bearer))
	identified := group.NewAuthenticatedGroupAdder(requestunion.New(methods...))
	a.tokens, a.Authenticator = bearer, identified
	if c.NoAnonymous {
		return nil
	}
	var conditions []apiserver.AnonymousAuthCondition
	for _, path := range c.AnonymousPaths {
		conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: path})
	}
	a.Authenticator = requestunion.NewFailOnError(identified, anonymous.NewAuthenticator(conditions))
	return nil
}

// tokenAuthenticators are in upstream's order: static tokens, service accounts,
// bootstrap tokens, outside issuers, and a webhook for what is left.
func (a *Auth) tokenAuthenticators(c Config) ([]authenticator.Token, error) {
	audiences := a.Tokens.Audiences()
	var list []authenticator.Token
	if c.TokenFile != "" {
		static, err := tokenfile.NewCSV(c.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("static tokens: %w", err)
		}
		list = append(list, authenticator.WrapAudienceAgnosticToken(audiences, static))
	}
	list = append(list, a.Tokens, authenticator.WrapAudienceAgnosticToken(audiences, bootstraptoken.New(c.Store, c.Clock)))
	if c.JWT != nil {
		config := *c.JWT
		config.Audiences, config.OwnIssuers, config.Clock, config.Egress = audiences, a.Tokens.Issuers(), ticking(c.Clock), c.Egress
		var err error
		if a.jwt, err = jwt.New(config); err != nil {
			return nil, fmt.Errorf("authentication configuration: %w", err)
		}
		const believed = 10 * time.Second // upstream's cache of verified tokens
		list = append(list, cache.New(a.jwt, true, believed, 0))
	}
	if c.TokenWebhook.Kubeconfig != "" {
		hook, err := tokenWebhook(c.TokenWebhook, audiences, c.Egress.ControlPlane)
		if err != nil {
			return nil, fmt.Errorf("token webhook: %w", err)
		}
		list = append(list, hook)
	}
	return list, nil
}

func tokenWebhook(c TokenWebhook, audiences authenticator.Audiences, dial utilnet.DialFunc) (authenticator.Token, error) {
	config, err := remote.Config(c.Kubeconfig, 0, dial)
	if err != nil {
		return nil, err
	}
	hook, err := webhook.New(config, cmp.Or(c.Version, "v1beta1"), audiences, *webhook.DefaultRetryBackoff())
	if err != nil {
		return nil, err
	}
	ttl := cmp.Or(c.CacheTTL, 2*time.Minute)
	return cache.New(hook, false, ttl, ttl), nil
}

// frontProxy believes the identity headers of requests whose certificate the
// front proxy CA signed.
func (a *Auth) frontProxy(c Config) authenticator.Request {
	verify := func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{
			Roots: a.frontProxyCA.Load(), CurrentTime: c.Clock.Now(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, true
	}
	h := c.FrontProxyHeaders
	return headerrequest.NewDynamicVerifyOptionsSecure(verify,
		headerrequest.StaticStringSlice(c.FrontProxyNames),
		named(h.User, "X-Remote-User"), named(h.UID, "X-Remote-Uid"),
		named(h.Group, "X-Remote-Group"), named(h.ExtraPrefix, "X-Remote-Extra-"))
}

func named(headers []string, otherwise string) headerrequest.StaticStringSlice {
	if len(headers) == 0 {
		return headerrequest.StaticStringSlice{otherwise}
	}
	return headers
}

// authenticated adds the group of everyone who showed who they are.
type authenticated struct{ next authenticator.Token }

func (a authenticated) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	r, ok, err := a.next.AuthenticateToken(ctx, token)
	if err != nil || !ok {
		return nil, ok, err
	}
	u := r.User
	groups := append(append(make([]string, 0, len(u.GetGroups())+1), u.GetGroups()...), user.AllAuthenticated)
	return &authenticator.Response{
		Audiences: r.Audiences,
		User:      &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: groups, Extra: u.GetExtra()},
	}, true, nil
}
