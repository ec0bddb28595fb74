// Package egress says how the API server reaches out (KEP-1281): to the cluster (node
// agents, Services), to the control plane (webhooks at URLs) and to etcd, each directly,
// through a proxy that speaks HTTP CONNECT, or through a konnectivity server.
package egress

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"

	"proa/internal/configfile"
)

// Dialers open the connections of an API server, by where they lead. Nil: directly.
type Dialers struct {
	Cluster, ControlPlane, Etcd utilnet.DialFunc

	selected map[string]bool // by name; nil: nothing was configured
}

// For returns what an issuer's configuration asks for by name. Unlike others it has to
// be configured.
func (d Dialers) For(selector apiserver.EgressSelectorType) (utilnet.DialFunc, error) {
	switch {
	case d.selected == nil:
		return nil, fmt.Errorf("oidc: egress lookup required with egress selector type %q", selector)
	case !d.selected[string(selector)]:
		return nil, fmt.Errorf("oidc: egress lookup for %q is not configured", selector)
	case selector == apiserver.EgressSelectorCluster:
		return d.Cluster, nil
	}
	return d.ControlPlane, nil
}

// Read reads a file with an EgressSelectorConfiguration.
func Read(file string) (Dialers, error) {
	data, err := configfile.Read(file)
	if err != nil {
		return Dialers{}, fmt.Errorf("unable to read egress selector configuration from %q [%w]", file, err)
	}
	config, err := configfile.Decode[*apiserver.EgressSelectorConfiguration](data)
	if err != nil {
		return Dialers{}, fmt.Errorf("failed to read egress selector config: %w", err)
	}
	if errs := validate(config); len(errs) > 0 {
		return Dialers{}, fmt.Errorf("failed to validate egress selector configuration: %w", errs.ToAggregate())
	}
	d := Dialers{selected: map[string]bool{}}
	for _, s := range config.EgressSelections {
		dial, err := dialer(s.Connection)
		if err != nil {
			return Dialers{}, fmt.Errorf("failed to create dialer for egressSelection %q: %w", s.Name, err)
		}
		name := strings.ToLower(s.Name)
		d.selected[name] = true
		switch name {
		case "cluster":
			d.Cluster = dial
		case "controlplane":
			d.ControlPlane = dial
		case "etcd":
			d.Etcd = dial
		}
	}
	return d, nil
}

// dialer returns what a valid connection asks for, nil for a direct one.
func dialer(c apiserver.Connection) (utilnet.DialFunc, error) {
	switch {
	case c.ProxyProtocol == apiserver.ProtocolDirect:
		return nil, nil
	case c.ProxyProtocol == apiserver.ProtocolGRPC:
		return throughKonnectivity(c.Transport.UDS.UDSName), nil
	case c.Transport.UDS != nil:
		return (&connectProxy{network: "unix", address: c.Transport.UDS.UDSName}).dial, nil
	}
	at, err := url.Parse(c.Transport.TCP.URL)
	if err != nil {
		return nil, fmt.Errorf("invalid proxy server url %q: %w", c.Transport.TCP.URL, err)
	}
	p := &connectProxy{network: "tcp", address: at.Host}
	if at.Scheme == "https" {
		if p.tls, err = secure(c.Transport.TCP.TLSConfig); err != nil {
			return nil, err
		}
	}
	return p.dial, nil
}

func secure(t *apiserver.TLSConfig) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.ClientCert, t.ClientKey)
	if err != nil {
		return nil, fmt.Errorf("failed to read key pair %s & %s, got %w", t.ClientCert, t.ClientKey, err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, ServerName: t.TLSServerName}
	if t.CABundle == "" {
		return config, nil // the system's authorities
	}
	bundle, err := os.ReadFile(t.CABundle)
	if err != nil {
		return nil, fmt.Errorf("failed to read cert file %s, got %w", t.CABundle, err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(bundle) {
		return nil, errors.New("failed to append CA cert to the cert pool")
	}
	return config, nil
}
