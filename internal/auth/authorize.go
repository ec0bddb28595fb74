package auth

import (
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/apis/apiserver"

	"proa/internal/auth/chain"
	"proa/internal/auth/node"
	"proa/internal/auth/rbac"
)

// authorizers joins the authorizers that c names.
func (a *Auth) authorizers(c Config) (err error) {
	// the roles are known in every mode: escalation checks and reviews need them
	a.RBAC = rbac.New(c.Store)
	config := c.Authorization
	config.RBAC = a.RBAC
	config.Node = node.New(c.Store)
	config.Clock, config.Dial = ticking(c.Clock), c.Egress.ControlPlane
	if config.Authorization == nil {
		config.Authorization = Authorizers(c.Modes...)
	}
	if a.chain, err = chain.New(config); err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	a.Authorizer = a.chain
	return nil
}

// Authorizers is the configuration of the authorizers of these types, named as
// upstream names them; by default Node, RBAC.
func Authorizers(modes ...string) *apiserver.AuthorizationConfiguration {
	if len(modes) == 0 {
		modes = []string{chain.Node, chain.RBAC}
	}
	c := &apiserver.AuthorizationConfiguration{}
	for _, mode := range modes {
		c.Authorizers = append(c.Authorizers, apiserver.AuthorizerConfiguration{
			Type: apiserver.AuthorizerType(mode), Name: strings.ToLower(mode),
		})
	}
	return c
}
