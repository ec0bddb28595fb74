package aggregator

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/utils/ptr"
)

// Backend is the servers behind one APIService.
type Backend struct {
	name      string // of the APIService
	gv        schema.GroupVersion
	spec      *apiregistrationv1.APIServiceSpec // shared, read-only
	available bool

	transport *http.Transport
	broken    error // why there is no transport
}

func newBackend(s *apiregistrationv1.APIService, before *Backend, c Config) *Backend {
	b := &Backend{
		name: s.Name, gv: schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}, spec: &s.Spec,
		available: helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available),
	}
	if before != nil && before.sameServers(b.spec) {
		b.transport, b.broken = before.transport, before.broken
	} else {
		b.transport, b.broken = newTransport(b.spec, c)
	}
	return b
}

func (b *Backend) sameServers(spec *apiregistrationv1.APIServiceSpec) bool {
	return b.spec.Service.Namespace == spec.Service.Namespace && b.spec.Service.Name == spec.Service.Name &&
		b.spec.InsecureSkipTLSVerify == spec.InsecureSkipTLSVerify && bytes.Equal(b.spec.CABundle, spec.CABundle)
}

func (b *Backend) close() {
	if b.transport != nil {
		b.transport.CloseIdleConnections()
	}
}

func (b *Backend) port() int32 { return ptr.Deref(b.spec.Service.Port, defaultPort) }

// root is where the backend describes its group version.
func (b *Backend) root() string { return rootOf(b.gv) }

func rootOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

const (
	defaultPort   = 443
	dialTimeout   = 10 * time.Second
	idleTimeout   = 90 * time.Second
	idlePerServer = 25
)

var errBadBundle = errors.New("unable to load root certificates: unable to parse bytes as PEM block")

// newTransport trusts what spec says, for the name that the Service has inside
// the cluster. An APIService without a bundle is held to the system's authorities.
func newTransport(spec *apiregistrationv1.APIServiceSpec, c Config) (*http.Transport, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         fmt.Sprintf("%s.%s.svc", spec.Service.Name, spec.Service.Namespace),
		InsecureSkipVerify: spec.InsecureSkipTLSVerify,
	}
	if c.Certificate != nil {
		config.Certificates = []tls.Certificate{*c.Certificate}
	}
	dial := c.Egress.Cluster
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	if len(spec.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(spec.CABundle) {
			return nil, errBadBundle
		}
	}
	return &http.Transport{
		TLSClientConfig: config, TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
		DialContext: dial, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: idlePerServer,
	}, nil
}
