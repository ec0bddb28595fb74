package identity

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// collected are the spans that servers send to a collector.
type collected struct {
	collector.UnimplementedTraceServiceServer
	address string

	mu       sync.Mutex // guards the rest
	spans    []*traces.Span
	services map[string]bool
}

func startCollector(t *testing.T) *collected {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collected{address: l.Addr().String(), services: map[string]bool{}}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return c
}

func (c *collected) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		c.services[text(resource.Resource.Attributes, "service.name")] = true
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func text(attributes []*common.KeyValue, key string) string {
	for _, a := range attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// chain finds spans of one trace of which each is the parent of the next, and returns
// the last.
func (c *collected) chain(trace string, names ...string) (*traces.Span, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	var last *traces.Span
	var follow func(parent *traces.Span, names []string) bool
	follow = func(parent *traces.Span, names []string) bool {
		if len(names) == 0 {
			last = parent
			return true
		}
		for _, s := range c.spans {
			if hex.EncodeToString(s.TraceId) != trace || s.Name != names[0] ||
				parent != nil && string(s.ParentSpanId) != string(parent.SpanId) {
				continue
			}
			if follow(s, names[1:]) {
				return true
			}
		}
		return false
	}
	if follow(nil, names) {
		return last, nil
	}
	for _, s := range c.spans {
		if hex.EncodeToString(s.TraceId) == trace {
			all = append(all, s.Name)
		}
	}
	return nil, fmt.Errorf("no spans %q; the trace has %q", names, all)
}

// ofTarget returns the span of a request by its path.
func (c *collected) ofTarget(path string) *traces.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if text(s.Attributes, "http.target") == path {
			return s
		}
	}
	return nil
}

// parented sends what a client sends that is traced itself.
type parented struct {
	http.RoundTripper
	header string
}

func (p parented) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Traceparent", p.header)
	return p.RoundTripper.RoundTrip(r)
}

func (s *server) tracedClient(t *testing.T, token, trace string) *kubernetes.Clientset {
	t.Helper()
	config, err := s.config(token, "")
	if err != nil {
		t.Fatal(err)
	}
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return parented{rt, "00-" + trace + "-00f067aa0ba902b7-01"}
	})
	return kubernetes.NewForConfigOrDie(config)
}

func tracingConfig(t *testing.T, version, address string, rate int) string {
	return file(t, "tracing.yaml", fmt.Sprintf("apiVersion: apiserver.config.k8s.io/%s\nkind: TracingConfiguration\nendpoint: %s\nsamplingRatePerMillion: %d\n", version, address, rate))
}

// Spans of requests, of the store, of calls to etcd and to webhooks reach a collector,
// in the traces of those who ask.
func TestRequestsAreTraced(t *testing.T) {
	t.Parallel()
	c := startCollector(t)
	var mu sync.Mutex
	told := map[string]string{} // traceparent by object
	hook, ca, _ := remoteServer(t, "hook", func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		told[review.Request.Name] = r.Header.Get("Traceparent")
		mu.Unlock()
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(review)
	})
	s := start(t, "--tracing-config-file", tracingConfig(t, "v1beta1", c.address, 0), "--etcd-servers", startEtcd(t),
		"--token-auth-file", file(t, "tokens.csv", "t,jane,1,\"readers\"\n"), "--authorization-mode", "AlwaysAllow")
	_, err := s.admin(t).AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hook.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &hook, CABundle: ca},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{"CREATE"},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const mine, hers = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"
	maps := s.tracedClient(t, "", mine).CoreV1().ConfigMaps("default")
	made := 0
	eventually(t, func() error { // until the webhook is known
		made++
		name := fmt.Sprintf("traced-%d", made)
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if !strings.HasPrefix(told[name], "00-"+mine+"-") {
			return fmt.Errorf("the webhook is told %q", told[name])
		}
		return nil
	})
	if _, err := maps.Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
		t.Log(err) // it is traced all the same
	}
	if _, err := maps.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	const one, many = " /api/v1/namespaces/{:namespace}/configmaps/{:name}", " /api/v1/namespaces/{:namespace}/configmaps"
	for _, names := range [][]string{
		{"GET" + one, "Get", "Get etcd3"},
		{"GET" + many, "List", "cacher.GetList"},
		{"GET" + many, "List", "SerializeObject"},
		{"POST" + many, "Create", "Create etcd3", "etcdserverpb.KV/Txn"},
		{"POST" + many, "Create", "Call validating webhook", "HTTP POST"},
	} {
		eventually(t, func() error {
			_, err := c.chain(mine, names...)
			return err
		})
	}
	top, err := c.chain(mine, "GET"+many)
	if err != nil || hex.EncodeToString(top.ParentSpanId) != "00f067aa0ba902b7" || text(top.Attributes, "audit-id") == "" {
		t.Errorf("a list is traced as %v, %v", top, err)
	}
	if !c.services["apiserver"] {
		t.Errorf("the spans are of %v", c.services)
	}

	// Who is nobody special does not choose what is traced: at rate 0, nothing.
	if _, err := s.tracedClient(t, "t", hers).CoreV1().ConfigMaps("kube-public").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.admin(t).CoreV1().ConfigMaps("kube-node-lease").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	s.stop(t) // sends what is left
	for _, path := range []string{"/api/v1/namespaces/kube-public/configmaps", "/api/v1/namespaces/kube-node-lease/configmaps"} {
		if span := c.ofTarget(path); span != nil {
			t.Errorf("%s is traced: %v", path, span)
		}
	}

	// At the full rate everything is, and hers is linked to the trace that she names.
	s.run(t, "--tracing-config-file", tracingConfig(t, "v1", c.address, 1_000_000))
	if _, err := s.tracedClient(t, "t", hers).CoreV1().ConfigMaps("kube-public").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		span := c.ofTarget("/api/v1/namespaces/kube-public/configmaps")
		if span == nil || hex.EncodeToString(span.TraceId) == hers || len(span.Links) != 1 || hex.EncodeToString(span.Links[0].TraceId) != hers {
			return fmt.Errorf("hers is traced as %v", span)
		}
		return nil
	})
}

func TestTracingConfigurationsThatAreRefused(t *testing.T) {
	t.Parallel()
	for want, flag := range map[string]string{
		"no such file or directory":                 "/nowhere/tracing.yaml",
		"must be less than or equal to one million": tracingConfig(t, "v1", "localhost:4317", 1_000_001),
		"unknown field":                             file(t, "tracing.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nrate: 1\n"),
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			if out := refused(t, "--tracing-config-file", flag); !strings.Contains(out, want) {
				t.Errorf("it says %s", out)
			}
		})
	}
}
