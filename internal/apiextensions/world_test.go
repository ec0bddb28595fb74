package apiextensions_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	clientset "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"proa/internal/admission"
	"proa/internal/apiextensions"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/customresource"
	"proa/internal/controllers/garbagecollector"
	"proa/internal/controllers/namespace"
	"proa/internal/controllers/resourcequota"
	"proa/internal/controllers/storageversionmigrator"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// world is an API server over HTTP with a store in memory, and the controllers
// that have to do with definitions or with every kind.
type world struct {
	t        testing.TB
	ctx      context.Context
	config   *rest.Config
	ext      *clientset.Clientset
	dynamic  dynamic.Interface
	registry *registry.Registry
	warned   *warnings
	handler  http.Handler
}

type warnings struct {
	mu    sync.Mutex
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// take returns what was warned of since it was last called.
func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	texts := strings.Join(w.texts, "\n")
	w.texts = nil
	return texts
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return openWorld(t, memory.New())
}

func openWorld(t testing.TB, engine store.Engine) *world {
	t.Helper()
	catalogue := builtin.Catalogue()
	st, err := store.Open(t.Context(), store.Config{Engine: engine, Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	definitions, err := apiextensions.New(apiextensions.Config{Store: st, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(registry.Config{Store: st, Catalogue: catalogue, Admission: admission.NewChain(admission.ResourceQuota{})})
	if err != nil {
		t.Fatal(err)
	}
	s, err := apiserver.New(apiserver.Config{Registry: r, Store: st, Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cache := client.NewCache(r.As(&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}))
	config := controllers.Config{Cache: cache, Clock: clock.RealClock{}}
	work := []interface{ Run(context.Context) error }{
		customresource.New(config, definitions, catalogue), garbagecollector.New(config, catalogue),
		namespace.New(config, catalogue), resourcequota.New(config, catalogue),
		storageversionmigrator.New(config, catalogue),
	}
	var running sync.WaitGroup
	running.Go(func() { _ = definitions.Run(ctx) })
	running.Go(func() { _ = cache.Run(ctx) })
	if err := cache.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	for _, c := range work {
		running.Go(func() { _ = c.Run(ctx) })
	}
	server := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		cancel()
		running.Wait()
		st.Close()
	})
	w := &world{t: t, ctx: ctx, registry: r, warned: &warnings{}, handler: s.Handler()}
	w.config = &rest.Config{Host: server.URL, QPS: -1, WarningHandler: w.warned}
	w.ext = clientset.NewForConfigOrDie(w.config)
	w.dynamic = dynamic.NewForConfigOrDie(w.config)
	return w
}

// parse reads a manifest.
func parse[T any](t testing.TB, manifest string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(manifest), out); err != nil {
		t.Fatalf("%v in\n%s", err, manifest)
	}
	return out
}

// definition is a manifest of widgets.example.com with one version per given block.
func definition(t testing.TB, scope string, versions ...string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.ResourceScope(scope),
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
		},
	}
	for i, v := range versions {
		version := parse[apiextensionsv1.CustomResourceDefinitionVersion](t, v)
		if version.Name == "" {
			version.Name = "v1"
		}
		version.Served, version.Storage = true, i == 0
		crd.Spec.Versions = append(crd.Spec.Versions, *version)
	}
	return crd
}

// spec is a version whose spec has the given properties.
func spec(properties string) string {
	return "schema:\n  openAPIV3Schema:\n    type: object\n    properties:\n      spec:\n        type: object\n        properties:\n" + indent(properties, 10)
}

func indent(text string, by int) string {
	pad := strings.Repeat(" ", by)
	return pad + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+pad) + "\n"
}

// establish creates a definition and waits until its kind is served.
func (w *world) establish(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	if _, err := w.ext.ApiextensionsV1().CustomResourceDefinitions().Create(w.ctx, crd, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return w.until(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd != nil && apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	})
}

// until watches a definition until it is as wanted; nil stands for gone.
func (w *world) until(name string, done func(*apiextensionsv1.CustomResourceDefinition) bool) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	api := w.ext.ApiextensionsV1().CustomResourceDefinitions()
	events, err := api.Watch(w.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		w.t.Fatal(err)
	}
	defer events.Stop()
	if crd, err := api.Get(w.ctx, name, metav1.GetOptions{}); err == nil && done(crd) || apierrors.IsNotFound(err) && done(nil) {
		return crd
	}
	for e := range events.ResultChan() {
		crd, ok := e.Object.(*apiextensionsv1.CustomResourceDefinition)
		if e.Type == "DELETED" {
			crd = nil
		}
		if (ok || crd == nil) && done(crd) {
			return crd
		}
	}
	w.t.Fatal("watch ended")
	return nil
}

// update changes a definition and waits until the server acts by it.
func (w *world) update(name string, change func(*apiextensionsv1.CustomResourceDefinition)) {
	w.t.Helper()
	api := w.ext.ApiextensionsV1().CustomResourceDefinitions()
	crd, err := api.Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	lifetime := w.lifetime(crd)
	change(crd)
	if _, err = api.Update(w.ctx, crd, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	<-lifetime
}

func (w *world) lifetime(crd *apiextensionsv1.CustomResourceDefinition) <-chan struct{} {
	r, ok := w.registry.Catalogue().Stored(schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural})
	if !ok {
		w.t.Fatalf("%s is not served", crd.Name)
	}
	return r.Custom.Lifetime.Done()
}

func widgets(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "widgets"}
}

// in is the client of widgets in a namespace, "" for cluster scope.
func (w *world) in(version, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return w.dynamic.Resource(widgets(version))
	}
	return w.dynamic.Resource(widgets(version)).Namespace(namespace)
}

// widget is a Widget of example.com/v1 with what the manifest says besides.
func widget(t testing.TB, name, manifest string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	raw, err := yaml.YAMLToJSON([]byte("apiVersion: example.com/v1\nkind: Widget\nmetadata:\n  name: " + name + "\n" + manifest))
	if err != nil {
		t.Fatal(err)
	}
	if err := u.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return u
}

func (w *world) create(manifest string) *unstructured.Unstructured {
	w.t.Helper()
	u, err := w.in("v1", "default").Create(w.ctx, widget(w.t, "a", manifest), metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

func (w *world) apply(manager, manifest string, force bool) (*unstructured.Unstructured, error) {
	w.t.Helper()
	data, _ := json.Marshal(widget(w.t, "a", manifest))
	return w.in("v1", "default").Patch(w.ctx, "a", types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: manager, Force: &force})
}

func (w *world) merge(patch string, sub ...string) (*unstructured.Unstructured, error) {
	w.t.Helper()
	data, err := yaml.YAMLToJSON([]byte(patch))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.in("v1", "default").Patch(w.ctx, "a", types.MergePatchType, data, metav1.PatchOptions{}, sub...)
}

// fetch gets a path as JSON.
func (w *world) fetch(path, accept string) map[string]any {
	w.t.Helper()
	req, _ := http.NewRequestWithContext(w.ctx, http.MethodGet, w.config.Host+path, nil)
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	out := map[string]any{"code": resp.StatusCode}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil && resp.StatusCode == http.StatusOK {
		w.t.Fatal(err)
	}
	return out
}

func dig(object any, path ...string) any {
	for _, name := range path {
		m, ok := object.(map[string]any)
		if !ok {
			return nil
		}
		object = m[name]
	}
	return object
}

func wantText(t testing.TB, got any, want string) {
	t.Helper()
	raw, _ := json.Marshal(got)
	if s, ok := got.(string); ok {
		raw = []byte(s)
	}
	if string(raw) != want {
		t.Errorf("got  %s\nwant %s", raw, want)
	}
}

func wantError(t testing.TB, err error, code int32, text string) {
	t.Helper()
	var status apierrors.APIStatus
	if err == nil {
		t.Errorf("no error, want %q", text)
		return
	}
	if s, ok := err.(apierrors.APIStatus); ok {
		status = s
	}
	if status == nil || status.Status().Code != code || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v\nwant %d %s", err, code, text)
	}
}
