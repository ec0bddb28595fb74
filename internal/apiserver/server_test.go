package apiserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// world is a server on a loopback port, over TLS, with the built-in kinds and a
// store in memory. A bearer token is the name of its user; "stranger" is no
// user, "nobody" may do nothing, and only admin may impersonate.
type world struct {
	t        testing.TB
	server   *Server
	store    *store.Store
	config   *rest.Config
	shutdown func()
}

func byToken(r *http.Request) (*authenticator.Response, bool, error) {
	name, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch name {
	case "":
		return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}}, true, nil
	case "stranger":
		return nil, false, errors.New("unknown token")
	case "admin":
		return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}}, true, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}}, true, nil
}

func byName(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch name := a.GetUser().GetName(); {
	case name == "nobody", name == user.Anonymous && a.GetPath() != "/healthz":
		return authorizer.DecisionNoOpinion, "", nil
	case strings.HasPrefix(a.GetVerb(), "impersonate") && name != "admin":
		return authorizer.DecisionNoOpinion, "no impersonator", nil
	}
	return authorizer.DecisionAllow, "", nil
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	catalogue := builtin.Catalogue()
	st, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(registry.Config{Store: st, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	c := Config{
		Registry: r, Store: st, Authenticator: authenticator.RequestFunc(byToken), Authorizer: authorizer.AuthorizerFunc(byName),
		TLS: &tls.Config{Certificates: certified.TLS.Certificates}, Version: version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2"},
		Address: "10.0.0.1:6443", Log: slog.New(slog.DiscardHandler), JWKS: kept(`{"keys":[]}`), OpenIDConfiguration: kept(`{"issuer":"x"}`),
		NoFairness: true, // it writes objects of its own, at no certain time
	}
	for _, f := range change {
		f(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	w := &world{t: t, server: s, store: st}
	stopped := false
	w.shutdown = func() {
		if stopped {
			return
		}
		stopped = true
		if client, err := rest.HTTPClientFor(w.config); err == nil {
			utilnet.CloseIdleConnectionsFor(client.Transport) // else the server waits a second for them to leave
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { w.shutdown(); st.Close() })
	w.config = &rest.Config{
		Host: "https://" + l.Addr().String(), BearerToken: "admin", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{ServerName: "example.com", CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certified.Certificate().Raw})},
	}
	return w
}

// as is a client config of another user.
func (w *world) as(token string) *rest.Config {
	c := rest.CopyConfig(w.config)
	c.BearerToken = token
	return c
}

func (w *world) client() *kubernetes.Clientset { return clientOf(w.t, w.config) }

func clientOf(t testing.TB, c *rest.Config) *kubernetes.Clientset {
	t.Helper()
	k, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// do sends a plain request as admin and returns the response and its body.
func (w *world) do(method, path, body string, headers ...string) (*http.Response, string) {
	w.t.Helper()
	client, err := rest.HTTPClientFor(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	r, err := http.NewRequest(method, w.config.Host+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(text)
}

func (w *world) namespace(name string) {
	w.t.Helper()
	if _, err := w.client().CoreV1().Namespaces().Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) configMap(name string) *corev1.ConfigMap {
	w.t.Helper()
	cm, err := w.client().CoreV1().ConfigMaps("default").Create(w.t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return cm
}

func status(t testing.TB, body string) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return s
}

func TestAuthentication(t *testing.T) {
	w := newWorld(t)
	_, err := clientOf(t, w.as("stranger")).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("a stranger gets %v", err)
	}
	_, err = clientOf(t, w.as("nobody")).CoreV1().Pods("default").Get(t.Context(), "x", metav1.GetOptions{})
	if want := `pods "x" is forbidden: User "nobody" cannot get resource "pods" in API group "" in the namespace "default"`; err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	_, err = clientOf(t, w.as("nobody")).AppsV1().Deployments("default").UpdateScale(t.Context(), "x", nil, metav1.UpdateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `cannot update resource "deployments/scale" in API group "apps"`) {
		t.Errorf("got %v", err)
	}
	w.config = w.as("nobody")
	resp, body := w.do("GET", "/version", "")
	if want := `forbidden: User "nobody" cannot get path "/version"`; resp.StatusCode != 403 || status(t, body).Message != want {
		t.Errorf("got %s", body)
	}
}

func TestImpersonation(t *testing.T) {
	w := newWorld(t)
	c := w.as("admin")
	c.Impersonate = rest.ImpersonationConfig{UserName: "nobody", Groups: []string{"g"}}
	if _, err := clientOf(t, c).CoreV1().Pods("a").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "nobody"`) {
		t.Errorf("admin as nobody: %v", err)
	}
	c = w.as("someone")
	c.Impersonate = rest.ImpersonationConfig{UserName: "admin"}
	_, err := clientOf(t, c).CoreV1().Pods("a").List(t.Context(), metav1.ListOptions{})
	if want := `pods is forbidden: User "someone" cannot impersonate-on:user-info:list resource "pods" in API group "" in the namespace "a": no impersonator`; err == nil || err.Error() != want {
		t.Errorf("someone as admin: %v", err)
	}
}

func TestFixedPaths(t *testing.T) {
	const notFound = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}` + "\n"
	w := newWorld(t, func(c *Config) {
		c.Checks = []Check{{Name: "store", Check: func(context.Context) error { return nil }}, {Name: "caches", Ready: true, Check: func(context.Context) error { return errors.New("empty") }}}
	})
	tests := []struct {
		path string
		code int
		want string
	}{
		{"/healthz", 200, "ok"},
		{"/livez?verbose", 200, "[+]ping ok\n[+]store ok\nlivez check passed\n"},
		{"/readyz", 500, "[+]ping ok\n[+]store ok\n[-]caches failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n"},
		{"/readyz?exclude=caches", 200, "ok"},
		{"/readyz?verbose&exclude=caches&exclude=b&exclude=a&exclude=b", 200, "[+]ping ok\n[+]store ok\n[+]caches excluded: ok\n[+]shutdown ok\nwarn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nreadyz check passed\n"},
		{"/readyz/caches", 500, "internal server error: empty\n"},
		{"/livez/ping", 200, "ok"},
		{"/healthz/nothing", 404, "404 page not found\n"},
		{"/nothing", 404, "404 page not found\n"},
		{"/api/v1/nothing", 404, notFound},
		{"/apis/nothing/v1/x", 404, "404 page not found\n"},
		{"/api/v1/pods/x", 404, notFound},
		{"/api/v1/namespaces/a/nodes/x", 404, notFound},
		{"/api/v1/namespaces/a/pods/x/y", 404, notFound},
		{"/openid/v1/jwks", 200, `{"keys":[]}`},
		{"/.well-known/openid-configuration", 200, `{"issuer":"x"}`},
	}
	for _, tt := range tests {
		resp, body := w.do("GET", tt.path, "")
		if resp.StatusCode != tt.code || body != tt.want {
			t.Errorf("%s: %d %q", tt.path, resp.StatusCode, body)
		}
	}
	if resp, body := w.do("GET", "/", ""); resp.StatusCode != 200 || !strings.Contains(body, `"/apis/apps/v1"`) || !strings.Contains(body, `"/livez/store"`) {
		t.Errorf("/: %d %s", resp.StatusCode, body)
	}
	if _, body := w.do("GET", "/metrics", ""); !strings.Contains(body, `apiserver_request_total{code="404"`) {
		t.Errorf("/metrics: %.200s", body)
	}
	v, err := w.client().Discovery().ServerVersion()
	if err != nil || v.GitVersion != "v1.37.2" {
		t.Errorf("version %v, %v", v, err)
	}
}

func TestMethodsThatAPathLacks(t *testing.T) {
	w := newWorld(t)
	for _, tt := range [][2]string{
		{"POST", "/api/v1/pods"}, {"PUT", "/api/v1/namespaces/a/pods"}, {"POST", "/api/v1/namespaces/a/pods/x"},
		{"GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews"}, {"DELETE", "/api/v1/namespaces/a/pods/x/log"},
	} {
		resp, body := w.do(tt[0], tt[1], "")
		if s := status(t, body); resp.StatusCode != 405 || s.Reason != metav1.StatusReasonMethodNotAllowed || s.Message != "the server does not allow this method on the requested resource" {
			t.Errorf("%s %s: %d %s", tt[0], tt[1], resp.StatusCode, body)
		}
	}
}

func TestEveryAnswerNamesItsRequest(t *testing.T) {
	w := newWorld(t)
	resp, _ := w.do("GET", "/healthz", "", "Audit-Id", "mine")
	if resp.Header.Get("Audit-Id") != "mine" || resp.Header.Get("Cache-Control") != "no-cache, private" || resp.ProtoMajor != 2 {
		t.Errorf("%s %v", resp.Proto, resp.Header)
	}
}

func TestPanicsEndOneRequestOnly(t *testing.T) {
	w := newWorld(t)
	h := w.server.withRecovery(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") }))
	rec := httptest.NewRecorder()
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler {
				t.Errorf("panic %v", p)
			}
		}()
		h.ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
	}()
	if rec.Code != 500 || !strings.HasPrefix(rec.Body.String(), "This request caused apiserver to panic") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestTooManyRequests(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxReads = 1 })
	entered, leave := make(chan struct{}), make(chan struct{})
	limit := w.server.withInFlightLimit()(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(entered); <-leave }))
	guarded := w.server.withInfo(w.server.withAuthentication(limit))
	ask := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/api/v1/pods", nil)
		r.Header.Set("Authorization", "Bearer someone")
		rec := httptest.NewRecorder()
		guarded.ServeHTTP(rec, r)
		return rec
	}
	first := make(chan struct{})
	go func() { ask(); close(first) }()
	<-entered
	if rec := ask(); rec.Code != 429 || rec.Header().Get("Retry-After") != "1" {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
	close(leave)
	<-first
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("no registry is fine")
	}
	w := newWorld(t)
	if _, err := New(Config{Registry: w.server.config.Registry, Store: w.store}); err == nil {
		t.Error("no authenticator is fine")
	}
}

// kept is a document that clients may keep for an hour.
func kept(document string) func() ([]byte, time.Duration) {
	return func() ([]byte, time.Duration) { return []byte(document), time.Hour }
}
