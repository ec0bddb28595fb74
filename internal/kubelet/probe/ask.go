package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// outcome of one probe before thresholds.
type outcome string

const (
	pass    outcome = "Success"
	warn    outcome = "Warning"
	fail    outcome = "Failure"
	unclear outcome = "Unknown"
)

const (
	userAgent = "kube-probe/1.37"
	// maxBody bounds what is read of an HTTP answer, in bytes.
	maxBody = 10 << 10
)

func (w *worker) ask(ctx context.Context) (outcome, string, error) {
	timeout := time.Duration(max(w.probe.TimeoutSeconds, 1)) * time.Second
	switch p := w.probe; {
	case p.Exec != nil:
		return askExec(ctx, w.m.c.Exec, w.target.container.ID, p.Exec.Command, timeout)
	case p.HTTPGet != nil:
		return askHTTP(ctx, w.target, p.HTTPGet, timeout)
	case p.TCPSocket != nil:
		port, err := Port(p.TCPSocket.Port, w.target.spec)
		if err != nil {
			return unclear, "", err
		}
		return askTCP(ctx, orHost(p.TCPSocket.Host, w.target.host), port, timeout)
	case p.GRPC != nil:
		return askGRPC(ctx, net.JoinHostPort(w.target.host, strconv.Itoa(int(p.GRPC.Port))), ptr.Deref(p.GRPC.Service, ""), timeout)
	}
	return unclear, "", fmt.Errorf("missing probe handler for %s:%s", w.target.pod.Name, w.target.spec.Name)
}

func orHost(host, def string) string {
	if host != "" {
		return host
	}
	return def
}

// Port resolves a number or the name of one of the container's ports.
func Port(p intstr.IntOrString, c *corev1.Container) (int, error) {
	port := p.IntValue()
	if p.Type == intstr.String {
		for _, cp := range c.Ports {
			if cp.Name == p.StrVal {
				port = int(cp.ContainerPort)
			}
		}
	}
	if port <= 0 || port > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", port)
	}
	return port, nil
}

func askExec(ctx context.Context, exec ExecFunc, id string, cmd []string, timeout time.Duration) (outcome, string, error) {
	out, code, err := exec(ctx, id, cmd, timeout)
	switch {
	case grpcstatus.Code(err) == codes.DeadlineExceeded:
		return fail, fmt.Sprintf("command timed out: %q timed out after %v", strings.Join(cmd, " "), timeout), nil
	case err != nil:
		return unclear, "", err
	case code != 0:
		return fail, string(out[:min(len(out), maxBody)]), nil
	}
	return pass, string(out[:min(len(out), maxBody)]), nil
}

func askTCP(ctx context.Context, host string, port int, timeout time.Duration) (outcome, string, error) {
	d := net.Dialer{Timeout: timeout}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return fail, err.Error(), nil
	}
	conn.Close()
	return pass, "", nil
}

// Request makes the HTTP request of a probe or a lifecycle hook.
func Request(ctx context.Context, a *corev1.HTTPGetAction, c *corev1.Container, host, agent string) (*http.Request, error) {
	port, err := Port(a.Port, c)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		// A path that is no URL is sent as it is, escaped.
		u = &url.URL{Path: a.Path}
	}
	u.Scheme = strings.ToLower(string(a.Scheme))
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	u.Host = net.JoinHostPort(orHost(a.Host, host), strconv.Itoa(port))
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range a.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	// A header given empty is not sent at all.
	for name, def := range map[string]string{"User-Agent": agent, "Accept": "*/*"} {
		if _, set := req.Header[name]; !set {
			req.Header.Set(name, def)
		} else if req.Header.Get(name) == "" && name == "Accept" {
			req.Header.Del(name)
		}
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	return req, nil
}

// Client asks without proxy, certificate checks or connection reuse, and
// follows redirects on the same host only.
func Client(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives: true, DisableCompression: true,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(via) >= 10 {
				return errors.New("stopped after 10 redirects")
			}
			return nil
		},
	}
}

func askHTTP(ctx context.Context, t target, a *corev1.HTTPGetAction, timeout time.Duration) (outcome, string, error) {
	req, err := Request(ctx, a, t.spec, t.host, userAgent)
	if err != nil {
		return unclear, "", err
	}
	client := Client(timeout)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return fail, err.Error(), nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return fail, err.Error(), nil
	}
	switch code := resp.StatusCode; {
	case code >= 300 && code < 400:
		return warn, fmt.Sprintf("Probe terminated redirects, Response body: %v", string(body)), nil
	case code >= 200 && code < 400:
		return pass, string(body), nil
	default:
		return fail, fmt.Sprintf("HTTP probe failed with statuscode: %d", code), nil
	}
}

func askGRPC(ctx context.Context, addr, service string, timeout time.Duration) (outcome, string, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(userAgent), grpc.WithNoProxy())
	if err != nil {
		return fail, fmt.Sprintf("error: failed to connect service at %q: %v", addr, err), nil
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx = metadata.NewOutgoingContext(ctx, metadata.MD{})
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		switch s := grpcstatus.Convert(err); s.Code() {
		case codes.Unimplemented:
			return fail, fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", s.Message()), nil
		case codes.DeadlineExceeded:
			return fail, fmt.Sprintf("timeout: health rpc did not complete within %v", timeout), nil
		default:
			return fail, fmt.Sprintf("error: health rpc failed: %v", err), nil
		}
	}
	if resp.Status != healthpb.HealthCheckResponse_SERVING {
		return fail, fmt.Sprintf("service unhealthy (responded with %q)", resp.Status), nil
	}
	return pass, "", nil
}
