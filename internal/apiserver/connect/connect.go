// Package connect carries a request on to a kubelet, a pod or a service: logs,
// exec, attach, port-forward and the HTTP proxies. A stream is copied, never
// interpreted, with one exception: clients that speak WebSocket v5 or tunnel
// port-forward through WebSocket are translated to the SPDY the kubelet speaks
// (KEP-4006). A redirect of the far side is never followed: a proxied one is the
// client's to follow, a kubelet's is an error.
package connect

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	streamproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"proa/internal/apiserver/request"
	"proa/internal/store"
)

// Config says how kubelets are reached. Store is required.
type Config struct {
	Store *store.Store
	// KubeletTLS holds the client certificate and the authorities of the
	// kubelets' certificates. Nil: no client certificate, the system's authorities.
	KubeletTLS  *tls.Config
	KubeletPort int32 // of nodes that do not tell theirs; default 10250
	// AllowLoopback lets a Node's address be a loopback one, for a cluster that
	// lives on one machine's loopback interface.
	AllowLoopback bool
	// LoopbackStreams lets logs, exec, attach and port-forward alone go to a Node
	// at a loopback address, as upstream does: agents of nodes that are not real
	// ones run beside the server.
	LoopbackStreams bool
	// Dial opens the connections to nodes, pods and Services. Nil: directly.
	Dial utilnet.DialFunc
}

// Connector opens connections for the connect subresources.
type Connector struct {
	config           Config
	kubeletTransport *http.Transport
	streamTransport  *http.Transport // to kubelets, for what concerns one pod
	proxyTransport   *http.Transport
}

// New returns a Connector.
func New(c Config) *Connector {
	if c.KubeletPort == 0 {
		c.KubeletPort = 10250
	}
	return &Connector{
		config:           c,
		kubeletTransport: c.transport(c.KubeletTLS, c.AllowLoopback),
		streamTransport:  c.transport(c.KubeletTLS, c.AllowLoopback || c.LoopbackStreams),
		// What listens in a pod has no certificate that could be checked.
		proxyTransport: c.transport(&tls.Config{InsecureSkipVerify: true}, c.AllowLoopback),
	}
}

// Close drops idle connections.
func (c *Connector) Close() {
	c.kubeletTransport.CloseIdleConnections()
	c.streamTransport.CloseIdleConnections()
	c.proxyTransport.CloseIdleConnections()
}

func (c *Config) transport(t *tls.Config, loopback bool) *http.Transport {
	allowed := guard(loopback)
	dial := (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: allowed}).DialContext
	if c.Dial != nil {
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			// A name is the proxy's to resolve; an address must be one that this server
			// would go to.
			if _, err := netip.ParseAddrPort(address); err == nil {
				if err := allowed(network, address, nil); err != nil {
					return nil, err
				}
			}
			return c.Dial(ctx, network, address)
		}
	}
	return &http.Transport{
		DialContext: dial, TLSClientConfig: t, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
	}
}

// guard checks the address that a name resolved to, just before it is dialled.
func guard(loopback bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if ip := at.Addr().WithZone(""); localOnly(ip) && !(loopback && ip.Unmap().IsLoopback()) {
			return fmt.Errorf("address %s is not allowed", ip)
		}
		return nil
	}
}

// Options decodes the query of a connect request into the subresource's options
// type, the one that admission sees. Nil for a subresource that is none of this
// package's.
func Options(info *request.Info, query url.Values) (runtime.Object, error) {
	var opts runtime.Object
	switch info.Resource + "/" + info.Subresource {
	case "pods/log":
		opts = &corev1.PodLogOptions{}
	case "pods/exec":
		opts = &corev1.PodExecOptions{}
	case "pods/attach":
		opts = &corev1.PodAttachOptions{}
	case "pods/portforward":
		opts = &corev1.PodPortForwardOptions{}
	case "pods/proxy":
		return &corev1.PodProxyOptions{Path: info.Rest()}, nil
	case "services/proxy":
		return &corev1.ServiceProxyOptions{Path: info.Rest()}, nil
	case "nodes/proxy":
		return &corev1.NodeProxyOptions{Path: info.Rest()}, nil
	default:
		return nil, nil
	}
	return opts, decodeQuery(query, opts)
}

// Serve carries out a connect request whose options admission let pass. An error
// is returned before anything was written.
func (c *Connector) Serve(w http.ResponseWriter, r *http.Request, info *request.Info, opts runtime.Object, fail func(error)) error {
	s := c.config.Store.Snapshot()
	switch o := opts.(type) {
	case *corev1.PodLogOptions:
		return c.log(w, r, s, info, o)
	case *corev1.PodExecOptions:
		return c.exec(w, r, s, info, "exec", o, fail)
	case *corev1.PodAttachOptions:
		return c.exec(w, r, s, info, "attach", &corev1.PodExecOptions{
			Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY, Container: o.Container,
		}, fail)
	case *corev1.PodPortForwardOptions:
		return c.portForward(w, r, s, info, o, fail)
	case *corev1.PodProxyOptions:
		t, err := c.podTarget(s, info.Namespace, info.Name)
		return c.proxy(w, r, t, err, o.Path, fail)
	case *corev1.ServiceProxyOptions:
		t, err := c.serviceTarget(s, info.Namespace, info.Name)
		return c.proxy(w, r, t, err, o.Path, fail)
	case *corev1.NodeProxyOptions:
		t, err := c.nodeTarget(s, info.Name)
		return c.proxy(w, r, t, err, o.Path, fail)
	}
	return apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{Resource: info.Resource}, info.Name, "", 0, false)
}

// streamTarget is the kubelet's path for a stream of a pod's container.
func (c *Connector) streamTarget(s *store.Snapshot, info *request.Info, kind, name string) (target, error) {
	pod, err := find[*corev1.Pod](s, podsResource, info.Namespace, info.Name)
	if err != nil {
		return target{}, err
	}
	suffix := ""
	if kind != "portForward" {
		if name, err = container(pod, name); err != nil {
			return target{}, err
		}
		suffix = "/" + url.PathEscape(name)
	}
	if pod.Spec.NodeName == "" {
		return target{}, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	t, err := c.kubelet(s, pod.Spec.NodeName)
	if err != nil {
		return target{}, err
	}
	t.transport = c.streamTransport
	t.url.Path = path.Join("/", kind, pod.Namespace, pod.Name) + suffix
	return t, nil
}

func (c *Connector) exec(w http.ResponseWriter, r *http.Request, s *store.Snapshot, info *request.Info, kind string, o *corev1.PodExecOptions, fail func(error)) error {
	t, err := c.streamTarget(s, info, kind, o.Container)
	if err != nil {
		return err
	}
	query := url.Values{}
	for name, on := range map[string]bool{corev1.ExecStdinParam: o.Stdin, corev1.ExecStdoutParam: o.Stdout, corev1.ExecStderrParam: o.Stderr, corev1.ExecTTYParam: o.TTY} {
		if on {
			query.Set(name, "1")
		}
	}
	for _, word := range o.Command {
		query.Add(corev1.ExecCommandParam, word)
	}
	t.url.RawQuery = query.Encode()
	streamExec(w, r, t, o, fail)
	return nil
}

func streamExec(w http.ResponseWriter, r *http.Request, t target, o *corev1.PodExecOptions, fail func(error)) {
	handler := http.Handler(upgrade(t, fail))
	translator := streamproxy.NewStreamTranslatorHandler(t.url, t.transport, 0, streamproxy.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
	handler = streamproxy.NewTranslatingHandler(handler, translator, wsstream.IsWebSocketRequestWithStreamCloseProtocol)
	handler.ServeHTTP(w, r)
}

func (c *Connector) portForward(w http.ResponseWriter, r *http.Request, s *store.Snapshot, info *request.Info, o *corev1.PodPortForwardOptions, fail func(error)) error {
	t, err := c.streamTarget(s, info, "portForward", "")
	if err != nil {
		return err
	}
	if len(o.Ports) > 0 {
		t.url.RawQuery = url.Values{corev1.PortHeader: {strings.Trim(strings.ReplaceAll(fmt.Sprint(o.Ports), " ", ","), "[]")}}.Encode()
	}
	streamPorts(w, r, t, fail)
	return nil
}

func streamPorts(w http.ResponseWriter, r *http.Request, t target, fail func(error)) {
	handler := upgrade(t, fail)
	streamproxy.NewTranslatingHandler(handler, streamproxy.NewTunnelingHandler(handler), wsstream.IsWebSocketRequestWithTunnelingProtocol).ServeHTTP(w, r)
}

// upgrade copies an upgraded connection both ways; anything else is an error.
func upgrade(t target, fail func(error)) *utilproxy.UpgradeAwareHandler {
	h := utilproxy.NewUpgradeAwareHandler(t.url, t.transport, false, true, responder(fail))
	h.RejectForwardingRedirects = true
	return h
}

func (c *Connector) proxy(w http.ResponseWriter, r *http.Request, t target, err error, rest string, fail func(error)) error {
	if err != nil {
		return err
	}
	t.url.Path = rest
	utilproxy.NewUpgradeAwareHandler(t.url, t.transport, true, false, responder(fail)).ServeHTTP(w, r)
	return nil
}

type responder func(error)

func (f responder) Error(_ http.ResponseWriter, _ *http.Request, err error) { f(err) }
