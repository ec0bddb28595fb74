package apiextensions_test

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
)

// webhook converts between v1, whose spec has a hostPort, and v2, whose spec has
// host and port.
type webhook struct {
	*httptest.Server
	calls  atomic.Int64
	change atomic.Pointer[func(*apiextensionsv1.ConversionReview)] // of the answer
}

func newWebhook(t *testing.T) *webhook { return startWebhook(t, nil) }

func startWebhook(t *testing.T, config *tls.Config) *webhook {
	w := &webhook{}
	w.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.calls.Add(1)
		review := &apiextensionsv1.ConversionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		answer(review)
		if change := w.change.Load(); change != nil {
			(*change)(review)
		}
		_ = json.NewEncoder(rw).Encode(review)
	}))
	w.TLS = config
	w.StartTLS()
	t.Cleanup(w.Close)
	return w
}

func answer(review *apiextensionsv1.ConversionReview) {
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		u := &unstructured.Unstructured{}
		if u.UnmarshalJSON(raw.Raw) != nil {
			continue
		}
		u.SetAPIVersion(review.Request.DesiredAPIVersion)
		s, _ := u.Object["spec"].(map[string]any)
		if both, ok := s["hostPort"].(string); ok && review.Request.DesiredAPIVersion == "example.com/v2" {
			host, port, _ := cut(both)
			u.Object["spec"] = map[string]any{"host": host, "port": port}
		} else if host, ok := s["host"].(string); ok {
			port, _ := s["port"].(string)
			u.Object["spec"] = map[string]any{"hostPort": host + ":" + port}
		}
		u.SetLabels(map[string]string{"converted": "yes"})
		u.SetGeneration(99)
		out, _ := u.MarshalJSON()
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Raw: out})
	}
	review.Request = nil
}

func cut(s string) (string, string, bool) {
	for i := range s {
		if s[i] == ':' {
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

func (h *webhook) conversion() *apiextensionsv1.CustomResourceConversion {
	return &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{
			URL: ptr.To(h.URL + "/convert"), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}),
		},
		ConversionReviewVersions: []string{"v1"},
	}}
}

const (
	hostPort = "name: v1\nschema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {hostPort: {type: string}}}}}}\nselectableFields: [{jsonPath: .spec.hostPort}]\n"
	hostAnd  = "name: v2\nschema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, required: [host], properties: {host: {type: string, maxLength: 5}, port: {type: string}}}}}}\nselectableFields: [{jsonPath: .spec.host}]\n"
)

func TestAWebhookConvertsBetweenVersions(t *testing.T) {
	h := newWebhook(t)
	w := newWorld(t)
	d := definition(t, "Namespaced", hostPort, hostAnd)
	d.Spec.Conversion = h.conversion()
	w.establish(d)
	w.create("spec: {hostPort: 'one:1'}")
	if h.calls.Load() != 0 {
		t.Error("a write in the storage version was converted")
	}
	got, err := w.in("v2", "default").Get(w.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["spec"], `{"host":"one","port":"1"}`)
	if got.GetLabels()["converted"] != "yes" || got.GetGeneration() != 1 {
		t.Errorf("metadata %v", got.Object["metadata"])
	}
	b := widget(t, "b", "spec: {host: two, port: '2'}")
	b.SetAPIVersion("example.com/v2")
	if _, err := w.in("v2", "default").Create(w.ctx, b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	long := b.DeepCopy()
	long.SetName("long")
	long.Object["spec"] = map[string]any{"host": "toolong"}
	_, err = w.in("v2", "default").Create(w.ctx, long, metav1.CreateOptions{})
	wantError(t, err, 422, "spec.host: Too long")
	list, err := w.in("v1", "default").List(w.ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatal(list, err)
	}
	wantText(t, list.Items[1].Object["spec"], `{"hostPort":"two:2"}`)
	list, err = w.in("v2", "default").List(w.ctx, metav1.ListOptions{FieldSelector: "spec.host=two"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "b" {
		t.Errorf("%v, %v", list, err)
	}
	got, err = w.in("v2", "default").Get(w.ctx, "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got.Object["spec"].(map[string]any)["port"] = "3"
	if got, err = w.in("v2", "default").Update(w.ctx, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["spec"], `{"host":"two","port":"3"}`)
}

func TestObjectsOfBothStoredVersionsAreListedInOne(t *testing.T) {
	h := newWebhook(t)
	w := newWorld(t)
	d := definition(t, "Namespaced", hostPort, hostAnd)
	d.Spec.Conversion = h.conversion()
	w.establish(d)
	w.create("spec: {hostPort: 'one:1'}")
	w.update(d.Name, func(d *crd) { d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true })
	b := widget(t, "b", "spec: {host: two, port: '2'}")
	b.SetAPIVersion("example.com/v2")
	if _, err := w.in("v2", "default").Create(w.ctx, b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := w.in("v2", "default").List(w.ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatal(list, err)
	}
	wantText(t, list.Items[0].Object["spec"], `{"host":"one","port":"1"}`)
	wantText(t, list.Items[1].Object["spec"], `{"host":"two","port":"2"}`)
	got, err := w.merge("{spec: {hostPort: 'x:9'}}")
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["spec"], `{"hostPort":"x:9"}`)
}

func TestAListIsConvertedInOneReview(t *testing.T) {
	h := newWebhook(t)
	w := newWorld(t)
	d := definition(t, "Namespaced", hostPort, hostAnd)
	d.Spec.Conversion = h.conversion()
	w.establish(d)
	for _, name := range []string{"a", "b", "c", "d"} {
		if _, err := w.in("v1", "default").Create(w.ctx, widget(t, name, "spec: {hostPort: 'one:1'}"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if list, err := w.in("v2", "default").List(w.ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 4 {
			t.Fatal(list, err)
		}
	}
	if n := h.calls.Load(); n != 1 {
		t.Errorf("%d reviews", n)
	}
}

func TestWhatAWebhookGetsWrongIsAnError(t *testing.T) {
	h := newWebhook(t)
	w := newWorld(t)
	d := definition(t, "Namespaced", hostPort, hostAnd)
	d.Spec.Conversion = h.conversion()
	w.establish(d)
	w.create("spec: {hostPort: 'one:1'}")
	first := func(change func(u *unstructured.Unstructured)) func(*apiextensionsv1.ConversionReview) {
		return func(r *apiextensionsv1.ConversionReview) {
			u := &unstructured.Unstructured{}
			_ = u.UnmarshalJSON(r.Response.ConvertedObjects[0].Raw)
			change(u)
			r.Response.ConvertedObjects[0].Raw, _ = u.MarshalJSON()
		}
	}
	cases := []struct {
		name   string
		change func(*apiextensionsv1.ConversionReview)
		text   string
	}{
		{"it fails", func(r *apiextensionsv1.ConversionReview) {
			r.Response.Result = metav1.Status{Status: "Failed", Message: "no way"}
		}, "conversion webhook for example.com/v1, Kind=Widget failed: no way"},
		{"it answers another request", func(r *apiextensionsv1.ConversionReview) { r.Response.UID = "x" }, "expected response.uid="},
		{"it answers nothing", func(r *apiextensionsv1.ConversionReview) { r.Response = nil }, "no response provided"},
		{"it returns too few", func(r *apiextensionsv1.ConversionReview) { r.Response.ConvertedObjects = nil }, "returned 0 objects, expected 1"},
		{"it returns another version", first(func(u *unstructured.Unstructured) { u.SetAPIVersion("example.com/v3") }), "invalid groupVersion (expected example.com/v2, received example.com/v3)"},
		{"it renames", first(func(u *unstructured.Unstructured) { u.SetName("z") }), "must have the same name: a != z"},
		{"it changes the UID", first(func(u *unstructured.Unstructured) { u.SetUID("z") }), "must have the same UID"},
		{"it sets a bad label", first(func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"-": "x"}) }), "metadata.labels: Invalid value"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h.change.Store(&c.change)
			_, err := w.in("v2", "default").Get(w.ctx, "a", metav1.GetOptions{})
			wantError(t, err, 500, c.text)
		})
	}
	h.change.Store(nil)
	if _, err := w.in("v2", "default").Get(w.ctx, "a", metav1.GetOptions{}); err != nil {
		t.Errorf("after the webhook is mended: %v", err)
	}
}

func TestAWebhookThatIsNotTrustedIsAnError(t *testing.T) {
	h := newWebhook(t)
	w := newWorld(t)
	d := definition(t, "Namespaced", hostPort, hostAnd)
	d.Spec.Conversion = h.conversion()
	d.Spec.Conversion.Webhook.ClientConfig.CABundle = nil
	w.establish(d)
	w.create("spec: {hostPort: 'one:1'}")
	_, err := w.in("v2", "default").Get(w.ctx, "a", metav1.GetOptions{})
	wantError(t, err, 500, "certificate signed by unknown authority")
}

// A webhook behind a Service is called by the name that the Service has inside the
// cluster. One that cannot be found is no object that is not there.
func TestAWebhookBehindAServiceConverts(t *testing.T) {
	certificate, key, err := certutil.GenerateSelfSignedCertKey("converter.default.svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	h := startWebhook(t, &tls.Config{Certificates: []tls.Certificate{pair}})
	port := int32(netip.MustParseAddrPort(h.Listener.Addr().String()).Port())
	w := newWorld(t)
	d := definition(t, "Namespaced", hostPort, hostAnd)
	d.Spec.Conversion = h.conversion()
	d.Spec.Conversion.Webhook.ClientConfig = &apiextensionsv1.WebhookClientConfig{
		Service: &apiextensionsv1.ServiceReference{Namespace: "default", Name: "converter", Port: ptr.To(port), Path: ptr.To("/convert")}, CABundle: certificate,
	}
	w.establish(d)
	w.create("spec: {hostPort: 'one:1'}")
	get := func() (*unstructured.Unstructured, error) {
		return w.in("v2", "default").Get(w.ctx, "a", metav1.GetOptions{})
	}
	_, err = get()
	wantError(t, err, 500, `service "converter" not found`)

	services := kubernetes.NewForConfigOrDie(w.config).CoreV1().Services("default")
	service, err := services.Create(w.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "converter"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = get()
	wantError(t, err, 500, `no endpoints available for service "converter"`)

	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}
	if _, err := services.Update(w.ctx, service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := get()
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, got.Object["spec"], `{"host":"one","port":"1"}`)
}
