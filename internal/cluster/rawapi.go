package cluster

import (
	"fmt"
	"net"
	"strconv"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/rest"

	"proa/internal/controllers/horizontalpodautoscaler"
)

// rawAPI reads paths of the API over HTTP as the service account of a
// controller: paths that extension servers answer have no kinds here.
func (cp *controlPlane) rawAPI(controller string) (horizontalpodautoscaler.Raw, error) {
	cert, key, err := cp.authority.Client(serviceaccount.MakeUsername("kube-system", controller), serviceaccount.MakeGroupNames("kube-system")...)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", controller, err)
	}
	return horizontalpodautoscaler.NewRaw(&rest.Config{
		Host:            "https://" + net.JoinHostPort(cp.settings.advertised(), strconv.Itoa(cp.settings.Port)),
		TLSClientConfig: rest.TLSClientConfig{CAData: cp.authority.CAPEM(), CertData: cert, KeyData: key},
		QPS:             -1, // the server's fairness limits, not the client
		UserAgent:       "kube-controller-manager",
	})
}
