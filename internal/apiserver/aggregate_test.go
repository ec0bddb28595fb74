package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
	"proa/internal/apiserver/aggregator"
	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/apiservice"
)

// extension is a server of ext.example.com/v1 that does what a test wants.
type extension struct {
	*httptest.Server
	authority *pki.Authority
	mode      atomic.Value // string: "", "down", "old"
	hung      chan struct{}
}

const extVersion = "/apis/ext.example.com/v1"

func newExtension(t *testing.T, authority *pki.Authority) *extension {
	t.Helper()
	e := &extension{authority: authority, hung: make(chan struct{}, 1)}
	e.mode.Store("")
	certPEM, keyPEM, err := authority.Server([]string{"ext.default.svc"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(e.serve))
	e.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert}
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

func (e *extension) port() int32 {
	u, _ := url.Parse(e.URL)
	n, _ := strconv.Atoi(u.Port())
	return int32(n)
}

func (e *extension) serve(w http.ResponseWriter, r *http.Request) {
	if e.mode.Load() == "down" {
		http.Error(w, "I am down", http.StatusInternalServerError)
		return
	}
	v2 := strings.Contains(r.Header.Get("Accept"), "as=APIGroupDiscoveryList") && e.mode.Load() != "old"
	switch path := r.URL.Path; {
	case path == "/apis" && v2:
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		fmt.Fprint(w, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":"ext.example.com"},"versions":[{"version":"v1","resources":[
			{"resource":"widgets","responseKind":{"group":"ext.example.com","version":"v1","kind":"Widget"},"scope":"Namespaced","singularResource":"widget","verbs":["get"]}]}]}]}`)
	case path == extVersion:
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"ext.example.com/v1","resources":[{"name":"widgets","singularName":"widget","namespaced":true,"kind":"Widget","verbs":["get"]}]}`)
	case path == "/openapi/v3":
		fmt.Fprint(w, `{"paths":{"apis/ext.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/ext.example.com/v1?hash=1"}}}`)
	case path == "/openapi/v3/apis/ext.example.com/v1":
		fmt.Fprint(w, `{"openapi":"3.0.0","info":{"title":"widgets"},"paths":{}}`)
	case path == "/openapi/v2":
		fmt.Fprint(w, `{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{"/apis/ext.example.com/v1/widgets":{"get":{"operationId":"listWidgets","responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/io.k8s.api.core.v1.Pod"}}}}},
			"/apis/other.example.com/v1/things":{}},"definitions":{"io.k8s.api.core.v1.Pod":{"type":"string"}}}`)
	case strings.HasSuffix(path, "/redirect"):
		http.Redirect(w, r, "https://127.0.0.1/elsewhere", http.StatusFound)
	case strings.HasSuffix(path, "/broken"):
		panic(http.ErrAbortHandler)
	case strings.HasSuffix(path, "/hung"):
		e.hung <- struct{}{}
		<-r.Context().Done()
	case strings.HasSuffix(path, "/ws"):
		e.echo(w, r)
	case strings.HasPrefix(path, extVersion+"/"):
		names := []string{}
		for _, c := range r.TLS.PeerCertificates {
			names = append(names, c.Subject.CommonName)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Audit-Id", r.Header.Get("Audit-Id"))
		json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "uri": r.RequestURI, "header": r.Header, "peer": names})
	default:
		http.NotFound(w, r)
	}
}

func (e *extension) echo(w http.ResponseWriter, r *http.Request) {
	conn, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	kind, text, err := conn.ReadMessage()
	if err == nil {
		conn.WriteMessage(kind, append([]byte(r.Header.Get("X-Remote-User")+": "), text...))
	}
}

// aggregatedWorld is a server with everything that extension servers need.
type aggregatedWorld struct {
	*world
	api       client.API
	authority *pki.Authority
}

func newAggregatedWorld(t *testing.T) *aggregatedWorld {
	t.Helper()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM, err := authority.Kept("front-proxy-client", authority.FrontProxy, pki.Leaf{CommonName: "front-proxy-client", Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	w := &aggregatedWorld{authority: authority}
	ctx, cancel := context.WithCancel(context.Background())
	var parts []func(context.Context) error
	w.world = newWorld(t, func(c *Config) {
		w.api = c.Registry.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
		c.Aggregator, err = aggregator.New(aggregator.Config{Store: c.Store, Certificate: &certificate})
		if err != nil {
			t.Fatal(err)
		}
		cache := client.NewCache(w.api)
		config := controllers.Config{Cache: cache, Clock: clock.RealClock{}}
		availability := apiservice.NewAvailability(config, c.Aggregator.Probe)
		registration := apiservice.NewRegistration(config, c.Registry.Catalogue())
		parts = []func(context.Context) error{cache.Run, c.Aggregator.Run, func(ctx context.Context) error {
			if cache.WaitForSync(ctx) != nil {
				return nil
			}
			go registration.Run(ctx)
			return availability.Run(ctx)
		}}
	})
	done := make(chan error, len(parts))
	for _, run := range parts {
		go func() { done <- run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range parts {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

func (w *aggregatedWorld) create(obj client.Object) {
	w.t.Helper()
	r, _ := w.server.catalogue.Of(obj)
	if _, err := w.api.Create(w.t.Context(), client.Ref{Resource: r.GroupVersionResource(), Namespace: obj.GetNamespace()}, obj, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// service leads to an extension by its name on this machine: endpoints must not
// have loopback addresses.
func (w *aggregatedWorld) service() {
	w.namespaceOnce()
	w.create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "ext", Namespace: "default"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}})
}

func (w *aggregatedWorld) namespaceOnce() {
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
}

func (w *aggregatedWorld) register(port int32, change ...func(*apiregistrationv1.APIService)) {
	s := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.ext.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "ext.example.com", Version: "v1", GroupPriorityMinimum: 1500, VersionPriority: 20, CABundle: w.authority.CAPEM(),
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "ext", Port: &port},
		},
	}
	for _, f := range change {
		f(s)
	}
	w.create(s)
}

// waitFor watches an APIService until its Available condition meets a want.
func (w *aggregatedWorld) waitFor(name string, met func(c *apiregistrationv1.APIServiceCondition) bool) apiregistrationv1.APIServiceCondition {
	w.t.Helper()
	ref := client.Ref{Resource: apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")}
	watch, err := w.api.Watch(w.t.Context(), ref, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	defer watch.Stop()
	for {
		events, err := watch.Next(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		for _, e := range events {
			s, ok := e.Object.(*apiregistrationv1.APIService)
			if !ok {
				continue
			}
			if c := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available); c != nil && met(c) {
				return *c
			}
		}
	}
}

func (w *aggregatedWorld) waitForReason(reason string) apiregistrationv1.APIServiceCondition {
	w.t.Helper()
	return w.waitFor("v1.ext.example.com", func(c *apiregistrationv1.APIServiceCondition) bool { return c.Reason == reason })
}

func TestRequestsGoToTheServerBehindAnAPIService(t *testing.T) {
	w := newAggregatedWorld(t)
	e := newExtension(t, w.authority)
	w.service()
	w.register(e.port())
	if c := w.waitForReason("Passed"); c.Status != apiregistrationv1.ConditionTrue || c.Message != "all checks passed" {
		t.Errorf("%+v", c)
	}
	resp, body := w.do("PATCH", extVersion+"/namespaces/default/widgets/a?fieldManager=m&x=1", "{}",
		"X-Remote-User", "root", "X-Remote-Group", "system:masters", "X-Remote-Extra-A", "b", "X-Remote-Uid", "1",
		"Impersonate-User", "jane", "Impersonate-Group", "devs", "Impersonate-Extra-scopes", "few", "Impersonate-Uid", "42", "Audit-Id", "mine")
	var got struct {
		Method, URI string
		Header      http.Header
		Peer        []string
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	if got.Method != "PATCH" || got.URI != extVersion+"/namespaces/default/widgets/a?fieldManager=m&x=1" || !slices.Equal(got.Peer, []string{"front-proxy-client"}) {
		t.Errorf("%+v", got)
	}
	want := map[string][]string{
		"X-Remote-User": {"jane"}, "X-Remote-Group": {"devs", user.AllAuthenticated}, "X-Remote-Uid": {"42"}, "X-Remote-Extra-Scopes": {"few"}, "X-Remote-Extra-A": nil,
		"Authorization": nil, "Impersonate-User": nil, "Impersonate-Group": nil, "Impersonate-Uid": nil, "Audit-Id": {"mine"},
	}
	for name, values := range want {
		if !slices.Equal(got.Header[name], values) {
			t.Errorf("%s: got %q, want %q", name, got.Header[name], values)
		}
	}
	if ids := resp.Header["Audit-Id"]; !slices.Equal(ids, []string{"mine"}) {
		t.Errorf("Audit-Id of the answer: %q", ids)
	}
	config := w.as("nobody")
	if err := clientOf(t, config).RESTClient().Get().AbsPath(extVersion + "/widgets").Do(t.Context()).Error(); err == nil {
		t.Error("authorization is not asked")
	}
}

func TestWhatAnExtensionServerMustNotDo(t *testing.T) {
	w := newAggregatedWorld(t)
	e := newExtension(t, w.authority)
	w.service()
	w.register(e.port())
	w.waitForReason("Passed")
	resp, body := w.do("GET", extVersion+"/redirect", "")
	if resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Location") != "" || !strings.Contains(body, "the backend attempted to redirect this request, which is not permitted") {
		t.Errorf("a redirect: %d %s", resp.StatusCode, body)
	}
	if resp, body = w.do("GET", extVersion+"/broken", ""); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "error trying to reach service") {
		t.Errorf("a broken connection: %d %s", resp.StatusCode, body)
	}
	resp, body = w.do("GET", extVersion+"/namespaces/default/widgets/hung?timeout=50ms", "")
	if resp.StatusCode != http.StatusGatewayTimeout || status(t, body).Reason != metav1.StatusReasonTimeout {
		t.Errorf("a hung server: %d %s", resp.StatusCode, body)
	}
	<-e.hung
}

func TestUpgradesGoThrough(t *testing.T) {
	w := newAggregatedWorld(t)
	e := newExtension(t, w.authority)
	w.service()
	w.register(e.port())
	w.waitForReason("Passed")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.config.CAData)
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: w.config.ServerName}}
	conn, _, err := dialer.Dial("wss"+strings.TrimPrefix(w.config.Host, "https")+extVersion+"/ws", http.Header{"Authorization": {"Bearer ada"}, "X-Remote-User": {"root"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, text, err := conn.ReadMessage(); err != nil || string(text) != "ada: hello" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestReasonsOfAvailability(t *testing.T) {
	w := newAggregatedWorld(t)
	w.waitFor("v1.", func(*apiregistrationv1.APIServiceCondition) bool { return true })
	w.register(443)
	if c := w.waitForReason("ServiceNotFound"); c.Status != apiregistrationv1.ConditionFalse || c.Message != `service/ext in "default" is not present` {
		t.Errorf("%+v", c)
	}
	if resp, body := w.do("GET", extVersion+"/widgets", ""); resp.StatusCode != 503 || body != "service unavailable\n" {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	if _, body := w.do("GET", "/metrics", ""); !strings.Contains(body, `aggregator_unavailable_apiservice{name="v1.ext.example.com"} 1`) || !strings.Contains(body, `aggregator_unavailable_apiservice{name="v1."} 0`) {
		t.Error("metrics do not tell")
	}
	w.namespaceOnce()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "ext", Namespace: "default"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 444}}}}
	w.create(svc.DeepCopy())
	if c := w.waitForReason("ServicePortError"); c.Message != `service/ext in "default" is not listening on port 443` {
		t.Errorf("%+v", c)
	}
	services := w.client().CoreV1().Services("default")
	svc, err := services.Get(t.Context(), "ext", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	svc.Spec.Ports[0].Port = 443
	if svc, err = services.Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if c := w.waitForReason("EndpointsNotFound"); c.Message != `cannot find endpointslices for service/ext in "default"` {
		t.Errorf("%+v", c)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "ext", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "ext"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](443)}},
	}
	w.create(slice)
	if c := w.waitForReason("MissingEndpoints"); c.Message != `endpointslices for service/ext in "default" have no addresses with port name "https"` {
		t.Errorf("%+v", c)
	}
	if err := services.Delete(t.Context(), "ext", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitForReason("ServiceNotFound")
	w.create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "ext", Namespace: "default"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}})
	if c := w.waitForReason("FailedDiscoveryCheck"); !strings.Contains(c.Message, "failing or missing response from https://localhost:443"+extVersion) {
		t.Errorf("%+v", c)
	}
}

func TestAnExtensionServerHasToProveWhoItIs(t *testing.T) {
	w := newAggregatedWorld(t)
	other, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e := newExtension(t, other)
	w.service()
	w.register(e.port())
	if c := w.waitForReason("FailedDiscoveryCheck"); !strings.Contains(c.Message, "certificate signed by unknown authority") {
		t.Errorf("%+v", c)
	}
	if resp, body := w.do("GET", extVersion+"/widgets", ""); resp.StatusCode != 503 || body != "service unavailable\n" {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	patch := fmt.Sprintf(`{"spec":{"caBundle":%q}}`, "")
	resp, body := w.do("PATCH", "/apis/apiregistration.k8s.io/v1/apiservices/v1.ext.example.com", patch, "Content-Type", "application/merge-patch+json")
	if resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	patch = `{"spec":{"insecureSkipTLSVerify":true}}`
	if resp, body = w.do("PATCH", "/apis/apiregistration.k8s.io/v1/apiservices/v1.ext.example.com", patch, "Content-Type", "application/merge-patch+json"); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	w.waitForReason("Passed")
	if resp, body := w.do("GET", extVersion+"/widgets", ""); resp.StatusCode != 200 {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
}

// discovered is what the aggregated document says of a version once met is true of it.
func (w *aggregatedWorld) discovered(group, version string, met func(*apidiscovery.APIVersionDiscovery) bool) *apidiscovery.APIVersionDiscovery {
	w.t.Helper()
	for {
		_, body := w.do("GET", "/apis", "", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		var list apidiscovery.APIGroupDiscoveryList
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			w.t.Fatal(err)
		}
		for _, g := range list.Items {
			for i := range g.Versions {
				if v := &g.Versions[i]; g.Name == group && v.Version == version && met(v) {
					return v
				}
			}
		}
		if w.t.Context().Err() != nil {
			w.t.Fatal(w.t.Context().Err())
		}
	}
}

func TestExtensionServersAreDescribed(t *testing.T) {
	for _, mode := range []string{"", "old"} {
		t.Run("discovery "+mode, func(t *testing.T) {
			w := newAggregatedWorld(t)
			e := newExtension(t, w.authority)
			e.mode.Store(mode)
			w.service()
			w.register(e.port())
			v := w.discovered("ext.example.com", "v1", func(v *apidiscovery.APIVersionDiscovery) bool {
				return v.Freshness == apidiscovery.DiscoveryFreshnessCurrent
			})
			if len(v.Resources) != 1 || v.Resources[0].Resource != "widgets" || v.Resources[0].ResponseKind.Kind != "Widget" {
				t.Errorf("%+v", v)
			}
			if _, body := w.do("GET", "/apis/ext.example.com", ""); !strings.Contains(body, `"preferredVersion":{"groupVersion":"ext.example.com/v1"`) {
				t.Error(body)
			}
			if _, body := w.do("GET", extVersion, ""); !strings.Contains(body, `"widgets"`) {
				t.Error(body)
			}
			e.mode.Store("down")
			patch := `{"metadata":{"labels":{"a":"b"}}}`
			w.do("PATCH", "/apis/apiregistration.k8s.io/v1/apiservices/v1.ext.example.com", patch, "Content-Type", "application/merge-patch+json")
			v = w.discovered("ext.example.com", "v1", func(v *apidiscovery.APIVersionDiscovery) bool {
				return v.Freshness == apidiscovery.DiscoveryFreshnessStale
			})
			if len(v.Resources) != 1 {
				t.Errorf("what was known is lost: %+v", v)
			}
		})
	}
}

func TestExtensionServersAreInOpenAPI(t *testing.T) {
	w := newAggregatedWorld(t)
	e := newExtension(t, w.authority)
	w.service()
	w.register(e.port())
	path := "/openapi/v3" + extVersion
	resp, body := w.do("GET", path, "")
	for resp.StatusCode != 200 {
		resp, body = w.do("GET", path, "")
	}
	if !strings.Contains(body, `"title":"widgets"`) {
		t.Error(body)
	}
	if _, index := w.do("GET", "/openapi/v3", ""); !strings.Contains(index, `"apis/ext.example.com/v1"`) {
		t.Error("the index does not name it")
	}
	_, body = w.do("GET", "/openapi/v2", "")
	var doc struct {
		Paths       map[string]any
		Definitions map[string]map[string]any
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Paths[extVersion+"/widgets"] == nil || doc.Paths["/apis/other.example.com/v1/things"] != nil || doc.Paths["/api/v1/pods"] == nil {
		t.Error("paths are not merged")
	}
	if doc.Definitions["io.k8s.api.core.v1.Pod"]["type"] != "object" || doc.Definitions["io.k8s.api.core.v1.Pod_v2"]["type"] != "string" {
		t.Error("definitions of one name are not told apart")
	}
}

func TestEveryGroupVersionHasALocalAPIService(t *testing.T) {
	w := newAggregatedWorld(t)
	w.waitFor("v1.apps", func(*apiregistrationv1.APIServiceCondition) bool { return true })
	w.waitFor("v1.", func(c *apiregistrationv1.APIServiceCondition) bool {
		return c.Status == apiregistrationv1.ConditionTrue && c.Reason == "Local" && c.Message == "Local APIServices are always available"
	})
	_, body := w.do("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v2.autoscaling", "")
	var s apiregistrationv1.APIService
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	if s.Labels["kube-aggregator.kubernetes.io/automanaged"] != "onstart" || s.Spec.GroupPriorityMinimum != 17500 || s.Spec.VersionPriority != 30 {
		t.Errorf("%s", body)
	}
	_, table := w.do("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	if !strings.Contains(table, `"cells":["v1.apps","Local","True",`) {
		t.Error(table)
	}
}

func TestAggregatedDiscoveryNamesEveryBuiltInKind(t *testing.T) {
	w := newWorld(t)
	raw := map[string]string{}
	for _, path := range []string{"/api", "/apis"} {
		resp, body := w.do("GET", path, "", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		if got := resp.Header.Get("Content-Type"); got != "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" {
			t.Errorf("%s: %s", path, got)
		}
		var list apidiscovery.APIGroupDiscoveryList
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		for _, g := range list.Items {
			for _, v := range g.Versions {
				for _, r := range v.Resources {
					raw[g.Name+"/"+v.Version+"/"+r.Resource] = r.ResponseKind.Kind
				}
			}
		}
	}
	_, lists, err := w.client().Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	client := map[string]string{}
	for _, l := range lists {
		group, version, ok := strings.Cut(l.GroupVersion, "/")
		if !ok {
			group, version = "", group
		}
		for _, r := range l.APIResources {
			client[group+"/"+version+"/"+r.Name] = r.Kind
		}
	}
	for _, r := range w.server.catalogue.All() {
		if r.Unserved || r.Verbs != nil && len(r.Verbs) == 0 {
			continue
		}
		name := r.Group + "/" + r.Version + "/" + r.Plural
		if raw[name] != r.Kind || client[name] != r.Kind {
			t.Errorf("%s is %q in the raw document and %q to a client", name, raw[name], client[name])
		}
	}
}

func TestAnAPIServiceTakesOverWhatIsServedHere(t *testing.T) {
	w := newAggregatedWorld(t)
	e := newExtension(t, w.authority)
	if err := w.server.catalogue.Add(&apis.Resource{
		Group: "ext.example.com", Version: "v1", Kind: "Local", Plural: "locals", Verbs: []string{"create"},
		New: func() apis.Object { return &unstructured.Unstructured{} },
	}); err != nil {
		t.Fatal(err)
	}
	w.waitForReason("Local")
	if _, body := w.do("GET", extVersion, ""); !strings.Contains(body, `"locals"`) {
		t.Error(body)
	}
	w.service()
	patch := fmt.Sprintf(`{"metadata":{"labels":null},"spec":{"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"ext","port":%d}}}`, e.port())
	if resp, body := w.do("PATCH", "/apis/apiregistration.k8s.io/v1/apiservices/v1.ext.example.com", patch, "Content-Type", "application/merge-patch+json"); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	w.waitForReason("Passed")
	if _, body := w.do("GET", extVersion, ""); strings.Contains(body, `"locals"`) || !strings.Contains(body, `"widgets"`) {
		t.Error(body)
	}
	w.discovered("ext.example.com", "v1", func(v *apidiscovery.APIVersionDiscovery) bool {
		return len(v.Resources) == 1 && v.Resources[0].Resource == "widgets"
	})
	ref := client.Ref{Resource: apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"), Name: "v1.ext.example.com"}
	if _, err := w.api.Delete(t.Context(), ref, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, body := w.do("GET", extVersion, ""); !strings.Contains(body, `"locals"`) {
		t.Error(body)
	}
}
