package auth

import (
	"context"
	"crypto/x509"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	requestunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/auth/bootstraptoken"
	"proa/internal/auth/clientcert"
	"proa/internal/auth/token"
)

// authenticators returns the bearer token authenticator, which TokenReview asks
// too, and the one for requests: front proxy headers, client certificate, bearer
// token in a header or a websocket protocol, then anonymous. Bad credentials are
// an error; only absent ones are anonymous.
func authenticators(c Config, tokens *token.Service) (authenticator.Token, authenticator.Request) {
	bootstrap := authenticator.WrapAudienceAgnosticToken(tokens.Audiences(), bootstraptoken.New(c.Store, c.Clock))
	bearer := authenticated{tokenunion.New(tokens, bootstrap)}
	var methods []authenticator.Request
	if c.FrontProxyCA != nil {
		methods = append(methods, frontProxy(c))
	}
	if c.ClientCA != nil {
		methods = append(methods, clientcert.New(c.ClientCA, c.Clock))
	}
	methods = append(methods, bearertoken.New(bearer), websocket.NewProtocolAuthenticator(bearer))
	identified := group.NewAuthenticatedGroupAdder(requestunion.New(methods...))
	if c.NoAnonymous {
		return bearer, identified
	}
	var conditions []apiserver.AnonymousAuthCondition
	for _, path := range c.AnonymousPaths {
		conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: path})
	}
	return bearer, requestunion.NewFailOnError(identified, anonymous.NewAuthenticator(conditions))
}

// frontProxy believes the identity headers of requests whose certificate the
// front proxy CA signed.
func frontProxy(c Config) authenticator.Request {
	verify := func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{
			Roots: c.FrontProxyCA, CurrentTime: c.Clock.Now(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, true
	}
	return headerrequest.NewDynamicVerifyOptionsSecure(verify,
		headerrequest.StaticStringSlice(c.FrontProxyNames),
		headerrequest.StaticStringSlice{"X-Remote-User"}, headerrequest.StaticStringSlice{"X-Remote-Uid"},
		headerrequest.StaticStringSlice{"X-Remote-Group"}, headerrequest.StaticStringSlice{"X-Remote-Extra-"})
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
