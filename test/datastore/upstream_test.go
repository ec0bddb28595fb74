package datastore

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// kept is what upstream's storage says of an object.
type kept struct {
	Path            string          `json:"path"`
	ResourceVersion string          `json:"resourceVersion"`
	Object          json.RawMessage `json:"object"`
}

func peer(t *testing.T) string {
	return built(t, repo("build/peers/storage"), "make peers", "PROA_PEERS")
}

// upstream runs upstream's storage on objects.
func upstream(t *testing.T, e *etcd, verb string, objects []*unstructured.Unstructured) []kept {
	t.Helper()
	var in bytes.Buffer
	for _, u := range objects {
		if err := json.NewEncoder(&in).Encode(u.Object); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), peer(t), "--etcd", e.url, verb)
	var errors bytes.Buffer
	cmd.Stdin, cmd.Stderr = &in, &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("upstream's storage, %s: %v\n%s", verb, err, errors.String())
	}
	var all []kept
	for _, line := range bytes.Split(bytes.TrimSpace(out), []byte("\n")) {
		var k kept
		if err := json.Unmarshal(line, &k); err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
	}
	if len(all) != len(objects) {
		t.Fatalf("upstream's storage, %s: %d objects, want %d", verb, len(all), len(objects))
	}
	return all
}

// objects are those of testdata/objects.yaml, with NOW replaced.
func objects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(data), "NOW", time.Now().UTC().Format(time.RFC3339))
	var all []*unstructured.Unstructured
	for _, document := range strings.Split(text, "\n---\n") {
		asJSON, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(asJSON); err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
	return all
}

// resourceOf is where Proa serves an object.
func (s *server) resourceOf(u *unstructured.Unstructured) dynamic.ResourceInterface {
	gvk := u.GroupVersionKind()
	gvr, _ := meta.UnsafeGuessKindToResource(gvk)
	switch gvk.Kind {
	case "Endpoints":
		gvr.Resource = "endpoints"
	case "ClusterTrustBundle":
		gvr.Version = "v1" // v1beta1 is not served by default
	}
	if ns := u.GetNamespace(); ns != "" {
		return s.client.Resource(gvr).Namespace(ns)
	}
	return s.client.Resource(gvr)
}

// essence is an object without what a label's change, or a controller, may touch.
func essence(u *unstructured.Unstructured) map[string]any {
	c := u.DeepCopy()
	for _, field := range []string{"resourceVersion", "managedFields", "labels", "generation", "annotations"} {
		unstructured.RemoveNestedField(c.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(c.Object, "status")
	if c.GetKind() == "Node" {
		unstructured.RemoveNestedField(c.Object, "spec", "taints")
	}
	delete(c.Object, "apiVersion")
	return c.Object
}

// update keeps what upstream wrote for tests that run without it.
var update = flag.Bool("update", false, "record upstream's bytes for the tests of internal/apiserver/registry")

// record writes down what lies in etcd.
func record(t *testing.T, e *etcd, given []*unstructured.Unstructured, created []kept) {
	t.Helper()
	type entry struct {
		Group, Resource, Namespace, Name, Path string
		Value                                  []byte
	}
	var all []entry
	for i, u := range given {
		gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
		all = append(all, entry{gvr.Group, gvr.Resource, u.GetNamespace(), u.GetName(), created[i].Path, raw(t, e, created[i].Path).Value})
	}
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(repo("internal/apiserver/registry/testdata/upstream.json"), append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// raw is what lies at a path in etcd.
func raw(t *testing.T, e *etcd, path string) *mvccpb.KeyValue {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.url}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got, err := client.Get(t.Context(), path)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("%s: %v, %v", path, got, err)
	}
	return got.Kvs[0]
}

func TestUpstreamAndProaKeepObjectsInTheSameBytes(t *testing.T) {
	t.Parallel()
	peer(t)
	e := startEtcd(t)
	given := objects(t)
	created := upstream(t, e, "create", given)
	if *update {
		record(t, e, given, created)
	}
	s := startServer(t, "", "--etcd-servers", e.url)

	t.Run("Proa shows what upstream wrote, where it wrote it", func(t *testing.T) {
		for i, u := range given {
			got, err := s.resourceOf(u).Get(t.Context(), u.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Errorf("%s: %v", created[i].Path, err)
				continue
			}
			want := &unstructured.Unstructured{}
			if err := want.UnmarshalJSON(created[i].Object); err != nil {
				t.Fatal(err)
			}
			compare(t, created[i].Path, essence(got), essence(want))
		}
	})

	t.Run("upstream reads what Proa rewrote, and would write the same", func(t *testing.T) {
		for _, u := range given {
			for _, label := range []string{`"by-proa"`, `null`} {
				patch := fmt.Appendf(nil, `{"metadata":{"labels":{"changed":%s}}}`, label)
				if _, err := s.resourceOf(u).Patch(t.Context(), u.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
					t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
				}
			}
		}
		for _, u := range given {
			if u.GetKind() == "HorizontalPodAutoscaler" {
				u.SetAPIVersion("autoscaling/v2") // upstream's storage version
			}
		}
		unchanged(t, e, given)
		for i, k := range upstream(t, e, "read", given) {
			if given[i].GetAPIVersion() == "autoscaling/v2" {
				continue // not what it was
			}
			before, after := &unstructured.Unstructured{}, &unstructured.Unstructured{}
			if err := before.UnmarshalJSON(created[i].Object); err != nil {
				t.Fatal(err)
			}
			if err := after.UnmarshalJSON(k.Object); err != nil {
				t.Fatal(err)
			}
			compare(t, k.Path, essence(after), essence(before))
		}
	})

	t.Run("upstream reads every object that Proa made", func(t *testing.T) {
		var made []*unstructured.Unstructured
		for _, gvr := range []schema.GroupVersionResource{
			{Version: "v1", Resource: "namespaces"}, {Version: "v1", Resource: "services"}, {Version: "v1", Resource: "serviceaccounts"},
			{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
			{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
			{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"},
			{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
		} {
			list, err := s.client.Resource(gvr).List(t.Context(), metav1.ListOptions{Limit: 20})
			if err != nil || len(list.Items) == 0 {
				t.Fatalf("%s: %v, %v", gvr.Resource, list, err)
			}
			for i := range list.Items {
				made = append(made, &list.Items[i])
			}
		}
		unchanged(t, e, made)
	})
}

// unchanged has upstream rewrite objects without a change: as its own encoding
// equals what lies in etcd, it writes nothing.
func unchanged(t *testing.T, e *etcd, given []*unstructured.Unstructured) {
	t.Helper()
	for _, u := range given {
		one := []*unstructured.Unstructured{u}
		path := upstream(t, e, "read", one)[0].Path
		before := raw(t, e, path)
		touched := upstream(t, e, "touch", one)[0]
		after := raw(t, e, path)
		if !bytes.Equal(before.Value, after.Value) || touched.ResourceVersion != fmt.Sprint(after.ModRevision) {
			t.Errorf("%s: upstream rewrites\n%q as\n%q", path, before.Value, after.Value)
		}
	}
}

func compare(t *testing.T, path string, got, want map[string]any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		t.Errorf("%s:\n got %s\nwant %s", path, a, b)
	}
}
