package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"proa/internal/apis"
	"proa/internal/client"
)

const nodePrefix = "system:node:"

// Identity is this node towards a cluster: who it is, whom it trusts, and its
// way to the API server.
type Identity struct {
	Server string
	Node   string
	CA     []byte // PEM
	Roots  *x509.CertPool

	client *Certificate
	dialer *connrotation.Dialer
	api    client.API
}

// ClientFile holds the certificate and key of a node in its directory dir.
func ClientFile(dir string) string { return filepath.Join(dir, "kubelet-client.pem") }

// OpenIdentity returns the identity of a node that keeps its certificates in dir.
func OpenIdentity(server, node, dir string, ca []byte, catalogue *apis.Catalogue) (*Identity, error) {
	i := &Identity{Server: server, Node: node, CA: ca, Roots: x509.NewCertPool()}
	if !i.Roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster's certificate authority cannot be read")
	}
	i.dialer = connrotation.NewDialer((&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext)
	var err error
	i.client, err = LoadCertificate(CertificateConfig{
		File: ClientFile(dir), Roots: i.Roots,
		Signer: certificatesv1.KubeAPIServerClientKubeletSignerName, Usage: certificatesv1.UsageClientAuth,
		Template: x509.CertificateRequest{Subject: subject(node)},
		Changed:  i.dialer.CloseAll, // a connection keeps the certificate it began with
	})
	if err != nil {
		return nil, err
	}
	i.api, err = client.NewHTTP(&rest.Config{Host: server, Transport: i.transport()}, catalogue)
	return i, err
}

func subject(node string) pkix.Name {
	return pkix.Name{CommonName: nodePrefix + node, Organization: []string{user.NodesGroup}}
}

func (i *Identity) transport() http.RoundTripper {
	return utilnet.SetTransportDefaults(&http.Transport{
		DialContext: i.dialer.DialContext,
		TLSClientConfig: &tls.Config{
			RootCAs: i.Roots, MinVersion: tls.VersionTLS12,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if pair := i.client.Current(); pair != nil {
					return pair, nil
				}
				return &tls.Certificate{}, nil // the server takes the request for an anonymous one
			},
		},
	})
}

// API is the API as this node.
func (i *Identity) API() client.API { return i.api }

// Joined says whether the node has a certificate that is good.
func (i *Identity) Joined() bool { return i.client.Current() != nil }

// Join gets the node its first certificate, with a token.
func (i *Identity) Join(ctx context.Context, t Token, catalogue *apis.Catalogue) error {
	api, err := client.NewHTTP(&rest.Config{
		Host: i.Server, BearerToken: t.String(), TLSClientConfig: rest.TLSClientConfig{CAData: i.CA},
	}, catalogue)
	if err != nil {
		return err
	}
	if err = i.nameFree(ctx, api); err == nil {
		err = i.client.Obtain(ctx, api)
	}
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the server does not accept token %s for authentication: it has expired or is not meant for that", t.ID)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("token %s is not one to join with: %w", t.ID, err)
	}
	return err
}

// nameFree refuses a name that another node has which is at work.
func (i *Identity) nameFree(ctx context.Context, api client.API) error {
	node, err := client.Of[*corev1.Node](api).Get(ctx, "", i.Node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return fmt.Errorf("a Node with name %q and status %q already exists in the cluster. You must delete the existing Node or change the name of this new joining Node", i.Node, corev1.NodeReady)
		}
	}
	return nil
}

// Serving returns the certificate that the node's agent serves with at an address.
func (i *Identity) Serving(dir string, address net.IP) (*Certificate, error) {
	return LoadCertificate(CertificateConfig{
		File: filepath.Join(dir, "kubelet-server.pem"), Roots: i.Roots,
		Signer: certificatesv1.KubeletServingSignerName, Usage: certificatesv1.UsageServerAuth,
		Template: x509.CertificateRequest{Subject: subject(i.Node), DNSNames: []string{i.Node}, IPAddresses: []net.IP{address}},
	})
}

// Run keeps the client certificate current until ctx ends.
func (i *Identity) Run(ctx context.Context) error {
	defer i.dialer.CloseAll()
	return i.client.Run(ctx, i.api)
}
