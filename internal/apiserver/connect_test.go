package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	streamport "k8s.io/cri-streaming/pkg/streaming/portforward"
	streamcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/ptr"

	"proa/internal/admission"
	"proa/internal/apiserver/connect"
	"proa/internal/store"
)

// node is a kubelet that echoes: what exec gets on stdin comes back on stdout,
// a forwarded connection comes back upside up, logs tell the request.
type node struct{ *httptest.Server }

func (node) ExecInContainer(_ context.Context, _, _, container string, cmd []string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan streamcommand.TerminalSize, _ time.Duration) error {
	fmt.Fprintf(out, "%s %q ", container, cmd)
	if in != nil {
		io.Copy(out, in)
	}
	if errOut != nil {
		fmt.Fprint(errOut, "done")
	}
	if cmd[0] == "fail" {
		return exitError(3)
	}
	return nil
}

type exitError int

func (e exitError) Error() string   { return fmt.Sprint("exit ", int(e)) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return int(e) }

func (node) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	fmt.Fprintf(stream, "port %d ", port)
	_, err := io.CopyN(stream, stream, 4)
	return err
}

func newNode(t *testing.T) node {
	n := node{}
	n.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		switch parts[0] {
		case "containerLogs":
			if parts[3] == "init" {
				http.Error(w, "no log yet", http.StatusBadRequest)
				return
			}
			fmt.Fprintf(w, "%s?%s", r.URL.Path, r.URL.Query().Encode())
		case "exec":
			q := r.URL.Query()
			opts := &streamcommand.Options{Stdin: q.Get("input") == "1", Stdout: q.Get("output") == "1", Stderr: q.Get("error") == "1", TTY: q.Get("tty") == "1"}
			streamcommand.ServeExec(w, r, n, parts[2], "", parts[3], q["command"], opts, time.Minute, time.Minute, streamcommand.SupportedStreamingProtocols)
		case "portForward":
			opts, err := streamport.NewV4Options(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			streamport.ServePortForward(w, r, n, parts[2], "", opts, time.Minute, time.Minute, streamport.SupportedProtocols)
		case "redirect":
			http.Redirect(w, r, "https://10.9.9.9/", http.StatusFound)
		default:
			fmt.Fprintf(w, "%s %s", r.Method, r.URL)
		}
	}))
	t.Cleanup(n.Close)
	return n
}

// withPod is a world with a node and a pod on it.
func withPod(t *testing.T, change ...func(*Config)) (*world, node) {
	n := newNode(t)
	w := newWorld(t, append(change, func(c *Config) {
		c.Kubelet = connect.Config{KubeletTLS: &tls.Config{RootCAs: n.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"}, AllowLoopback: true}
	})...)
	port, err := strconv.Atoi(n.URL[strings.LastIndex(n.URL, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	ctx, k := t.Context(), w.client().CoreV1()
	made, err := k.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	made.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := k.Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: corev1.PodSpec{NodeName: "n", InitContainers: []corev1.Container{{Name: "init", Image: "i"}}, Containers: []corev1.Container{{Name: "a", Image: "i"}, {Name: "b", Image: "i"}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "nowhere"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	} {
		if _, err := k.Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return w, n
}

func TestLogs(t *testing.T) {
	w, _ := withPod(t)
	logs := func(pod string, o corev1.PodLogOptions) string {
		stream, err := w.client().CoreV1().Pods("default").GetLogs(pod, &o).Stream(t.Context())
		if err != nil {
			return err.Error()
		}
		defer stream.Close()
		b, err := io.ReadAll(stream)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	tests := []struct {
		name, pod string
		options   corev1.PodLogOptions
		want      string
	}{
		{"the only container", "one", corev1.PodLogOptions{}, "/containerLogs/default/one/c?"},
		{"every option", "two", corev1.PodLogOptions{Container: "b", Follow: true, Previous: true, Timestamps: true, TailLines: ptr.To[int64](0), SinceSeconds: ptr.To[int64](2), LimitBytes: ptr.To[int64](3)},
			"/containerLogs/default/two/b?follow=true&limitBytes=3&previous=true&sinceSeconds=2&tailLines=0&timestamps=true"},
		{"one of several", "two", corev1.PodLogOptions{}, "a container name must be specified for pod two, choose one of: [a b] or one of the init containers: [init]"},
		{"none of them", "two", corev1.PodLogOptions{Container: "x"}, "container x is not valid for pod two"},
		{"the kubelet refuses", "two", corev1.PodLogOptions{Container: "init"}, "no log yet\n"},
		{"no such pod", "three", corev1.PodLogOptions{}, `pods "three" not found`},
		{"not on a node yet", "nowhere", corev1.PodLogOptions{}, ""},
		{"a negative tail", "one", corev1.PodLogOptions{TailLines: ptr.To[int64](-1)}, `PodLogOptions "one" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := logs(tt.pod, tt.options); got != tt.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

// executors speak the three protocols that clients try.
func executors(t *testing.T, w *world, u *url.URL) map[string]remotecommand.Executor {
	t.Helper()
	v5, err := remotecommand.NewWebSocketExecutor(w.config, "GET", u.String())
	if err != nil {
		t.Fatal(err)
	}
	v4, err := remotecommand.NewWebSocketExecutorForProtocols(w.config, "GET", u.String(), "v4.channel.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	spdyExecutor, err := remotecommand.NewSPDYExecutor(w.config, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]remotecommand.Executor{"v5.channel.k8s.io": v5, "v4.channel.k8s.io": v4, "SPDY/3.1": spdyExecutor}
}

func TestExec(t *testing.T) {
	w, _ := withPod(t)
	for _, command := range []string{"ok", "fail"} {
		u := w.client().CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("two").SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: "b", Command: []string{command, "x y"}, Stdin: true, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
		for name, executor := range executors(t, w, u) {
			t.Run(name+" "+command, func(t *testing.T) {
				var out, errOut bytes.Buffer
				in := io.Reader(strings.NewReader("hello"))
				if name == "v4.channel.k8s.io" {
					in = nil // its protocol cannot say that the input ends
				}
				var err error
				if in == nil {
					// Without input the far side waits for none.
					plain := *u
					q := plain.Query()
					q.Del("stdin")
					plain.RawQuery = q.Encode()
					executor = executors(t, w, &plain)[name]
				}
				err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: &out, Stderr: &errOut})
				want := fmt.Sprintf(`b [%q "x y"] `, command)
				if in != nil {
					want += "hello"
				}
				if out.String() != want || errOut.String() != "done" {
					t.Errorf("stdout %q, stderr %q", out.String(), errOut.String())
				}
				code, failed := err.(utilexec.CodeExitError)
				if command == "ok" && err != nil || command == "fail" && (!failed || code.Code != 3) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

func TestExecIsRefusedBeforeItStarts(t *testing.T) {
	w, _ := withPod(t, func(c *Config) { c.Admission = admission.NewChain(noExec{}) })
	path := "/api/v1/namespaces/default/pods/"
	for _, tt := range []struct {
		path string
		code int
		want string
	}{
		{path + "two/exec", 400, "a container name must be specified for pod two"},
		{path + "nowhere/exec", 400, "pod nowhere does not have a host assigned"},
		{path + "one/exec?container=forbidden", 403, "not this one"},
		{path + "one/exec?dryRun=All", 400, "dryRun is not supported"},
		{path + "one/exec", 400, "Upgrade request required"},
	} {
		resp, body := w.do("POST", tt.path, "")
		if resp.StatusCode != tt.code || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d %s", tt.path, resp.StatusCode, body)
		}
	}
}

type noExec struct{}

func (noExec) Name() string { return "NoExec" }

func (noExec) Validate(_ context.Context, a *admission.Attributes) error {
	if o, ok := a.Options.(*corev1.PodExecOptions); ok && a.Operation == admissionv1.Connect && o.Container == "forbidden" {
		return apierrors.NewForbidden(corev1.Resource("pods"), a.Name, fmt.Errorf("not this one"))
	}
	return nil
}

func TestPortForward(t *testing.T) {
	w, _ := withPod(t)
	u := w.client().CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("one").SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(w.config)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(u, w.config)
	if err != nil {
		t.Fatal(err)
	}
	for name, dialer := range map[string]httpstream.Dialer{
		"SPDY/3.1": spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", u), "WebSocket": tunnel,
	} {
		t.Run(name, func(t *testing.T) {
			stop, ready := make(chan struct{}), make(chan struct{})
			forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- forwarder.ForwardPorts() }()
			select {
			case <-ready:
			case err := <-done:
				t.Fatal(err)
			}
			ports, err := forwarder.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(conn, "ping")
			got, err := io.ReadAll(conn)
			if err != nil || string(got) != "port 8080 ping" {
				t.Errorf("%q, %v", got, err)
			}
			conn.Close()
			close(stop)
			<-done
		})
	}
}

func TestProxies(t *testing.T) {
	w, n := withPod(t)
	ctx, k := t.Context(), w.client()
	pod, err := k.CoreV1().Pods("default").Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	setIP := func(ip string) {
		pod.Status.PodIP, pod.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		if pod, err = k.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(n.URL, "https://"))
	number, _ := strconv.Atoi(port)
	if _, err := k.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "web", Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Clients may not write loopback endpoints; this cluster lives on one.
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "s-1", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}},
		Ports:     []discoveryv1.EndpointPort{{Name: ptr.To("web"), Port: ptr.To(int32(number)), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	if _, err := w.store.Update(ctx, func(tx *store.Tx) error {
		_, err := tx.Create(store.Key{Resource: discoveryv1.Resource("endpointslices"), Namespace: "default", Name: "s-1"}, slice.DeepCopy())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	base := "/api/v1/namespaces/default/"
	tests := []struct {
		name, path, ip string
		code           int
		want           string
	}{
		{"a pod", base + "pods/https:one:" + port + "/proxy/x/y?z=1", "127.0.0.1", 200, "GET /x/y?z=1"},
		{"a pod's root", base + "pods/https:one:" + port + "/proxy/", "127.0.0.1", 200, "GET /"},
		{"a path without its slash", base + "pods/https:one:" + port + "/proxy", "127.0.0.1", 301, ""},
		{"a redirect is not followed", base + "pods/https:one:" + port + "/proxy/redirect", "127.0.0.1", 302, ""},
		{"a pod that claims a link-local address", base + "pods/one:80/proxy/", "169.254.169.254", 400, "address not allowed"},
		{"a pod that claims another loopback address", base + "pods/one:80/proxy/", "127.0.0.2", 400, "address not allowed"},
		{"a pod's port by name", base + "pods/one:web/proxy/", "127.0.0.1", 400, `invalid pod request \"one:web\"`},
		{"no such pod", base + "pods/none:80/proxy/", "127.0.0.1", 404, `pods \"none\" not found`},
		{"a node", "/api/v1/nodes/n/proxy/pods", "", 200, "GET /pods"},
		{"a service by port name", base + "services/https:s:web/proxy/a", "", 200, "GET /a"},
		{"a service by port number", base + "services/https:s:80/proxy/a", "", 200, "GET /a"},
		{"a port that a service lacks", base + "services/s:81/proxy/a", "", 503, `no service port 81 found for service \"s\"`},
		{"a service without endpoints", base + "services/s:other/proxy/a", "", 503, `no endpoints available for service \"s:other\"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.ip != "" {
				setIP(tt.ip)
			}
			resp, body := w.do("GET", tt.path, "")
			if resp.StatusCode != tt.code || !strings.Contains(body, tt.want) {
				t.Errorf("%d %q", resp.StatusCode, body)
			}
		})
	}
}

// A stream by GET needs leave to create it, too.
func TestWebSocketExecNeedsCreate(t *testing.T) {
	w, _ := withPod(t, func(c *Config) {
		c.Authorizer = authorizer.AuthorizerFunc(getOnly)
	})
	u := w.client().CoreV1().RESTClient().Get().Resource("pods").Namespace("default").Name("one").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"ok"}, Stdout: true}, scheme.ParameterCodec).URL()
	w.config = w.as("reader")
	executor, err := remotecommand.NewWebSocketExecutor(w.config, "GET", u.String())
	if err != nil {
		t.Fatal(err)
	}
	err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), `cannot create resource "pods/exec"`) {
		t.Errorf("got %v", err)
	}
}

// getOnly lets everyone but admin only get.
func getOnly(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "admin" || a.GetVerb() == "get" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}
