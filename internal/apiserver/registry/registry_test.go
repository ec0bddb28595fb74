package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// world is a registry of the built-in kinds over a store in memory.
type world struct {
	*Registry
	t     testing.TB
	ctx   context.Context
	clock *clocktesting.FakeClock
	admin client.API
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: NewCodec(catalogue), Indexes: Indexes(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC))
	c := Config{Store: s, Catalogue: catalogue, Clock: clock}
	for _, f := range change {
		f(&c)
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &world{Registry: r, t: t, ctx: t.Context(), clock: clock,
		admin: r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})}
}

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	podsV1      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	services    = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

func in(gvr schema.GroupVersionResource, name string, sub ...string) client.Ref {
	ref := client.Ref{Resource: gvr, Namespace: "default", Name: name, Subresource: strings.Join(sub, "")}
	if gvr == namespaces {
		ref.Namespace = ""
	}
	return ref
}

func (w *world) create(gvr schema.GroupVersionResource, obj client.Object) client.Object {
	w.t.Helper()
	made, err := w.admin.Create(w.ctx, in(gvr, ""), obj, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

func (w *world) get(gvr schema.GroupVersionResource, name string) client.Object {
	w.t.Helper()
	obj, err := w.admin.Get(w.ctx, in(gvr, name), metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return obj
}

// patch applies a patch and returns the object, or the error.
func (w *world) patch(gvr schema.GroupVersionResource, name string, pt types.PatchType, data string, sub ...string) (client.Object, error) {
	opts := metav1.PatchOptions{}
	if pt == types.ApplyYAMLPatchType {
		opts.FieldManager = "tester"
	}
	return w.admin.Patch(w.ctx, in(gvr, name, sub...), pt, []byte(data), opts)
}

func read[T any](t testing.TB, manifest string) *T {
	t.Helper()
	obj := new(T)
	if err := json.Unmarshal([]byte(manifest), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox"}}},
	}
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox"}}}},
		},
	}
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

func TestCreateFillsInWhatTheServerOwns(t *testing.T) {
	w := newWorld(t)
	obj := configMap("a", map[string]string{"k": "v"})
	obj.UID, obj.SelfLink = "mine", "/x"
	made := w.create(configMaps, obj).(*corev1.ConfigMap)
	if made.UID == "" || made.UID == "mine" || made.SelfLink != "" {
		t.Errorf("uid %q, selfLink %q", made.UID, made.SelfLink)
	}
	if !made.CreationTimestamp.Time.Equal(w.clock.Now().Truncate(time.Second)) {
		t.Errorf("creationTimestamp %v", made.CreationTimestamp)
	}
	if made.Namespace != "default" || made.ResourceVersion == "" || made.Generation != 0 {
		t.Errorf("namespace %q, resourceVersion %q, generation %d", made.Namespace, made.ResourceVersion, made.Generation)
	}
	if len(made.ManagedFields) != 1 || made.ManagedFields[0].Manager != "admin" ||
		string(made.ManagedFields[0].FieldsV1.Raw) != `{"f:data":{".":{},"f:k":{}}}` {
		t.Errorf("managedFields %v", made.ManagedFields)
	}
}

func TestCreateRefuses(t *testing.T) {
	w := newWorld(t)
	w.create(configMaps, configMap("taken", nil))
	tests := []struct {
		name   string
		change func(*corev1.ConfigMap)
		want   string
	}{
		{"a name that is taken", func(c *corev1.ConfigMap) { c.Name = "taken" }, `configmaps "taken" already exists`},
		{"a name that is taken, of what is invalid besides", func(c *corev1.ConfigMap) { c.Name, c.Labels = "taken", map[string]string{"/": ""} }, "metadata.labels: Invalid value"},
		{"a resourceVersion", func(c *corev1.ConfigMap) { c.ResourceVersion = "7" }, "resourceVersion should not be set on objects to be created"},
		{"another namespace than the path's", func(c *corev1.ConfigMap) { c.Namespace = "other" }, "the namespace of the provided object does not match the namespace sent on the request"},
		{"no name", func(c *corev1.ConfigMap) { c.Name = "" }, "metadata.name: Required value: name or generateName is required"},
		{"a name that is no path segment", func(c *corev1.ConfigMap) { c.Name = "a/b" }, "metadata.name: Invalid value"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			obj := configMap("new", nil)
			tt.change(obj)
			_, err := w.admin.Create(w.ctx, in(configMaps, ""), obj, metav1.CreateOptions{})
			wantError(t, err, tt.want)
		})
	}
}

func TestGeneratedNamesAreTriedAgain(t *testing.T) {
	w := newWorld(t)
	seen := map[string]bool{}
	for range 50 {
		made := w.create(configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gen-"}})
		if seen[made.GetName()] || !strings.HasPrefix(made.GetName(), "gen-") || len(made.GetName()) != 9 {
			t.Fatalf("name %q", made.GetName())
		}
		seen[made.GetName()] = true
	}
}

func TestDryRunKeepsNothing(t *testing.T) {
	w := newWorld(t)
	dry := []string{metav1.DryRunAll}
	made, err := w.admin.Create(w.ctx, in(configMaps, ""), configMap("a", nil), metav1.CreateOptions{DryRun: dry})
	if err != nil || made.GetUID() == "" {
		t.Fatalf("%v, %v", made, err)
	}
	if _, err = w.admin.Get(w.ctx, in(configMaps, "a"), metav1.GetOptions{}); err == nil {
		t.Fatal("a dry run created the object")
	}
	before := w.create(configMaps, configMap("b", nil))
	if _, err = w.admin.Delete(w.ctx, in(configMaps, "b"), metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Fatal(err)
	}
	changed := before.DeepCopyObject().(*corev1.ConfigMap)
	changed.Data = map[string]string{"k": "v"}
	updated, err := w.admin.Update(w.ctx, in(configMaps, "b"), changed, metav1.UpdateOptions{DryRun: dry})
	if err != nil || updated.GetResourceVersion() != before.GetResourceVersion() || updated.(*corev1.ConfigMap).Data["k"] != "v" {
		t.Errorf("updated to %v, %v; want the resourceVersion that it has", updated, err)
	}
	if w.get(configMaps, "b") != before {
		t.Fatal("a dry run changed or deleted the object")
	}
	_, err = w.admin.Create(w.ctx, in(configMaps, ""), configMap("c", nil), metav1.CreateOptions{DryRun: []string{"Some"}})
	wantError(t, err, "dryRun: Unsupported value")
	revised := configMap("c", nil)
	revised.ResourceVersion = "7" // of an object that was read elsewhere: nothing is stored that it could contradict
	if _, err = w.admin.Create(w.ctx, in(configMaps, ""), revised, metav1.CreateOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
}

func TestUpdate(t *testing.T) {
	w := newWorld(t)
	old := w.create(configMaps, configMap("a", map[string]string{"k": "1"})).(*corev1.ConfigMap)
	w.clock.Step(time.Minute)

	same := w.update(t, configMaps, old.DeepCopy(), "")
	if same.GetResourceVersion() != old.ResourceVersion {
		t.Error("an update that changes nothing was written")
	}
	next := old.DeepCopy()
	next.Data["k"] = "2"
	updated := w.update(t, configMaps, next.DeepCopy(), "")
	if updated.GetResourceVersion() == old.ResourceVersion {
		t.Error("a change was not written")
	}
	w.update(t, configMaps, next.DeepCopy(), "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again")

	next.ResourceVersion = ""
	next.Data["k"] = "3"
	w.update(t, configMaps, next.DeepCopy(), "")
	next.UID = "other"
	w.update(t, configMaps, next.DeepCopy(), "Precondition failed: UID in precondition: other")
	next.UID, next.Name = "", "b"
	_, err := w.admin.Update(w.ctx, in(configMaps, "a"), next, metav1.UpdateOptions{})
	wantError(t, err, "the name of the object (b) does not match the name on the URL (a)")
}

func (w *world) update(t *testing.T, gvr schema.GroupVersionResource, obj client.Object, want string, sub ...string) client.Object {
	t.Helper()
	made, err := w.admin.Update(w.ctx, in(gvr, obj.GetName(), sub...), obj, metav1.UpdateOptions{})
	wantError(t, err, want)
	return made
}

func TestGenerationCountsSpecOnly(t *testing.T) {
	w := newWorld(t)
	d := w.create(deployments, deployment("web", 1)).(*appsv1.Deployment)
	if d.Generation != 1 {
		t.Fatalf("generation %d after create", d.Generation)
	}
	d = d.DeepCopy()
	d.Labels = map[string]string{"x": "y"}
	d.Status.Replicas = 7
	d = w.update(t, deployments, d, "").(*appsv1.Deployment)
	if d.Generation != 1 || d.Status.Replicas != 0 {
		t.Fatalf("generation %d, status %v after a change of labels and status", d.Generation, d.Status)
	}
	d = d.DeepCopy()
	d.Status.Replicas = 7
	*d.Spec.Replicas = 9
	d = w.update(t, deployments, d, "", "status").(*appsv1.Deployment)
	if d.Generation != 1 || d.Status.Replicas != 7 || *d.Spec.Replicas != 1 {
		t.Fatalf("generation %d, status %v, replicas %d after a change of status", d.Generation, d.Status, *d.Spec.Replicas)
	}
	d = d.DeepCopy()
	*d.Spec.Replicas = 2
	if d = w.update(t, deployments, d, "").(*appsv1.Deployment); d.Generation != 2 {
		t.Fatalf("generation %d after a change of spec", d.Generation)
	}
}

func TestPatch(t *testing.T) {
	tests := []struct {
		name string
		pt   types.PatchType
		data string
		want string // data as JSON, or an error
	}{
		{"merge adds and removes", types.MergePatchType, `{"data":{"b":"2","a":null}}`, `{"b":"2"}`},
		{"JSON patch", types.JSONPatchType, `[{"op":"test","path":"/data/a","value":"1"},{"op":"replace","path":"/data/a","value":"9"}]`, `{"a":"9"}`},
		{"strategic merge", types.StrategicMergePatchType, `{"data":{"b":"2"}}`, `{"a":"1","b":"2"}`},
		{"JSON patch whose test fails", types.JSONPatchType, `[{"op":"test","path":"/data/a","value":"2"}]`, "the server rejected our request due to an error in our request"},
		{"not JSON", types.MergePatchType, `{`, "invalid JSON patch"},
		{"an unknown field only warns", types.MergePatchType, `{"datum":{},"data":{"a":"3"}}`, `{"a":"3"}`},
		{"a field of the wrong type", types.MergePatchType, `{"data":3}`, "cannot unmarshal number into Go struct field ConfigMap.data"},
		{"an old resourceVersion", types.MergePatchType, `{"metadata":{"resourceVersion":"1"},"data":{"a":"3"}}`, "the object has been modified"},
		{"another name", types.MergePatchType, `{"metadata":{"name":"z"}}`, "the name of the object (z) does not match the name on the URL (a)"},
		{"an unknown type", types.PatchType("text/plain"), `{}`, "unknown Content-Type"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.create(configMaps, configMap("other", nil))
			w.create(configMaps, configMap("a", map[string]string{"a": "1"}))
			obj, err := w.patch(configMaps, "a", tt.pt, tt.data)
			if err != nil {
				wantError(t, err, tt.want)
				return
			}
			got, _ := json.Marshal(obj.(*corev1.ConfigMap).Data)
			if string(got) != tt.want {
				t.Errorf("data %s, want %s", got, tt.want)
			}
		})
	}
}

func TestStrictPatchNamesUnknownFields(t *testing.T) {
	w := newWorld(t)
	w.create(configMaps, configMap("a", nil))
	for pt, data := range map[types.PatchType]string{
		types.MergePatchType:          `{"datum":"x"}`,
		types.StrategicMergePatchType: `{"datum":"x"}`,
		types.JSONPatchType:           `[{"op":"add","path":"/datum","value":"x"}]`,
	} {
		_, err := w.admin.Patch(w.ctx, in(configMaps, "a"), pt, []byte(data), metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict})
		wantError(t, err, `strict decoding error: unknown field "datum"`)
	}
	_, err := w.admin.Patch(w.ctx, in(configMaps, "a"), types.MergePatchType, []byte(`{"data":{"a":"1","a":"2"}}`), metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict})
	wantError(t, err, `duplicate field "data.a"`)
}

func TestApply(t *testing.T) {
	w := newWorld(t)
	apply := func(manager, data string, force bool) (*corev1.ConfigMap, error) {
		obj, err := w.admin.Patch(w.ctx, in(configMaps, "a"), types.ApplyYAMLPatchType, []byte(data),
			metav1.PatchOptions{FieldManager: manager, Force: &force})
		if err != nil {
			return nil, err
		}
		return obj.(*corev1.ConfigMap), nil
	}
	const head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	made, err := apply("one", head+"data: {x: '1', y: '1'}", false)
	if err != nil || made.Data["x"] != "1" || made.UID == "" {
		t.Fatalf("apply made %v, %v", made, err)
	}
	w.clock.Step(time.Hour)
	again, err := apply("one", head+"data: {x: '1', y: '1'}", false)
	if err != nil || again.ResourceVersion != made.ResourceVersion {
		t.Fatalf("applying the same again wrote: %v, %v", again, err)
	}
	_, err = apply("two", head+"data: {x: '2'}", false)
	wantError(t, err, `Apply failed with 1 conflict: conflict with "one": .data.x`)
	forced, err := apply("two", head+"data: {x: '2'}", true)
	if err != nil || forced.Data["x"] != "2" {
		t.Fatalf("%v, %v", forced, err)
	}
	last, err := apply("one", head+"data: {}", false)
	if err != nil || fmt.Sprint(last.Data) != "map[x:2]" {
		t.Fatalf("a field that is no longer applied stayed: %v, %v", last, err)
	}
	_, err = apply("", head, false)
	wantError(t, err, "fieldManager: Required value: is required for apply patch")
	_, err = apply("one", head+"datum: x", false)
	wantError(t, err, ".datum: field not declared in schema")
	_, err = apply("one", "apiVersion: apps/v1\nkind: ConfigMap\nmetadata: {name: a}\n", false)
	wantError(t, err, "invalid object type: apps/v1, Kind=ConfigMap")
}

func TestApplyOfStatusHasItsOwnManager(t *testing.T) {
	w := newWorld(t)
	w.create(deployments, deployment("web", 1))
	obj, err := w.patch(deployments, "web", types.ApplyYAMLPatchType,
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"status":{"replicas":3}}`, "status")
	if err != nil || obj.(*appsv1.Deployment).Status.Replicas != 3 {
		t.Fatalf("%v, %v", obj, err)
	}
	for _, e := range obj.GetManagedFields() {
		if e.Subresource == "status" && e.Manager == "tester" && string(e.FieldsV1.Raw) == `{"f:status":{"f:replicas":{}}}` {
			return
		}
	}
	t.Errorf("managedFields %v", obj.GetManagedFields())
}

func TestScale(t *testing.T) {
	w := newWorld(t)
	w.create(deployments, deployment("web", 2))
	obj, err := w.admin.Get(w.ctx, in(deployments, "web", "scale"), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("put", func(t *testing.T) {
		scale := obj.DeepCopyObject().(interface{ apis.Object })
		data := `{"spec":{"replicas":5}}`
		if _, err := w.patch(deployments, "web", types.MergePatchType, data, "scale"); err != nil {
			t.Fatal(err)
		}
		if got := *w.get(deployments, "web").(*appsv1.Deployment).Spec.Replicas; got != 5 {
			t.Errorf("replicas %d", got)
		}
		w.update(t, deployments, scale, "the object has been modified", "scale")
	})
	if g := w.get(deployments, "web").GetGeneration(); g != 2 {
		t.Errorf("generation %d", g)
	}
	t.Run("apply takes the replicas over", func(t *testing.T) {
		config := `{"apiVersion":"autoscaling/v1","kind":"Scale","spec":{"replicas":5}}`
		if _, err := w.patch(deployments, "web", types.ApplyYAMLPatchType, config, "scale"); err != nil {
			t.Fatal(err)
		}
		for _, e := range w.get(deployments, "web").GetManagedFields() {
			if e.Subresource == "scale" && e.Manager == "tester" && string(e.FieldsV1.Raw) == `{"f:spec":{"f:replicas":{}}}` {
				return
			}
		}
		t.Errorf("managedFields %v", w.get(deployments, "web").GetManagedFields())
	})
	_, err = w.patch(deployments, "web", types.MergePatchType, `{"spec":{"replicas":-1}}`, "scale")
	wantError(t, err, "spec.replicas: Invalid value: -1: must be greater than or equal to 0")
}
