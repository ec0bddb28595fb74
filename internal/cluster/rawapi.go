package cluster

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// rawAPI reads paths of the API over HTTP as the service account of a
// controller: paths that extension servers answer have no kinds here.
func (cp *controlPlane) rawAPI(controller string) (func(ctx context.Context, path string, query url.Values) ([]byte, error), error) {
	cert, key, err := cp.authority.Client(serviceaccount.MakeUsername("kube-system", controller), serviceaccount.MakeGroupNames("kube-system")...)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", controller, err)
	}
	c, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host:            "https://" + net.JoinHostPort(cp.settings.advertised(), strconv.Itoa(cp.settings.Port)),
		TLSClientConfig: rest.TLSClientConfig{CAData: cp.authority.CAPEM(), CertData: cert, KeyData: key},
		ContentConfig:   rest.ContentConfig{GroupVersion: &schema.GroupVersion{}, NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
		QPS:             -1, // the server's fairness limits, not the client
		UserAgent:       "kube-controller-manager",
	})
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", controller, err)
	}
	return func(ctx context.Context, path string, query url.Values) ([]byte, error) {
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
		return c.Get().RequestURI(path).DoRaw(ctx)
	}, nil
}
