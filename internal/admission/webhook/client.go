package webhook

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"proa/internal/egress"
	"proa/internal/store/backend"
	"proa/internal/tracing"
)

const (
	userAgent = "kube-apiserver-admission"
	// callTimeout bounds a call whose webhook and request have no earlier end.
	callTimeout = 30 * time.Second
	// maxResponse is how many bytes a webhook may answer.
	maxResponse = 16 << 20
)

// clients holds one HTTP client for each way to reach a webhook.
type clients struct{ manager webhookutil.ClientManager }

// newClients returns clients with the credentials of a kubeconfig, if there is one.
func newClients(services backend.Resolver, kubeconfig string) (*clients, error) {
	manager, err := webhookutil.NewClientManager(
		[]schema.GroupVersion{admissionv1beta1.SchemeGroupVersion, admissionv1.SchemeGroupVersion},
		admissionv1beta1.AddToScheme, admissionv1.AddToScheme,
	)
	if err != nil {
		return nil, err
	}
	resolver, err := webhookutil.NewDefaultAuthenticationInfoResolver(kubeconfig)
	if err != nil {
		return nil, err
	}
	manager.SetAuthenticationInfoResolver(credentials{resolver, services.Egress})
	manager.SetServiceResolver(endpoints{services})
	return &clients{manager}, manager.Validate()
}

func (c *clients) of(w *admissionregistrationv1.MutatingWebhook) (*rest.RESTClient, error) {
	config := webhookutil.ClientConfig{Name: w.Name, CABundle: w.ClientConfig.CABundle, URL: ptr.Deref(w.ClientConfig.URL, "")}
	if s := w.ClientConfig.Service; s != nil {
		config.Service = &webhookutil.ClientConfigService{
			Name: s.Name, Namespace: s.Namespace, Port: ptr.Deref(s.Port, 443), Path: ptr.Deref(s.Path, ""),
		}
	}
	return c.manager.HookClient(config)
}

// credentials are what webhooks know the server by: users of a kubeconfig, named
// after those they are for. Without a kubeconfig there are none.
type credentials struct {
	webhookutil.AuthenticationInfoResolver
	egress egress.Dialers
}

func (c credentials) ClientConfigFor(hostPort string) (*rest.Config, error) {
	config, err := c.AuthenticationInfoResolver.ClientConfigFor(hostPort)
	return guarded(config, c.egress.ControlPlane, err)
}

func (c credentials) ClientConfigForService(name, namespace string, port int) (*rest.Config, error) {
	config, err := c.AuthenticationInfoResolver.ClientConfigForService(name, namespace, port)
	return guarded(config, c.egress.Cluster, err)
}

func guarded(config *rest.Config, dial utilnet.DialFunc, err error) (*rest.Config, error) {
	if err != nil {
		return nil, err
	}
	if dial != nil {
		config.Dial = dial
	}
	config.UserAgent, config.Timeout = userAgent, callTimeout
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return guard{tracing.Transport(rt)} })
	return config, nil
}

// guard keeps a webhook from sending the server elsewhere or filling its memory.
type guard struct{ next http.RoundTripper }

var errTooLong = fmt.Errorf("response is longer than %d bytes", maxResponse)

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := g.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 3 && resp.Header.Get("Location") != "" {
		resp.Body.Close()
		return nil, errors.New("webhooks must not redirect")
	}
	resp.Body = &limited{ReadCloser: resp.Body, left: maxResponse}
	return resp, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (g guard) WrappedRoundTripper() http.RoundTripper { return g.next }

// limited fails where io.LimitReader would end.
type limited struct {
	io.ReadCloser
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, errTooLong
	}
	n, err := l.ReadCloser.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// endpoints finds who stands behind a service, without the service proxy.
type endpoints struct{ backend.Resolver }

// ResolveEndpoint implements webhook.ServiceResolver.
func (e endpoints) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	host, err := e.Pick(namespace, name, port)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: host}, nil
}
