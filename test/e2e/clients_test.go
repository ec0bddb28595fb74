package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// others is a program that `make clients` leaves in build; without it the test is
// skipped in words, except where the whole run is required.
func others(t *testing.T, path string) string {
	t.Helper()
	file := repo(path)
	if _, err := os.Stat(file); err != nil {
		t.Skipf("%s is not built: make clients", path)
	}
	return file
}

// foreign runs another program against the shared cluster and returns its output.
func foreign(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.kubeconfig(), "HOME="+home, "XDG_CACHE_HOME="+home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestHelm(t *testing.T) {
	t.Parallel()
	binary, chart := others(t, "build/clients/helm"), repo("test/clients/helm/chart")
	ns := shared.namespace(t)
	helm := func(args ...string) string {
		t.Helper()
		out, err := foreign(t, "", binary, append(args, "--namespace", ns)...)
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	value := func(object, path string) string {
		return shared.kubectl(t, "get", object, "-n", ns, "-o", "jsonpath="+path)
	}
	check := func(when, greeting, replicas string) {
		t.Helper()
		got := []string{value("configmap/web", "{.data.index\\.html}"), value("greeting/web", "{.spec.text}"), value("deployment/web", "{.status.readyReplicas}")}
		if !slices.Equal(got, []string{greeting, greeting, replicas}) {
			t.Errorf("%s: %q", when, got)
		}
	}
	helm("install", "web", chart, "--wait", "--timeout", "90s")
	t.Cleanup(func() { shared.tryKubectl("", "delete", "crd", "greetings.greeter.example.com", "--wait=false") })
	check("installed", "hello", "1")
	if got := value("configmap/web", "{.data.deployments} {.data.cluster}"); !strings.HasPrefix(got, "yes v1.37.") {
		t.Errorf("capabilities: %q", got)
	}
	if got := value("secret/sh.helm.release.v1.web.v1", "{.type} {.metadata.labels.status}"); got != "helm.sh/release.v1 deployed" {
		t.Errorf("release: %q", got)
	}
	helm("test", "web", "--timeout", "60s")
	helm("upgrade", "web", chart, "--set", "greeting=servus,replicas=2", "--wait", "--timeout", "90s")
	check("upgraded", "servus", "2")
	if out, err := foreign(t, "", binary, "upgrade", "web", chart, "--set", "greeting=", "--namespace", ns); err == nil || !strings.Contains(out, "spec.text") {
		t.Errorf("an upgrade that the schema refuses: %v\n%s", err, out)
	}
	helm("rollback", "web", "1", "--wait", "--timeout", "90s")
	check("rolled back", "hello", "1")
	var history []struct {
		Revision int
		Status   string
	}
	if err := json.Unmarshal([]byte(helm("history", "web", "-o", "json")), &history); err != nil || len(history) != 4 || history[3].Status != "deployed" || history[2].Status != "failed" {
		t.Errorf("history: %+v, %v", history, err)
	}
	helm("uninstall", "web", "--wait")
	if left := shared.kubectl(t, "get", "deployment,service,configmap,greeting,secret", "-n", ns, "-o", "name"); strings.Contains(left, "web") {
		t.Errorf("left behind:\n%s", left)
	}
}

func TestJavaScriptClient(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("there is no node to run the JavaScript client with: apt-get install nodejs npm")
	}
	dir := others(t, "build/clients/javascript/node_modules")
	script, err := os.ReadFile(repo("test/clients/javascript/client.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(work, "node_modules")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "client.mjs"), script, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := foreign(t, work, node, "client.mjs", shared.namespace(t), "busybox:1.35")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, step := range []string{"create", "list in pages", "watch", "informer", "exec", "logs"} {
		if !strings.Contains(out, "ok "+step+"\n") {
			t.Errorf("%q is missing in\n%s", step, out)
		}
	}
}

// requests notes what a client asks for.
type requests struct {
	mu    sync.Mutex
	paths []string
}

func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		r.mu.Lock()
		r.paths = append(r.paths, req.URL.Path+"?"+req.URL.RawQuery)
		r.mu.Unlock()
		return next.RoundTrip(req)
	})
}

// with counts the requests whose query has text.
func (r *requests) with(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, p := range r.paths {
		if strings.Contains(p, text) {
			n++
		}
	}
	return n
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func goClient(t *testing.T, format string, seen *requests) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", shared.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType = format
	config.Wrap(seen.wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestGoInformers follows ConfigMaps with client-go: with the first list as a
// stream, which is its default, and without.
func TestGoInformers(t *testing.T) {
	formats := map[string]string{"json": "application/json", "protobuf": "application/vnd.kubernetes.protobuf"}
	for _, streamed := range []bool{true, false} {
		for name, format := range formats {
			t.Run(fmt.Sprintf("%s streamed %t", name, streamed), func(t *testing.T) {
				featuretesting.SetFeatureDuringTest(t, features.WatchListClient, streamed)
				ns := shared.namespace(t)
				seen := &requests{}
				informed(t, goClient(t, format, seen), ns)
				if n := seen.with("sendInitialEvents=true"); (n > 0) != streamed {
					t.Errorf("%d streamed lists", n)
				}
				if n := seen.with("limit="); (n > 0) == streamed {
					t.Errorf("%d lists", n)
				}
			})
		}
	}
}

// informed has an informer see objects that are there, come, change and go.
func informed(t *testing.T, client *kubernetes.Clientset, ns string) {
	t.Helper()
	configMaps := client.CoreV1().ConfigMaps(ns)
	create := func(name string) {
		t.Helper()
		if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("first")
	events := newEvents()
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(ns))
	informer := factory.Core().V1().ConfigMaps()
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { events.add("add", obj) },
		UpdateFunc: func(_, obj any) { events.add("update", obj) },
		DeleteFunc: func(obj any) { events.add("delete", obj) },
	}); err != nil {
		t.Fatal(err)
	}
	stop := t.Context().Done()
	factory.Start(stop)
	if !cache.WaitForCacheSync(stop, informer.Informer().HasSynced) {
		t.Fatal("the informer does not sync")
	}
	if _, err := informer.Lister().ConfigMaps(ns).Get("first"); err != nil {
		t.Error(err)
	}
	create("second")
	if _, err := configMaps.Patch(t.Context(), "second", types.MergePatchType, []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := configMaps.Delete(t.Context(), "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"add first", "add second", "update second", "delete second"} {
		events.wait(t, want)
	}
}

// eventLog is what an informer told of.
type eventLog struct {
	mu    sync.Mutex
	seen  map[string]bool
	grown chan struct{}
}

func newEvents() *eventLog { return &eventLog{seen: map[string]bool{}, grown: make(chan struct{})} }

func (l *eventLog) add(what string, obj any) {
	cm, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[what+" "+cm.Name] = true
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *eventLog) wait(t *testing.T, want string) {
	t.Helper()
	for {
		l.mu.Lock()
		ok, grown := l.seen[want], l.grown
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-grown:
		case <-time.After(time.Minute):
			t.Fatalf("%q does not come", want)
		}
	}
}

// TestGoLeaderElection has two candidates of client-go's leader election: one
// leads, and the other takes over when it lets go.
func TestGoLeaderElection(t *testing.T) {
	t.Parallel()
	ns := shared.namespace(t)
	client := goClient(t, "application/json", &requests{})
	leads := make(chan string)
	var wg sync.WaitGroup
	defer wg.Wait()
	candidate := func(name string) context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Name: "leader", Namespace: ns}, Client: client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			},
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					select {
					case leads <- name:
					case <-ctx.Done():
					}
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { elector.Run(ctx) })
		return cancel
	}
	stopFirst := candidate("first")
	defer stopFirst()
	if got := <-leads; got != "first" {
		t.Errorf("%s leads", got)
	}
	defer candidate("second")()
	stopFirst()
	if got := <-leads; got != "second" {
		t.Errorf("%s leads", got)
	}
}
