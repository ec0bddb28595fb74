package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const busyPods = `
apiVersion: v1
kind: Pod
metadata: {name: busy, labels: {app: top}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: spins
    image: busybox:1.35
    command: [sh, -c, "while true; do :; done"]
    resources: {limits: {cpu: 100m}}
  - {name: sleeps, image: "busybox:1.35", command: [sleep, "3600"]}
---
apiVersion: v1
kind: Pod
metadata: {name: idle, labels: {app: top}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: sleeps, image: "busybox:1.35", command: [sleep, "3600"]}]
`

// Nothing needs to be installed for kubectl top.
func TestTop(t *testing.T) {
	t.Parallel()
	ns := shared.namespace(t)
	shared.apply(t, busyPods, "-n", ns)
	shared.kubectl(t, "wait", "-n", ns, "--for=condition=Ready", "pods", "--all", "--timeout=60s")
	t.Run("nodes", func(t *testing.T) {
		eventually(t, 20*time.Second, func() error {
			out, stderr, err := shared.tryKubectl("", "top", "node", "--sort-by=cpu")
			if err == nil && !strings.Contains(out, "CPU(cores)") {
				err = fmt.Errorf("it printed %s", out)
			}
			if err != nil {
				return fmt.Errorf("%w: %s", err, stderr)
			}
			return nil
		})
	})
	t.Run("pods", func(t *testing.T) {
		eventually(t, 40*time.Second, func() error {
			out, stderr, err := shared.tryKubectl("", "top", "pod", "-n", ns, "--containers", "--sort-by=cpu", "--no-headers")
			if err != nil {
				return fmt.Errorf("%w: %s", err, stderr)
			}
			if rows := strings.Split(strings.TrimSpace(out), "\n"); len(rows) != 3 || !strings.HasPrefix(rows[0], "busy   spins") {
				return fmt.Errorf("it printed\n%s", out)
			}
			return nil
		})
	})
	t.Run("objects", func(t *testing.T) {
		var m v1beta1.PodMetrics
		out := shared.kubectl(t, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/"+ns+"/pods/busy")
		if err := json.Unmarshal([]byte(out), &m); err != nil {
			t.Fatal(err)
		}
		if m.Kind != "PodMetrics" || m.Labels["app"] != "top" || m.Timestamp.IsZero() || m.Window.Duration <= 0 || len(m.Containers) != 2 {
			t.Fatalf("%s", out)
		}
		sleeps, spins := m.Containers[0], m.Containers[1]
		if sleeps.Name != "sleeps" || spins.Usage.Cpu().Cmp(*sleeps.Usage.Cpu()) <= 0 {
			t.Errorf("one that spins uses %v, one that sleeps %v", spins.Usage.Cpu(), sleeps.Usage.Cpu())
		}
		if used := spins.Usage.Cpu(); used.Cmp(resource.MustParse("150m")) > 0 {
			t.Errorf("%v of a limit of 100m", used)
		}
		if used := sleeps.Usage.Memory(); used.Sign() <= 0 || used.Cmp(resource.MustParse("64Mi")) > 0 {
			t.Errorf("a sleep uses %v of memory", used)
		}
	})
	t.Run("by label", func(t *testing.T) {
		out := shared.kubectl(t, "get", "pods.metrics.k8s.io", "-n", ns, "-l", "app=top", "--field-selector=metadata.name=idle", "--no-headers")
		if !strings.HasPrefix(out, "idle ") || strings.Count(out, "\n") != 1 {
			t.Errorf("%s", out)
		}
	})
	t.Run("for those who may", func(t *testing.T) {
		shared.kubectl(t, "create", "rolebinding", "-n", ns, "viewer", "--clusterrole=view", "--user=vera")
		shared.kubectl(t, "top", "pod", "-n", ns, "--as=vera")
		if _, stderr, err := shared.tryKubectl("", "top", "pod", "-n", ns, "--as=jane"); err == nil || !strings.Contains(stderr,
			`pods.metrics.k8s.io is forbidden: User "jane" cannot list resource "pods" in API group "metrics.k8s.io"`) {
			t.Errorf("%v: %s", err, stderr)
		}
	})
	t.Run("what has no metrics", func(t *testing.T) {
		if _, stderr, err := shared.tryKubectl("", "top", "pod", "-n", ns, "none"); err == nil || !strings.Contains(stderr, `pods "none" not found`) {
			t.Errorf("%v: %s", err, stderr)
		}
	})
	t.Run("nobody writes them", func(t *testing.T) {
		for _, method := range []string{"POST", "DELETE"} {
			a := shared.ask(t, ask{method: method, path: "/apis/metrics.k8s.io/v1beta1/namespaces/" + ns + "/pods", body: "{}"})
			if a.code != 405 {
				t.Errorf("%s: %d %s", method, a.code, a.body)
			}
		}
	})
}
