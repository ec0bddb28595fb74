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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applyapps "k8s.io/client-go/applyconfigurations/apps/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
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

// The versions of Helm that people have. They run beside each other, and so do the two
// charts: one of ours with all that a chart can have, and the one that Helm makes.
func TestHelm(t *testing.T) {
	for _, version := range []string{"3", "4"} {
		h := helm{program: others(t, "build/clients/helm"+version)}
		t.Run(version+" with a chart of ours", func(t *testing.T) {
			t.Parallel()
			h.ours(t)
		})
		t.Run(version+" with a chart of its own", func(t *testing.T) {
			t.Parallel()
			h.own(t)
		})
	}
	// A definition belongs to no release, and stays when the last of them goes.
	t.Cleanup(func() { shared.tryKubectl("", "delete", "crd", "greetings.greeter.example.com", "--wait=false") })
}

// helm is a Helm that acts in one namespace.
type helm struct{ program, ns string }

// try runs Helm, which may fail.
func (h helm) try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return foreign(t, "", h.program, append(args, "--namespace", h.ns)...)
}

// run runs Helm, which must succeed.
func (h helm) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := h.try(t, args...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (h helm) value(t *testing.T, object, path string) string {
	t.Helper()
	return shared.kubectl(t, "get", object, "-n", h.ns, "-o", "jsonpath="+path)
}

// gone checks that no object has the release's name.
func (h helm) gone(t *testing.T, kinds, release string) {
	t.Helper()
	if left := shared.kubectl(t, "get", kinds, "-n", h.ns, "-o", "name"); strings.Contains(left, release) {
		t.Errorf("left behind:\n%s", left)
	}
}

func (h helm) ours(t *testing.T) {
	chart := repo("test/clients/helm/chart")
	h.ns = shared.namespace(t)
	check := func(when, greeting, replicas string) {
		t.Helper()
		got := []string{h.value(t, "configmap/web", "{.data.index\\.html}"), h.value(t, "greeting/web", "{.spec.text}"), h.value(t, "deployment/web", "{.status.readyReplicas}")}
		if !slices.Equal(got, []string{greeting, greeting, replicas}) {
			t.Errorf("%s: %q", when, got)
		}
	}
	h.run(t, "install", "web", chart, "--wait", "--timeout", "90s")
	check("installed", "hello", "1")
	if got := h.value(t, "configmap/web", "{.data.deployments} {.data.cluster}"); !strings.HasPrefix(got, "yes v1.37.") {
		t.Errorf("capabilities: %q", got)
	}
	if got := h.value(t, "secret/sh.helm.release.v1.web.v1", "{.type} {.metadata.labels.status}"); got != "helm.sh/release.v1 deployed" {
		t.Errorf("release: %q", got)
	}
	h.run(t, "test", "web", "--timeout", "60s")
	h.run(t, "upgrade", "web", chart, "--set", "greeting=servus,replicas=2", "--wait", "--timeout", "90s")
	check("upgraded", "servus", "2")
	if out, err := h.try(t, "upgrade", "web", chart, "--set", "greeting="); err == nil || !strings.Contains(out, "spec.text") {
		t.Errorf("an upgrade that the schema refuses: %v\n%s", err, out)
	}
	h.run(t, "rollback", "web", "1", "--wait", "--timeout", "90s")
	check("rolled back", "hello", "1")
	var history []struct {
		Revision int
		Status   string
	}
	if err := json.Unmarshal([]byte(h.run(t, "history", "web", "-o", "json")), &history); err != nil || len(history) != 4 || history[3].Status != "deployed" || history[2].Status != "failed" {
		t.Errorf("history: %+v, %v", history, err)
	}
	h.run(t, "uninstall", "web", "--wait")
	h.gone(t, "deployment,service,configmap,greeting,secret", "web")
}

// own follows the chart that `helm create` makes, as most public charts once began:
// Deployment, Service, ServiceAccount, Ingress and HorizontalPodAutoscaler.
func (h helm) own(t *testing.T) {
	h.ns = shared.namespace(t)
	chart := filepath.Join(t.TempDir(), "site")
	h.run(t, "create", chart)
	settings := []string{"--set", "image.tag=1.22,image.pullPolicy=Never,ingress.enabled=true,autoscaling.enabled=true", "--wait", "--timeout", "90s"}
	install := func(more ...string) string {
		t.Helper()
		return h.run(t, append(append([]string{"upgrade", "--install", "mine", chart}, settings...), more...)...)
	}
	if out := install(); !strings.Contains(out, "REVISION: 1") {
		t.Errorf("installed:\n%s", out)
	}
	if got := h.value(t, "deployment/mine-site", "{.spec.template.spec.containers[0].image} {.status.readyReplicas} {.spec.template.spec.serviceAccountName}"); got != "nginx:1.22 1 mine-site" {
		t.Errorf("installed: %s", got)
	}
	if got := h.value(t, "ingress/mine-site", "{.spec.rules[0].http.paths[0].backend.service.name}") + h.value(t, "hpa/mine-site", " {.spec.scaleTargetRef.name}"); got != "mine-site mine-site" {
		t.Errorf("ingress and autoscaler point to %s", got)
	}
	if out := install("--set", "ingress.enabled=false,podLabels.tier=front"); !strings.Contains(out, "REVISION: 2") {
		t.Errorf("upgraded:\n%s", out)
	}
	if got := h.value(t, "pods", "{.items[*].metadata.labels.tier}"); !strings.Contains(got, "front") {
		t.Errorf("labels of pods after the upgrade: %q", got)
	}
	h.gone(t, "ingress", "mine") // what a chart no longer says goes
	if out := h.run(t, "list", "--short"); out != "mine\n" {
		t.Errorf("list: %q", out)
	}
	out, stderr, err := shared.tryKubectl(h.run(t, "get", "manifest", "mine"), "diff", "-n", h.ns, "-f", "-")
	if err != nil {
		t.Errorf("the cluster differs from the manifest: %v\n%s%s", err, out, stderr)
	}
	h.run(t, "uninstall", "mine", "--wait")
	h.gone(t, "deployment,service,serviceaccount,hpa,secret", "mine")
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

// TestGoDeployments does what client-go's examples do to a Deployment, with the typed
// client in both formats, with the dynamic one, and with apply configurations.
func TestGoDeployments(t *testing.T) {
	t.Parallel()
	ns := shared.namespace(t)
	for _, format := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		client := goClient(t, format, &requests{})
		deployments := client.AppsV1().Deployments(ns)
		name := "typed-" + format[strings.LastIndexAny(format, "/.")+1:]
		made := applyapps.Deployment(name, ns).WithSpec(applyapps.DeploymentSpec().WithReplicas(0).
			WithSelector(applymeta.LabelSelector().WithMatchLabels(map[string]string{"app": name})).
			WithTemplate(applycore.PodTemplateSpec().WithLabels(map[string]string{"app": name}).
				WithSpec(applycore.PodSpec().WithContainers(applycore.Container().WithName("c").WithImage("busybox:1.35")))))
		if _, err := deployments.Apply(t.Context(), made, metav1.ApplyOptions{FieldManager: "first"}); err != nil {
			t.Fatalf("%s: apply: %v", format, err)
		}
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // the controller writes it, too
			d, err := deployments.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			d.Spec.Template.Spec.Containers[0].Image = "busybox:latest"
			_, err = deployments.Update(t.Context(), d, metav1.UpdateOptions{FieldManager: "second"})
			return err
		})
		if err != nil {
			t.Fatalf("%s: update: %v", format, err)
		}
		_, err = deployments.Apply(t.Context(), made, metav1.ApplyOptions{FieldManager: "first"})
		if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "second"`) {
			t.Errorf("%s: apply of what another has changed: %v", format, err)
		}
		d, err := deployments.Apply(t.Context(), made, metav1.ApplyOptions{FieldManager: "first", Force: true})
		if err != nil || d.Spec.Template.Spec.Containers[0].Image != "busybox:1.35" {
			t.Fatalf("%s: apply by force: %v, %v", format, d, err)
		}
		mine, err := applyapps.ExtractDeployment(d, "first")
		if err != nil || mine.Spec == nil || *mine.Spec.Replicas != 0 {
			t.Errorf("%s: what the first manager said of it is %+v, %v", format, mine, err)
		}
	}
	dynamically(t, ns)
}

// dynamically finds Deployments by discovery and handles one without its Go type.
func dynamically(t *testing.T, ns string) {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResources(clients().Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	if err != nil {
		t.Fatal(err)
	}
	all, err := dynamic.NewForConfig(clusterConfig())
	if err != nil {
		t.Fatal(err)
	}
	deployments := all.Resource(mapping.Resource).Namespace(ns)
	watcher, err := deployments.Watch(t.Context(), metav1.ListOptions{LabelSelector: "kind=dynamic"})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "dynamic", "labels": map[string]any{"kind": "dynamic"}},
		"spec": map[string]any{
			"replicas": int64(0),
			"selector": map[string]any{"matchLabels": map[string]any{"app": "dynamic"}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "dynamic"}},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "busybox:1.35"}}},
			},
		},
	}}
	if _, err := deployments.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"spec":{"paused":true}}`)
	if got, err := deployments.Patch(t.Context(), "dynamic", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	} else if paused, _, _ := unstructured.NestedBool(got.Object, "spec", "paused"); !paused {
		t.Error("it is not paused after the patch")
	}
	list, err := deployments.List(t.Context(), metav1.ListOptions{LabelSelector: "kind=dynamic"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d of them, %v", len(list.Items), err)
	}
	if err := deployments.Delete(t.Context(), "dynamic", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var seen []watch.EventType
	for event := range watcher.ResultChan() {
		if seen = append(seen, event.Type); event.Type == watch.Deleted {
			break
		}
	}
	if len(seen) < 3 || seen[0] != watch.Added || !slices.Contains(seen, watch.Modified) || seen[len(seen)-1] != watch.Deleted {
		t.Errorf("the watch saw %q", seen)
	}
}
