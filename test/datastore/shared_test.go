package datastore

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func configMap(name, text string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name}, "data": map[string]any{"text": text},
	}}
}

func (s *server) configMaps() dynamic.ResourceInterface {
	return s.client.Resource(configMaps).Namespace("default")
}

func TestEtcdByNameTakesItsOwnFlags(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	for _, args := range [][]string{{e.name, "--help"}, {proa(t), "etcd", "--help"}} {
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v", args, err)
		}
		for _, flag := range []string{"--unsafe-no-fsync", "--listen-client-urls", "--quota-backend-bytes", "--initial-cluster"} {
			if !strings.Contains(string(out), "  "+flag) {
				t.Errorf("%v does not list %s", args, flag)
			}
		}
	}
	out, err := exec.CommandContext(t.Context(), e.name, "--no-such-flag").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no-such-flag") {
		t.Errorf("an unknown flag gives %v, %s", err, out)
	}
}

func TestServersOnOneEtcdReadWhatTheOtherHasWritten(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a := startServer(t, "", "--datastore-endpoint", e.url)
	b := startServer(t, a.dir, "--etcd-servers", e.url)
	for i := range 40 {
		writer, reader := a, b
		if i%2 == 1 {
			writer, reader = b, a
		}
		name := fmt.Sprint("c", i)
		made, err := writer.configMaps().Create(t.Context(), configMap(name, "1"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := reader.configMaps().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || got.GetResourceVersion() != made.GetResourceVersion() {
			t.Fatalf("the other server reads %v, %v, want resourceVersion %s", got, err, made.GetResourceVersion())
		}
		list, err := writer.configMaps().List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("a list shows %v, %v", list, err)
		}
		patch := []byte(`{"data":{"text":"2"}}`)
		if _, err := reader.configMaps().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err = writer.configMaps().Update(t.Context(), made, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			t.Fatalf("an update of what the other server has changed gives %v, want a conflict", err)
		}
		if err := writer.configMaps().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := reader.configMaps().Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Fatalf("the other server still reads what was deleted: %v", err)
		}
	}
}

// call makes one request and returns the status code.
func (s *server) call(t *testing.T, method, path, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.config.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	answer, err := s.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

func TestOneOfTheServersOnAnEtcdControls(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a := startServer(t, "", "--etcd-servers", e.url, "--node-name", "a")
	b := startServer(t, a.dir, "--etcd-servers", e.url, "--node-name", "b")
	holder := func(s *server, lease string) string {
		t.Helper()
		u, err := s.client.Resource(leases).Namespace("kube-system").Get(t.Context(), lease, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := unstructured.NestedString(u.Object, "spec", "holderIdentity")
		return name[:1]
	}
	daemons := []string{"kube-controller-manager", "kube-scheduler"}
	for _, lease := range daemons {
		eventually(t, "a server leads", func(ctx context.Context) error {
			_, err := b.client.Resource(leases).Namespace("kube-system").Get(ctx, lease, metav1.GetOptions{})
			return err
		})
		if got := holder(b, lease); got != "a" {
			t.Errorf("%s is held by %s, want the first server", lease, got)
		}
	}
	replicates(t, b, "one")
	a.kill()
	for _, lease := range daemons {
		eventually(t, "the other server leads", func(context.Context) error {
			if got := holder(b, lease); got != "b" {
				return fmt.Errorf("%s is held by %s", lease, got)
			}
			return nil
		})
	}
	replicates(t, b, "two")
}

var (
	leases      = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

// replicates makes a Deployment and waits for exactly its pods.
func replicates(t *testing.T, s *server, name string) {
	t.Helper()
	const replicas = 5
	labels := map[string]any{"app": name}
	_, err := s.client.Resource(deployments).Namespace("default").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"replicas": int64(replicas), "selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "none.example.com/none"}}},
			},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "pods of "+name, func(ctx context.Context) error {
		list, err := s.client.Resource(pods).Namespace("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err == nil && len(list.Items) != replicas {
			err = fmt.Errorf("%d pods, want %d", len(list.Items), replicas)
		}
		return err
	})
}

func TestAServerSurvivesItsEtcd(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	s := startServer(t, "", "--etcd-servers", e.url)
	made, err := s.configMaps().Create(t.Context(), configMap("kept", "1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.configMaps().Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e.kill()

	const path = "/api/v1/namespaces/default/configmaps"
	for _, call := range []struct{ name, method, path, body string }{
		{"a write", http.MethodPost, path + "?timeout=1s", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"lost"}}`},
		{"a consistent read", http.MethodGet, path + "/kept?timeout=1s", ""},
		{"a consistent list", http.MethodGet, path + "?timeout=1s", ""},
	} {
		if code := s.call(t, call.method, call.path, call.body); code != http.StatusInternalServerError && code != http.StatusGatewayTimeout {
			t.Errorf("%s without etcd gives %d, want 500 or 504", call.name, code)
		}
	}
	if _, err := s.configMaps().Get(t.Context(), "kept", metav1.GetOptions{ResourceVersion: "0"}); err != nil {
		t.Errorf("a read that may be old fails without etcd: %v", err)
	}
	for _, path := range []string{"/readyz/etcd-readiness", "/livez/etcd"} {
		if err := wellAt(t.Context(), s.http, s.config.Host+path); err == nil {
			t.Errorf("%s is well without etcd", path)
		}
	}

	e.start()
	eventually(t, "the server writes again", func(ctx context.Context) error {
		_, err := s.configMaps().Create(ctx, configMap("after", "1"), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // an attempt whose answer was lost
		}
		return err
	})
	if err := wellAt(t.Context(), s.http, s.config.Host+"/readyz"); err != nil {
		t.Error(err)
	}
	got, err := s.configMaps().Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil || got.GetResourceVersion() != made.GetResourceVersion() {
		t.Errorf("what was acknowledged before: %v, %v", got, err)
	}
	if event := nextEvent(t, w, "after"); event.Type != watch.Added {
		t.Errorf("the watch shows %v, want the new object added", event)
	}
}

// nextEvent returns a watch's next event of one name.
func nextEvent(t *testing.T, w watch.Interface, name string) watch.Event {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				t.Fatal("the watch ended")
			}
			if u, ok := event.Object.(*unstructured.Unstructured); ok && u.GetName() == name {
				return event
			}
		case <-late:
			t.Fatalf("no event of %s", name)
		}
	}
}

func TestEventsAreKeptForTheirTTL(t *testing.T) {
	t.Parallel()
	events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	e := startEtcd(t)
	for _, tt := range []struct {
		name  string
		flags []string
	}{
		{"in the data directory", nil},
		{"in etcd", []string{"--etcd-servers", e.url}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startServer(t, "", append(tt.flags, "--event-ttl", "2s")...)
			api := s.client.Resource(events).Namespace("default")
			list, err := api.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			w, err := api.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			_, err = api.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"name": "old.1", "namespace": "default"},
				"involvedObject": map[string]any{"kind": "Pod", "namespace": "default", "name": "old"},
				"reason":         "Tested", "type": "Normal",
			}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
				if event := nextEvent(t, w, "old.1"); event.Type != want {
					t.Fatalf("the watch shows %s, want %s", event.Type, want)
				}
			}
		})
	}
}

func TestADatastoreIsChosenOnce(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	s := startServer(t, "")
	s.kill()
	out, err := exec.CommandContext(t.Context(), proa(t), "server", "--no-node", "--data-dir", s.dir, "--datastore-endpoint", e.url).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the objects of this cluster are in its data directory") {
		t.Errorf("another datastore for a cluster gives %v, %s", err, out)
	}
	fresh := filepath.Join(s.dir, "other")
	for _, flags := range [][]string{
		{"--etcd-prefix", "/other"}, {"--datastore-endpoint", "127.0.0.1:2379"}, {"--etcd-servers", e.url, "--etcd-certfile", "x"}, {"--event-ttl", "-1s"},
	} {
		out, err := exec.CommandContext(t.Context(), proa(t), append(append([]string{"server", "--no-node", "--data-dir", fresh}, alone(t)...), flags...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), flags[len(flags)-2]) {
			t.Errorf("%v gives %v, %s", flags, err, out)
		}
	}
}
