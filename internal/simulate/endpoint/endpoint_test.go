package endpoint

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	testclock "k8s.io/utils/clock/testing"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/simulate"
	"proa/internal/simulate/kwok"
	"proa/internal/store"
	"proa/internal/store/memory"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// start is the endpoint of one simulated node with one running pod, default/p.
func start(t *testing.T, text string) (*Endpoint, *testclock.FakeClock, string) {
	t.Helper()
	docs, err := kwok.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	catalogue := builtin.Catalogue()
	st, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	r, err := registry.New(registry.Config{Store: st, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	api := r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	clock := testclock.NewFakeClock(now)
	cache := client.NewCache(api)
	running := make(chan struct{}, 1)
	client.Shared[*corev1.Pod](cache).OnChange(func(_, pod *corev1.Pod) {
		if pod != nil && pod.Status.Phase == corev1.PodRunning {
			running <- struct{}{}
		}
	})
	sim, err := simulate.New(simulate.Config{Cache: cache, Fleet: simulate.Fleet{Nodes: 1}, Port: 10247, NodeIP: "192.0.2.1", Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(Config{Cache: cache, Simulator: sim, Documents: docs, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { _ = cache.Run(ctx) })
	if err := cache.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { _ = sim.Run(ctx) })
	_, err = client.Of[*corev1.Pod](api).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Annotations: map[string]string{"kwok.x-k8s.io/usage-memory": "3Mi"}},
		Spec:       corev1.PodSpec{NodeName: "sim-0", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	<-running
	routes, err := e.routes()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(routes)
	t.Cleanup(s.Close)
	return e, clock, s.URL
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestNobodyUnknownIsAnswered(t *testing.T) {
	e, _, _ := start(t, "")
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/containerLogs/default/p/c", nil))
	if w.Code != http.StatusUnauthorized {
		t.Errorf("status %d", w.Code)
	}
}

func TestLogsAreThoseOfTheDocument(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stderr F two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, at := start(t, "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: ClusterLogs\nmetadata: {name: l}\nspec: {selector: {matchNamespaces: [default]}, logs: [{containers: [c], logsFile: "+file+"}]}")
	for query, want := range map[string]string{"": "one\ntwo\n", "?tailLines=1": "two\n"} {
		if code, body := get(t, at+"/containerLogs/default/p/c"+query); code != 200 || body != want {
			t.Errorf("%s: %d %q", query, code, body)
		}
	}
	for path, want := range map[string]int{"/containerLogs/default/other/c": 404, "/containerLogs/default/p/other": 404, "/containerLogs/default/p/c?previous=true": 400} {
		if code, body := get(t, at+path); code != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}

func TestAContainerWithoutALogSaysSo(t *testing.T) {
	_, _, at := start(t, "")
	if code, body := get(t, at+"/containerLogs/default/p/c"); code != 200 || !strings.HasPrefix(body, "2026-01-01T00:00:00Z Container c is simulated") {
		t.Errorf("%d %q", code, body)
	}
}

func execute(t *testing.T, at string, in string, command ...string) (string, error) {
	t.Helper()
	u, err := url.Parse(at + "/exec/default/p/c?" + url.Values{"command": command, "input": {"1"}, "output": {"1"}, "error": {"1"}}.Encode())
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: at}, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	err = e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(in), Stdout: &out, Stderr: &errs})
	return out.String() + errs.String(), err
}

func TestCommandsRunOnlyWhereADocumentSaysSo(t *testing.T) {
	_, _, at := start(t, "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Exec\nmetadata: {name: p, namespace: default}\nspec: {execs: [{local: {workDir: /, envs: [{name: WHO, value: me}]}}]}")
	if out, err := execute(t, at, "text", "sh", "-c", "cat; echo -$WHO-$PWD; echo no >&2"); err != nil || out != "text-me-/\nno\n" {
		t.Errorf("%q %v", out, err)
	}
	if _, err := execute(t, at, "", "sh", "-c", "exit 7"); err == nil || !strings.Contains(err.Error(), "exit code 7") {
		t.Error(err)
	}
	_, _, at = start(t, "")
	if out, err := execute(t, at, "", "sh", "-c", "echo hello"); err == nil || !strings.Contains(err.Error(), "no Exec document") {
		t.Errorf("%q %v", out, err)
	}
}

func TestAPortLeadsWhereTheDocumentSays(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "from behind")
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_, _, at := start(t, "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: PortForward\nmetadata: {name: p, namespace: default}\nspec: {forwards: [{ports: [80], target: {address: 127.0.0.1, port: "+port+"}}]}")
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: at})
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(at + "/portForward/default/p")
	stop, ready := make(chan struct{}), make(chan struct{})
	defer close(stop)
	f, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", u), []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	go f.ForwardPorts() //nolint:errcheck // ends with stop
	<-ready
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); string(got) != "from behind" {
		t.Errorf("%q %v", got, err)
	}
}

func TestUseAddsUpOverTime(t *testing.T) {
	_, clock, at := start(t, `
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterResourceUsage
metadata: {name: u}
spec:
  usages:
  - usage:
      cpu: {expression: '"cpu" in pod.metadata.annotations ? Quantity(pod.metadata.annotations["cpu"]) : Quantity("250m")'}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Metric
metadata: {name: m}
spec:
  path: /metrics/nodes/{nodeName}/own
  metrics:
  - {name: cores, kind: gauge, dimension: pod, value: 'pod.Usage("cpu") * 2.0', labels: [{name: pod, value: pod.metadata.name}]}
  - {name: containers_total, kind: counter, dimension: node, value: node.StartedContainersTotal()}
  - {name: age, kind: gauge, dimension: container, value: 'pod.status.startTime.SinceSecond()'}
  - {name: sizes, kind: histogram, dimension: node, buckets: [{le: 1, value: '2'}, {le: 2, value: '1', hidden: true}, {le: 4, value: '3'}]}
`)
	clock.Step(20 * time.Second)
	_, body := get(t, at+"/metrics/nodes/sim-0/metrics/resource")
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="c",namespace="default",pod="p"} 5 1767225620000`,
		`container_memory_working_set_bytes{container="c",namespace="default",pod="p"} 3.145728e+06 `,
		`node_cpu_usage_seconds_total 5 `,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	_, body = get(t, at+"/metrics/nodes/sim-0/own")
	for _, want := range []string{`cores{pod="p"} 0.5`, "containers_total 1", "age 20", `sizes_bucket{le="1"} 2`, `sizes_bucket{le="4"} 6`, "sizes_sum 16"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	if code, _ := get(t, at+"/metrics/nodes/other/own"); code != 404 {
		t.Errorf("a node that is not there: %d", code)
	}
}
