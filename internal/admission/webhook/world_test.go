package webhook

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// world is the API of the built-in kinds over a store in memory, with webhooks,
// and an HTTPS server whose paths are webhooks.
type world struct {
	t         *testing.T
	ctx       context.Context
	api       client.API
	registry  *registry.Registry
	chain     *admission.Chain
	catalogue *apis.Catalogue
	store     *store.Store
	plugins   []any
	server    *httptest.Server
	mux       *http.ServeMux

	mu       sync.Mutex
	warnings []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue), Indexes: registry.Indexes(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	allow := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionAllow, "", nil
	})
	mutating, validating, err := New(Config{Store: s, Catalogue: catalogue, Authorizer: allow})
	if err != nil {
		t.Fatal(err)
	}
	plugins := []any{mutating, validating}
	chain, err := admission.New(admission.Config{Store: s, Catalogue: catalogue, Authorizer: allow, Webhooks: plugins})
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(registry.Config{Store: s, Catalogue: catalogue, Admission: chain})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, registry: r, chain: chain, plugins: plugins, catalogue: catalogue, store: s, mux: http.NewServeMux(),
		api: r.As(&user.DefaultInfo{Name: "ann", UID: "u1", Groups: []string{user.SystemPrivilegedGroup}, Extra: map[string][]string{"k": {"v"}}})}
	w.ctx = warning.WithWarningRecorder(t.Context(), w)
	w.server = httptest.NewUnstartedServer(w.mux)
	w.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	w.must(w.create(ref("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"env": "test"}}}))
	w.must(w.create(ref("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "exempt", Labels: map[string]string{"skip": "yes"}}}))
	return w
}

// AddWarning collects the texts of Warning headers.
func (w *world) AddWarning(_, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warnings = append(w.warnings, text)
}

func ref(resource string, names ...string) client.Ref {
	r := client.Ref{Resource: schema.GroupVersionResource{Version: "v1", Resource: resource}}
	if resource == "mutatingwebhookconfigurations" || resource == "validatingwebhookconfigurations" {
		r.Resource.Group = admissionregistrationv1.GroupName
		return r
	}
	if resource != "namespaces" {
		r.Namespace = "default"
	}
	if len(names) > 0 {
		r.Name = names[0]
	}
	return r
}

func (w *world) must(obj client.Object, err error) client.Object {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	return obj
}

func (w *world) create(r client.Ref, obj client.Object) (client.Object, error) {
	return w.api.Create(w.ctx, r, obj, metav1.CreateOptions{})
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}

// asked is every request that a webhook got.
type asked struct {
	mu   sync.Mutex
	list []*admissionv1.AdmissionRequest
}

func (a *asked) all() []*admissionv1.AdmissionRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]*admissionv1.AdmissionRequest(nil), a.list...)
}

// serve makes a path of the server a webhook that speaks AdmissionReview v1.
func (w *world) serve(path string, answer func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) *asked {
	got := &asked{}
	w.mux.HandleFunc(path, func(rw http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		data, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(data, &review)
		}
		if err != nil || review.Request == nil {
			http.Error(rw, "no review: "+string(data), http.StatusBadRequest)
			return
		}
		got.mu.Lock()
		got.list = append(got.list, review.Request)
		got.mu.Unlock()
		response := answer(review.Request)
		if response.UID == "" {
			response.UID = review.Request.UID
		}
		review.Request, review.Response = nil, response
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(review)
	})
	return got
}

func allowed(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
}

func denies(message string) func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: message, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden}}
	}
}

// patches answers with a JSON patch.
func patches(patch string) func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
	}
}

type hookOption func(*admissionregistrationv1.MutatingWebhook)

// hook describes a webhook at a path that wants to see all writes of ConfigMaps.
func (w *world) hook(name, path string, options ...hookOption) admissionregistrationv1.MutatingWebhook {
	h := admissionregistrationv1.MutatingWebhook{
		Name: name + ".example.com",
		ClientConfig: admissionregistrationv1.WebhookClientConfig{
			URL:      ptr.To(w.server.URL + path),
			CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw}),
		},
		Rules:                   []admissionregistrationv1.RuleWithOperations{ruleFor("", "v1", "configmaps", admissionregistrationv1.OperationAll)},
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}
	for _, o := range options {
		o(&h)
	}
	return h
}

func ruleFor(group, version, resource string, ops ...admissionregistrationv1.OperationType) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{Operations: ops, Rule: admissionregistrationv1.Rule{
		APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource},
	}}
}

func rules(list ...admissionregistrationv1.RuleWithOperations) hookOption {
	return func(h *admissionregistrationv1.MutatingWebhook) { h.Rules = list }
}

func failing(p admissionregistrationv1.FailurePolicyType) hookOption {
	return func(h *admissionregistrationv1.MutatingWebhook) { h.FailurePolicy = &p }
}

func (w *world) mutate(name string, hooks ...admissionregistrationv1.MutatingWebhook) {
	w.t.Helper()
	w.must(w.create(ref("mutatingwebhookconfigurations"), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks,
	}))
}

func (w *world) validate(name string, hooks ...admissionregistrationv1.MutatingWebhook) {
	w.t.Helper()
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, h := range hooks {
		config.Webhooks = append(config.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy, MatchPolicy: h.MatchPolicy,
			NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector, SideEffects: h.SideEffects,
			TimeoutSeconds: h.TimeoutSeconds, AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
		})
	}
	w.must(w.create(ref("validatingwebhookconfigurations"), config))
}

// wantError checks an error's message for a part of it; an empty part means no error.
func wantError(t *testing.T, err error, part string) {
	t.Helper()
	switch {
	case part == "" && err != nil:
		t.Fatalf("unexpected error: %v", err)
	case part != "" && (err == nil || !strings.Contains(err.Error(), part)):
		t.Fatalf("error = %v, want one with %q", err, part)
	}
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

func secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func dataOf(cm client.Object) map[string]string { return cm.(*corev1.ConfigMap).Data }

// attributes describe the create of an object, for plugins that are called directly.
func (w *world) attributes(cm *corev1.ConfigMap) *admission.Attributes {
	resource, _ := w.catalogue.Stored(schema.GroupResource{Resource: "configmaps"})
	return &admission.Attributes{Operation: admissionv1.Create, Resource: resource, Namespace: "default", Name: cm.Name,
		Object: cm, Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{Name: "ann"}}
}
