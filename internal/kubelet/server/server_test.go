package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	clientremote "k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"proa/internal/client"
)

// reviewer answers access and token reviews from a set of grants
// "user verb subresource" and counts the questions.
type reviewer struct {
	client.API
	mu     sync.Mutex
	grants map[string]bool
	asked  int
}

func (a *reviewer) Create(_ context.Context, _ client.Ref, obj client.Object, _ metav1.CreateOptions) (client.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	switch o := obj.(type) {
	case *authorizationv1.SubjectAccessReview:
		r := o.Spec.ResourceAttributes
		if r.Resource != "nodes" || r.Name != "n1" {
			return nil, fmt.Errorf("asked about %s/%s", r.Resource, r.Name)
		}
		o.Status.Allowed = a.grants["admin"] && o.Spec.User == "admin" || a.grants[o.Spec.User+" "+r.Verb+" "+r.Subresource]
		return o, nil
	case *authenticationv1.TokenReview:
		o.Status.Authenticated = o.Spec.Token == "good"
		o.Status.User.Username = "by-token"
		return o, nil
	}
	return nil, fmt.Errorf("unexpected %T", obj)
}

// machine is a container runtime with one container, whose streams a real CRI
// streaming server serves.
type machine struct {
	runtimeapi.RuntimeServiceClient
	streams  streaming.Server
	attached *runtimeapi.AttachRequest // the last
	log      string
	url      string // overrides the streaming URL
}

func (m *machine) Exec(_ context.Context, in *runtimeapi.ExecRequest, _ ...grpc.CallOption) (*runtimeapi.ExecResponse, error) {
	if m.url != "" {
		return &runtimeapi.ExecResponse{Url: m.url}, nil
	}
	return m.streams.GetExec(in)
}

func (m *machine) Attach(_ context.Context, in *runtimeapi.AttachRequest, _ ...grpc.CallOption) (*runtimeapi.AttachResponse, error) {
	m.attached = in
	return m.streams.GetAttach(in)
}

func (m *machine) PortForward(_ context.Context, in *runtimeapi.PortForwardRequest, _ ...grpc.CallOption) (*runtimeapi.PortForwardResponse, error) {
	return m.streams.GetPortForward(in)
}

func (m *machine) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "sandbox"}}}, nil
}

func (m *machine) ContainerStatus(_ context.Context, in *runtimeapi.ContainerStatusRequest, _ ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	if in.ContainerId != "c1" {
		return nil, fmt.Errorf("asked about %s", in.ContainerId)
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: m.log, State: runtimeapi.ContainerState_CONTAINER_EXITED}}, nil
}

// processes is what runs in the container: "cat" and "fail".
type processes struct{}

type exitCode int

func (e exitCode) Error() string   { return fmt.Sprintf("exit %d", int(e)) }
func (e exitCode) String() string  { return e.Error() }
func (e exitCode) Exited() bool    { return true }
func (e exitCode) ExitStatus() int { return int(e) }

func (processes) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	switch {
	case id != "c1":
		return errors.New("no such container")
	case cmd[0] == "cat":
		_, err := io.Copy(out, in)
		return err
	}
	fmt.Fprint(errOut, "failed")
	return exitCode(3)
}

func (processes) Attach(_ context.Context, _ string, _ io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	_, err := io.WriteString(out, "attached")
	return err
}

func (processes) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	_, err := fmt.Fprintf(stream, "port %d", port)
	return err
}

type fixture struct {
	*httptest.Server
	api     *reviewer
	runtime *machine
	ca      *x509.Certificate
	key     *ecdsa.PrivateKey
	pods    []*corev1.Pod
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{api: &reviewer{grants: map[string]bool{"admin": true}}}
	f.ca, f.key = authority(t)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.runtime.streams.ServeHTTP(w, r) }))
	t.Cleanup(front.Close)
	base, err := url.Parse(front.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	cfg := streaming.DefaultConfig
	cfg.BaseURL = base
	streams, err := streaming.NewServer(cfg, processes{})
	if err != nil {
		t.Fatal(err)
	}
	f.runtime = &machine{streams: streams, log: filepath.Join(t.TempDir(), "0.log")}
	if err := os.WriteFile(f.runtime.log, []byte("2026-01-01T00:00:01Z stdout F hello\n2026-01-01T00:00:02Z stderr F world\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.pods = []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}, {Name: "waiting"}, {Name: "done"}, {Name: "terminal", TTY: true}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "c", ContainerID: "containerd://c1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			{Name: "terminal", ContainerID: "containerd://c2", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			{Name: "waiting", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
		}},
	}}
	pool := x509.NewCertPool()
	pool.AddCert(f.ca)
	s := New(Config{
		API: f.api, Runtime: f.runtime, NodeName: "n1", ClientCAs: pool,
		Pods: func() []*corev1.Pod { return f.pods }, Configz: map[string]int{"maxPods": 110},
		RemoveLocal: func(name string) error {
			if name == "busy" {
				return errors.New("in use")
			}
			return nil
		},
	})
	f.Server = httptest.NewUnstartedServer(s.Handler())
	f.TLS = s.tlsConfig()
	f.TLS.GetCertificate = nil
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

func authority(t *testing.T) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// as returns a TLS configuration with a client certificate of user, signed by
// the fixture's authority or, for a stranger, by another.
func (f *fixture) as(t *testing.T, user string, stranger bool) *tls.Config {
	t.Helper()
	ca, key := f.ca, f.key
	if stranger {
		ca, key = authority(t)
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: user},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, own.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: own}}}
}

func (f *fixture) get(t *testing.T, tlsc *tls.Config, token, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	tr := &http.Transport{TLSClientConfig: tlsc}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

func TestAccess(t *testing.T) {
	f := newFixture(t)
	f.api.grants["by-token get healthz"] = true
	f.api.grants["proxy-reader get proxy"] = true
	f.api.grants["pod-reader get pods"] = true
	f.api.grants["config-reader get configz"] = true
	none := &tls.Config{InsecureSkipVerify: true}
	tests := []struct {
		name  string
		tls   *tls.Config
		token string
		path  string
		code  int
	}{
		{"no credentials, not even for health", none, "", "/healthz", 401},
		{"a bad token", none, "bad", "/healthz", 401},
		{"a certificate of a stranger", f.as(t, "admin", true), "", "/healthz", 401},
		{"a certificate", f.as(t, "admin", false), "", "/pods", 200},
		{"a token with the narrow permission", none, "good", "/healthz", 200},
		{"and no other", none, "good", "/pods", 403},
		{"nodes/pods is pods", f.as(t, "pod-reader", false), "", "/pods", 200},
		{"nodes/pods is not the configuration", f.as(t, "pod-reader", false), "", "/configz", 403},
		{"nodes/pods is not health", f.as(t, "pod-reader", false), "", "/healthz", 403},
		{"nodes/configz is the configuration", f.as(t, "config-reader", false), "", "/configz", 200},
		{"nodes/configz is not pods", f.as(t, "config-reader", false), "", "/runningpods/", 403},
		{"nodes/proxy covers the configuration", f.as(t, "proxy-reader", false), "", "/configz", 200},
		{"nodes/proxy covers pods", f.as(t, "proxy-reader", false), "", "/pods", 200},
		{"nodes/proxy does not cover metrics", f.as(t, "proxy-reader", false), "", "/metrics", 403},
		{"reading is not executing", f.as(t, "proxy-reader", false), "", "/exec/ns/p/c?command=cat&output=1", 403},
		{"system logs do not lead out of their directory", f.as(t, "admin", false), "", "/logs/..%2f..%2fetc%2fpasswd", 404},
		{"nodes/proxy does not cover system logs", f.as(t, "proxy-reader", false), "", "/logs/", 403},
		{"an unknown path", f.as(t, "admin", false), "", "/spec/", 404},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if code, body := f.get(t, tt.tls, tt.token, tt.path); code != tt.code {
				t.Errorf("got %d %s, want %d", code, body, tt.code)
			}
		})
	}
	before := f.api.asked
	f.get(t, none, "good", "/healthz")
	if f.api.asked != before {
		t.Error("a known caller was reviewed again")
	}
}

func TestContainerLogs(t *testing.T) {
	f := newFixture(t)
	admin := f.as(t, "admin", false)
	tests := []struct {
		path string
		code int
		body string
	}{
		{"ns/p/c", 200, "hello\nworld"},
		{"ns/p/c?tailLines=1", 200, "world"},
		{"ns/p/c?stream=Stdout&timestamps=true", 200, "2026-01-01T00:00:01.000000000Z hello"},
		{"ns/p/c?limitBytes=1", 200, "h"},
		{"ns/p/c?sinceTime=2026-01-01T00:00:02Z", 200, "world"},
		{"ns/p/c?follow=true", 200, "hello\nworld"},
		{"ns/p/c?limitBytes=0", 422, `limitBytes: Invalid value: "0": must be greater than or equal to 1`},
		{"ns/x/c", 404, `pod "x" does not exist`},
		{"ns/p/x", 404, `container "x" not found in pod "p"`},
		{"ns/p/done", 400, `container "done" in pod "p" is not available`},
		{"ns/p/waiting", 400, `container "waiting" in pod "p" is waiting to start: ContainerCreating`},
		{"ns/p/c?previous=true", 400, `previous terminated container "c" in pod "p" not found`},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			if code, body := f.get(t, admin, "", "/containerLogs/"+tt.path); code != tt.code || body != tt.body {
				t.Errorf("got %d %q, want %d %q", code, body, tt.code, tt.body)
			}
		})
	}
}

func TestPodsAndConfiguration(t *testing.T) {
	f := newFixture(t)
	_, body := f.get(t, f.as(t, "admin", false), "", "/pods")
	var list corev1.PodList
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != 1 || list.Kind != "PodList" {
		t.Errorf("got %s, %v", body, err)
	}
	if _, body := f.get(t, f.as(t, "admin", false), "", "/configz"); body != `{"kubeletconfig":{"maxPods":110}}` {
		t.Errorf("got %s", body)
	}
}

func TestLocalVolumesAreDeletedByName(t *testing.T) {
	f := newFixture(t)
	f.api.grants["reader get proxy"] = true
	for _, tt := range []struct {
		user, path string
		code       int
	}{
		{"admin", LocalVolumes + "pvc-1", 200},
		{"admin", LocalVolumes + "busy", 409},
		{"admin", LocalVolumes + "a/b", 404},
		{"reader", LocalVolumes + "pvc-1", 403},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, f.URL+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{TLSClientConfig: f.as(t, tt.user, false)}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		tr.CloseIdleConnections()
		if resp.StatusCode != tt.code {
			t.Errorf("%s as %s: got %d, want %d", tt.path, tt.user, resp.StatusCode, tt.code)
		}
	}
}

// executors are the ways in which kubectl reaches a container.
func (f *fixture) executors(t *testing.T, path string) map[string]clientremote.Executor {
	t.Helper()
	tlsc := f.as(t, "admin", false)
	cfg := &rest.Config{Host: f.URL, Transport: nil, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	certPEM, keyPEM := pemOf(t, tlsc.Certificates[0])
	cfg.CertData, cfg.KeyData = certPEM, keyPEM
	u, err := url.Parse(f.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	spdyExec, err := clientremote.NewSPDYExecutor(cfg, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	wsExec, err := clientremote.NewWebSocketExecutor(cfg, "GET", u.String())
	if err != nil {
		t.Fatal(err)
	}
	ws4, err := clientremote.NewWebSocketExecutorForProtocols(cfg, "GET", u.String(), "v4.channel.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]clientremote.Executor{"SPDY": spdyExec, "WebSocket v5": wsExec, "WebSocket v4": ws4}
}

func TestExec(t *testing.T) {
	f := newFixture(t)
	for name, e := range f.executors(t, "/exec/ns/p/c?command=fail&output=1&error=1") {
		t.Run(name+" reports the exit code", func(t *testing.T) {
			var out, errOut bytes.Buffer
			err := e.StreamWithContext(t.Context(), clientremote.StreamOptions{Stdout: &out, Stderr: &errOut})
			if err == nil || !strings.Contains(err.Error(), "command terminated with exit code 3") || errOut.String() != "failed" {
				t.Errorf("got %v, stderr %q", err, errOut.String())
			}
		})
	}
	for name, e := range f.executors(t, "/exec/ns/p/u1/c?command=cat&input=1&output=1") {
		if name == "WebSocket v4" {
			continue // v4 cannot say that stdin has ended
		}
		t.Run(name+" passes stdin and its end", func(t *testing.T) {
			var out bytes.Buffer
			text := strings.Repeat("x", 1<<20)
			if err := e.StreamWithContext(t.Context(), clientremote.StreamOptions{Stdin: strings.NewReader(text), Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			if out.String() != text {
				t.Errorf("got %d bytes", out.Len())
			}
		})
	}
}

// Whether there is a terminal was decided when the container started. A client
// without one that asks for stderr gets the output where the node can tell it,
// and otherwise an answer at once.
func TestAttachFollowsTheContainersTerminal(t *testing.T) {
	f := newFixture(t)
	for path, want := range map[string]*runtimeapi.AttachRequest{
		"/attach/ns/p/c?input=1&output=1&error=1":        {ContainerId: "c1", Stdin: true, Stdout: true, Stderr: true},
		"/attach/ns/p/terminal?input=1&output=1&tty=1":   {ContainerId: "c2", Stdin: true, Stdout: true, Tty: true},
		"/attach/ns/p/terminal?input=1&output=1&error=1": {ContainerId: "c2", Stdin: true, Stdout: true},
	} {
		for name, e := range f.executors(t, path) {
			t.Run(name+" "+path, func(t *testing.T) {
				var out, errOut bytes.Buffer
				opts := clientremote.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: strings.Contains(path, "tty=1")}
				if strings.Contains(path, "error=1") {
					opts.Stderr = &errOut
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				err := e.StreamWithContext(ctx, opts)
				if want.ContainerId == "c2" && opts.Stderr != nil && name != "WebSocket v5" {
					if err == nil || ctx.Err() != nil {
						t.Errorf("got %v", err)
					}
					return
				}
				if err != nil || out.String() != "attached" {
					t.Errorf("%q, %v", out.String(), err)
				}
				if got := f.runtime.attached; !proto.Equal(got, want) {
					t.Errorf("the runtime was asked for %v", got)
				}
			})
		}
	}
}

func TestExecErrors(t *testing.T) {
	f := newFixture(t)
	admin := f.as(t, "admin", false)
	for path, want := range map[string]string{
		"/exec/ns/p/c?command=cat":                  "400 you must specify at least 1 of stdin, stdout, stderr",
		"/exec/ns/p/waiting?command=cat&output=1":   `500 container not found ("waiting")`,
		"/exec/ns/none/c?command=cat&output=1":      "404 pod does not exist",
		"/exec/ns/p/other-uid/c?command=c&output=1": "404 pod does not exist",
	} {
		if code, body := f.get(t, admin, "", path); fmt.Sprint(code, " ", body) != want {
			t.Errorf("%s: got %d %s, want %s", path, code, body, want)
		}
	}
	for _, address := range []string{"http://192.0.2.1:80/exec/x", "https://127.0.0.1/exec/x", "http://localhost/exec/x", "http://u@127.0.0.1/", "%"} {
		f.runtime.url = address
		if code, _ := f.get(t, admin, "", "/exec/ns/p/c?command=cat&output=1"); code != 500 {
			t.Errorf("connected to %s: %d", address, code)
		}
	}
}

func TestPortForward(t *testing.T) {
	f := newFixture(t)
	tlsc := f.as(t, "admin", false)
	certPEM, keyPEM := pemOf(t, tlsc.Certificates[0])
	cfg := &rest.Config{Host: f.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertData: certPEM, KeyData: keyPEM}}
	u, err := url.Parse(f.URL + "/portForward/ns/p")
	if err != nil {
		t.Fatal(err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(u, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]interface {
		portforwardDialer
	}{
		"SPDY":                     spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", u),
		"SPDY through a WebSocket": tunnel,
	} {
		t.Run(name, func(t *testing.T) {
			stop, ready := make(chan struct{}), make(chan struct{})
			fw, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- fw.ForwardPorts() }()
			select {
			case <-ready:
			case err := <-done:
				t.Fatal(err)
			}
			ports, err := fw.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(c)
			if err != nil || string(got) != "port 8080" {
				t.Errorf("got %q, %v", got, err)
			}
			c.Close()
			close(stop)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRunCutsStreamsWhenItEnds(t *testing.T) {
	f := newFixture(t)
	pool := x509.NewCertPool()
	pool.AddCert(f.ca)
	cert := f.as(t, "server", false).Certificates[0]
	s := New(Config{API: f.api, Runtime: f.runtime, NodeName: "n1", ClientCAs: pool, Pods: func() []*corev1.Pod { return f.pods },
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	f.URL = "https://" + l.Addr().String()
	in, keep := io.Pipe()
	defer keep.Close()
	out := &firstWrite{began: make(chan struct{})}
	streamed := make(chan error, 1)
	go func() {
		streamed <- f.executors(t, "/exec/ns/p/c?command=cat&input=1&output=1")["SPDY"].StreamWithContext(context.Background(), clientremote.StreamOptions{Stdin: in, Stdout: out})
	}()
	if _, err := io.WriteString(keep, "x"); err != nil {
		t.Fatal(err)
	}
	<-out.began
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-streamed
}

type firstWrite struct {
	once  sync.Once
	began chan struct{}
}

func (f *firstWrite) Write(p []byte) (int, error) {
	f.once.Do(func() { close(f.began) })
	return len(p), nil
}
