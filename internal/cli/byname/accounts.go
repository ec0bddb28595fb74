package byname

import (
	"errors"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"

	"proa/internal/apis"
	"proa/internal/client"
)

// accounts gives every controller an API as a service account of its own, which
// is made where it is missing. Tokens are asked for and renewed as they are needed.
type accounts struct {
	builder   clientbuilder.ControllerClientBuilder
	catalogue *apis.Catalogue
	err       error // of accounts that there is no API for
}

func newAccounts(access *rest.Config, catalogue *apis.Catalogue) (*accounts, error) {
	api, err := kubernetes.NewForConfig(access)
	if err != nil {
		return nil, err
	}
	// The builder wraps the transport of its skeleton, which may hold no credentials.
	bare := rest.AnonymousClientConfig(access)
	bare.UserAgent, bare.QPS, bare.Burst = access.UserAgent, access.QPS, access.Burst
	return &accounts{builder: clientbuilder.NewDynamicClientBuilder(bare, api.CoreV1(), "kube-system"), catalogue: catalogue}, nil
}

// as returns nil, and remembers why, when there is no such API.
func (a *accounts) as(account string) client.API {
	access, err := a.builder.Config(account)
	if err != nil {
		a.err = errors.Join(a.err, err)
		return nil
	}
	api, err := client.NewHTTP(access, a.catalogue)
	if err != nil {
		a.err = errors.Join(a.err, err)
		return nil
	}
	return api
}
