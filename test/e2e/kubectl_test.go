package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const shellPod = `
apiVersion: v1
kind: Pod
metadata: {name: shell, labels: {app: shell}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: shell
    image: busybox:1.35
    command: [sh, -c, "echo first; echo second; exec httpd -f -p 8080 -h /tmp"]
    resources: {limits: {memory: 64Mi, cpu: 500m}}
`

// Every verb of kubectl that a person uses on a pod, against a real container.
func TestKubectlOnAPod(t *testing.T) {
	ns := shared.namespace(t)
	shared.apply(t, shellPod, "-n", ns)
	shared.kubectl(t, "wait", "-n", ns, "--for=condition=Ready", "pod/shell", "--timeout=60s")
	in := func(args ...string) string {
		t.Helper()
		return shared.kubectl(t, append([]string{args[0], "-n", ns}, args[1:]...)...)
	}
	contains := func(t *testing.T, out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in\n%s", w, out)
			}
		}
	}
	t.Run("logs", func(t *testing.T) {
		if out := in("logs", "shell"); out != "first\nsecond\n" {
			t.Errorf("logs: %q", out)
		}
		if out := in("logs", "shell", "--tail=1"); out != "second\n" {
			t.Errorf("--tail=1: %q", out)
		}
		if out := in("logs", "shell", "--limit-bytes=1"); out != "f" {
			t.Errorf("--limit-bytes=1: %q", out)
		}
		contains(t, in("logs", "shell", "--timestamps", "--since=24h"), "T", "Z first")
	})
	t.Run("exec", func(t *testing.T) {
		if out := in("exec", "shell", "--", "echo", "hi"); out != "hi\n" {
			t.Errorf("exec: %q", out)
		}
		out, _, err := shared.tryKubectl("through stdin", "exec", "-i", "shell", "-n", ns, "--", "cat")
		if err != nil || out != "through stdin" {
			t.Errorf("exec -i: %q, %v", out, err)
		}
		_, stderr, err := shared.tryKubectl("", "exec", "shell", "-n", ns, "--", "sh", "-c", "exit 7")
		if err == nil {
			t.Error("exit 7 was a success")
		}
		contains(t, stderr, "exit code 7")
	})
	t.Run("cp", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "to"), []byte("copied"), 0o600); err != nil {
			t.Fatal(err)
		}
		in("cp", filepath.Join(dir, "to"), "shell:/tmp/file")
		in("cp", "shell:/tmp/file", filepath.Join(dir, "back"))
		if data, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || string(data) != "copied" {
			t.Errorf("%q, %v", data, err)
		}
	})
	t.Run("port-forward", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		cmd := shared.command(ctx, "kubectl", "port-forward", "-n", ns, "pod/shell", ":8080", "--address=127.0.0.1")
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cancel()
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var port int
		if _, err := fmt.Sscanf(line, "Forwarding from 127.0.0.1:%d", &port); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if body, err := fetch("GET", fmt.Sprintf("http://127.0.0.1:%d/file", port), ""); err != nil || body != "copied" {
			t.Errorf("%q, %v", body, err)
		}
	})
	t.Run("describe", func(t *testing.T) {
		contains(t, in("describe", "pod", "shell"), "Status:           Running", "Successfully assigned "+ns+"/shell", "Container started", "memory:  64Mi")
	})
	t.Run("label, annotate and patch", func(t *testing.T) {
		in("label", "pod", "shell", "tier=front")
		contains(t, in("get", "pods", "-l", "tier=front", "-o", "name"), "pod/shell")
		in("annotate", "pod", "shell", "note=x")
		in("patch", "pod", "shell", "--type=json", "-p", `[{"op":"remove","path":"/metadata/annotations/note"}]`)
		if out := in("get", "pod", "shell", "-o", "jsonpath={.metadata.annotations.note}"); out != "" {
			t.Errorf("annotation is still %q", out)
		}
	})
	t.Run("columns", func(t *testing.T) {
		contains(t, in("get", "pods", "-o", "wide"), "READY", "STATUS", "RESTARTS", "NOMINATED NODE", "1/1     Running")
	})
	t.Run("memory limit is the cgroup's", func(t *testing.T) {
		out := in("exec", "shell", "--", "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max")
		contains(t, out, fmt.Sprint(64<<20))
	})
	t.Run("events", func(t *testing.T) {
		contains(t, in("get", "events", "--field-selector=involvedObject.name=shell"), "Scheduled", "Pulled", "Created", "Started")
	})
}

// What kubectl does with the API alone.
func TestKubectlOnTheAPI(t *testing.T) {
	ns := shared.namespace(t)
	configMap := func(value string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {key: " + value + "}"
	}
	shared.apply(t, configMap("one"), "-n", ns, "--server-side")
	t.Run("diff", func(t *testing.T) {
		out, _, err := shared.tryKubectl(configMap("two"), "diff", "-n", ns, "-f", "-")
		if err == nil || !strings.Contains(out, "-  key: one") || !strings.Contains(out, "+  key: two") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("server-side apply conflicts name the manager", func(t *testing.T) {
		_, stderr, err := shared.tryKubectl(configMap("two"), "apply", "-n", ns, "--server-side", "--field-manager=other", "-f", "-")
		if err == nil || !strings.Contains(stderr, `conflict with "kubectl": .data.key`) {
			t.Errorf("%v\n%s", err, stderr)
		}
		shared.apply(t, configMap("two"), "-n", ns, "--server-side", "--field-manager=other", "--force-conflicts")
		if out := shared.kubectl(t, "get", "cm", "c", "-n", ns, "-o", "jsonpath={.data.key}"); out != "two" {
			t.Errorf("forced apply left %q", out)
		}
	})
	t.Run("dry run changes nothing", func(t *testing.T) {
		shared.kubectl(t, "patch", "cm", "c", "-n", ns, "--dry-run=server", "--type=merge", "-p", `{"data":{"key":"three"}}`)
		if out := shared.kubectl(t, "get", "cm", "c", "-n", ns, "-o", "jsonpath={.data.key}"); out != "two" {
			t.Errorf("dry run wrote %q", out)
		}
	})
	t.Run("explain", func(t *testing.T) {
		out := shared.kubectl(t, "explain", "deployment.spec.strategy.rollingUpdate.maxSurge")
		if !strings.Contains(out, "IntOrString") || !strings.Contains(out, "maximum number of pods") {
			t.Error(out)
		}
	})
	t.Run("auth can-i and whoami", func(t *testing.T) {
		if out := shared.kubectl(t, "auth", "can-i", "create", "pods"); out != "yes\n" {
			t.Errorf("admin: %q", out)
		}
		if out, _, _ := shared.tryKubectl("", "auth", "can-i", "create", "pods", "--as=jane"); out != "no\n" {
			t.Errorf("jane: %q", out)
		}
		if out := shared.kubectl(t, "auth", "whoami"); !strings.Contains(out, "kubernetes-admin") {
			t.Error(out)
		}
	})
	t.Run("paging and selectors", func(t *testing.T) {
		for i := range 5 {
			shared.kubectl(t, "create", "configmap", fmt.Sprintf("p%d", i), "-n", ns)
		}
		out := shared.kubectl(t, "get", "cm", "-n", ns, "--chunk-size=2", "-o", "name")
		if n := strings.Count(out, "configmap/p"); n != 5 {
			t.Errorf("%d of 5 over pages:\n%s", n, out)
		}
		out = shared.kubectl(t, "get", "cm", "-n", ns, "--field-selector=metadata.name=p3", "-o", "name")
		if out != "configmap/p3\n" {
			t.Errorf("field selector: %q", out)
		}
	})
	t.Run("cordon and taint", func(t *testing.T) {
		node := strings.TrimSpace(shared.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
		shared.kubectl(t, "cordon", node)
		if out := shared.kubectl(t, "get", "node", node); !strings.Contains(out, "Ready,SchedulingDisabled") {
			t.Error(out)
		}
		shared.kubectl(t, "uncordon", node)
		shared.kubectl(t, "taint", "node", node, "e2e=x:PreferNoSchedule")
		shared.kubectl(t, "taint", "node", node, "e2e-")
	})
	t.Run("versions and resources", func(t *testing.T) {
		if out := shared.kubectl(t, "version"); !strings.Contains(out, "Server Version: v1.37") {
			t.Error(out)
		}
		if out := shared.kubectl(t, "api-resources"); !strings.Contains(out, "deployments") || !strings.Contains(out, "deploy ") {
			t.Error(out)
		}
	})
}
