package apiextensions_test

import (
	"fmt"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/client"
)

// usual is a schema and an object of about 1 KB with some of everything.
const usual = `
subresources: {status: {}}
schema:
  openAPIV3Schema:
    type: object
    properties:
      spec:
        type: object
        required: [image]
        x-kubernetes-validations: [{rule: "self.replicas <= self.limit", message: too many}]
        properties:
          image: {type: string, minLength: 1}
          replicas: {type: integer, default: 1, minimum: 0}
          limit: {type: integer, default: 10}
          env: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, value: {type: string}}}}
          ports: {type: array, items: {type: object, properties: {port: {type: integer}, protocol: {type: string, default: TCP}}}}
          selector: {type: object, additionalProperties: {type: string}}
          template: {type: object, x-kubernetes-preserve-unknown-fields: true}
      status: {type: object, properties: {ready: {type: integer}}}
`

func usualWidget(t testing.TB) *unstructured.Unstructured {
	var env strings.Builder
	for i := range 8 {
		fmt.Fprintf(&env, "{name: VARIABLE_%d, value: some value of a usual length},", i)
	}
	u := widget(t, "a", "spec: {image: 'registry.example.com/app:1', env: ["+env.String()+"], ports: [{port: 80}, {port: 443, protocol: TCP}], selector: {app: web, tier: front}, template: {metadata: {labels: {app: web}}, spec: {x: [1, 2, 3]}}}")
	u.SetLabels(map[string]string{"app": "web"})
	return u
}

func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

// measure reports the process's CPU time per operation, which a busy machine
// distorts least.
func measure(b *testing.B) func() {
	b.ReportAllocs()
	before := cpuTime()
	return func() { b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op") }
}

func BenchmarkCreate(b *testing.B) {
	w := newWorld(b)
	w.establish(definition(b, "Namespaced", usual))
	api := w.registry.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	ref := client.Ref{Resource: widgets("v1"), Namespace: "default"}
	template := usualWidget(b)
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		u := template.DeepCopy()
		u.SetName("w" + strconv.Itoa(i))
		if _, err := api.Create(w.ctx, ref, u, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreateRequest is BenchmarkCreate with decoding and encoding, but no network.
func BenchmarkCreateRequest(b *testing.B) {
	w := newWorld(b)
	w.establish(definition(b, "Namespaced", usual))
	body, _ := usualWidget(b).MarshalJSON()
	parts := strings.SplitN(string(body), `"name":"a"`, 2)
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		r := httptest.NewRequest("POST", "/apis/example.com/v1/namespaces/default/widgets", strings.NewReader(parts[0]+`"name":"w`+strconv.Itoa(i)+`"`+parts[1]))
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		if w.handler.ServeHTTP(rec, r); rec.Code != 201 {
			b.Fatal(rec.Body)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	w := newWorld(b)
	w.establish(definition(b, "Namespaced", usual))
	api := w.registry.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	ref := client.Ref{Resource: widgets("v1"), Namespace: "default"}
	obj, err := api.Create(w.ctx, ref, usualWidget(b), metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	ref.Name = "a"
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		u := obj.DeepCopyObject().(*unstructured.Unstructured)
		u.Object["spec"].(map[string]any)["replicas"] = int64(i % 5)
		if obj, err = api.Update(w.ctx, ref, u, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkApply is BenchmarkUpdate by server-side apply of a configuration that changes one field.
func BenchmarkApply(b *testing.B) {
	w := newWorld(b)
	w.establish(definition(b, "Namespaced", usual))
	api := w.registry.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	ref := client.Ref{Resource: widgets("v1"), Namespace: "default", Name: "a"}
	var bodies [5][]byte
	for i := range bodies {
		u := usualWidget(b)
		u.Object["spec"].(map[string]any)["replicas"] = int64(i)
		bodies[i], _ = u.MarshalJSON()
	}
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		if _, err := api.Patch(w.ctx, ref, types.ApplyPatchType, bodies[i%5], metav1.PatchOptions{FieldManager: "bench"}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSelect lists the one of 50 000 objects that a field selector names.
func BenchmarkSelect(b *testing.B) {
	w := newWorld(b)
	w.establish(definition(b, "Namespaced", usual+"selectableFields: [{jsonPath: .spec.image}]\n"))
	api := w.registry.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	ref := client.Ref{Resource: widgets("v1"), Namespace: "default"}
	template := usualWidget(b)
	for i := range 50_000 {
		u := template.DeepCopy()
		u.SetName("w" + strconv.Itoa(i))
		u.Object["spec"].(map[string]any)["image"] = "image" + strconv.Itoa(i)
		if _, err := api.Create(w.ctx, ref, u, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	defer measure(b)()
	for b.Loop() {
		list, err := api.List(w.ctx, ref, metav1.ListOptions{FieldSelector: "spec.image=image777"})
		if err != nil || len(list.Items) != 1 {
			b.Fatal(list, err)
		}
	}
}
