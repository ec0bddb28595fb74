package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"proa/internal/apis/explain"
)

// controlPlaneAlone starts a server without a node, on ports of its own.
func controlPlaneAlone(t *testing.T, flags ...string) *cluster {
	t.Helper()
	c := &cluster{dir: filepath.Join(t.TempDir(), "server"), port: freePort()}
	end(t, c.command(context.Background(), append([]string{"server", "--no-node", "--port", fmt.Sprint(c.port)}, flags...)...))
	t.Cleanup(func() {
		if out, err := c.proa("down", "--delete"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	eventually(t, 30*time.Second, func() error {
		_, stderr, err := c.tryKubectl("", "get", "serviceaccount", "default")
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	})
	return c
}

// why asks about a pod.
func (c *cluster) why(args ...string) (string, error) {
	out, err := exec.Command(binary, append([]string{"why", "--kubeconfig", c.kubeconfig()}, args...)...).CombinedOutput()
	return string(out), err
}

// end starts a command and ends it with the test.
func end(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended, as Wait tells
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", cmd.Args, err)
		}
	})
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// until waits until get says so.
func (c *cluster) until(t *testing.T, want string, get ...string) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		out, stderr, err := c.tryKubectl("", append([]string{"get"}, get...)...)
		if err != nil || out != want {
			return fmt.Errorf("get %v: %q, want %q: %v %s", get, out, want, err, stderr)
		}
		return nil
	})
}

const simulatedAnswers = `
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterExec
metadata: {name: all}
spec: {execs: [{local: {envs: [{name: ANSWER, value: "42"}]}}]}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterResourceUsage
metadata: {name: all}
spec: {usages: [{usage: {cpu: {value: 250m}, memory: {value: 64Mi}}}]}
`

const twoProfiles = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: packer
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
  plugins: {multiPoint: {disabled: [{name: NodeResourcesBalancedAllocation}, {name: PodTopologySpread}]}}
`

// Pods run on nodes that do not exist, and answer as documents say; a second
// scheduler profile packs them; who waits is told why.
func TestSimulatedNodes(t *testing.T) {
	c := controlPlaneAlone(t, "--simulate", "12", "--simulate-port", fmt.Sprint(freePort()),
		"--simulate-config", write(t, "answers.yaml", simulatedAnswers), "--scheduler-config", write(t, "scheduler.yaml", twoProfiles))
	eventually(t, 20*time.Second, func() error {
		if out := c.kubectl(t, "get", "nodes", "--no-headers"); strings.Count(out, " Ready ") != 12 {
			return fmt.Errorf("nodes:\n%s", out)
		}
		return nil
	})
	c.kubectl(t, "create", "deployment", "web", "--image=nginx", "--replicas=0")
	c.kubectl(t, "set", "resources", "deployment", "web", "--requests=cpu=1") // every node gets some
	c.kubectl(t, "scale", "deployment", "web", "--replicas=30")
	c.until(t, "30", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
	pod := strings.TrimPrefix(strings.Fields(c.kubectl(t, "get", "pods", "-o", "name"))[0], "pod/")
	if out := c.kubectl(t, "exec", pod, "--", "sh", "-c", "echo $ANSWER"); strings.TrimSpace(out) != "42" {
		t.Errorf("exec: %q", out)
	}
	if out := c.kubectl(t, "logs", pod); !strings.Contains(out, "is simulated") {
		t.Errorf("logs: %q", out)
	}
	eventually(t, 40*time.Second, func() error {
		out, stderr, err := c.tryKubectl("", "top", "pod", pod, "--no-headers")
		if err != nil || !strings.Contains(out, "250m") || !strings.Contains(out, "64Mi") {
			return fmt.Errorf("top: %q %s %v", out, stderr, err)
		}
		return nil
	})

	c.apply(t, manyPods("packed", 4, "packer", "1"))
	eventually(t, 20*time.Second, func() error {
		out := strings.Fields(c.kubectl(t, "get", "pods", "-l", "app=packed", "-o", "jsonpath={.items[*].spec.nodeName}"))
		for _, node := range out {
			if node != out[0] {
				t.Fatalf("packed on %v", out)
			}
		}
		if len(out) != 4 {
			return fmt.Errorf("%d of 4 have nodes", len(out))
		}
		return nil
	})

	c.apply(t, manyPods("huge", 1, "default-scheduler", "31900m"))
	c.apply(t, manyPods("stranger", 1, "nobody", "1"))
	c.until(t, "Unschedulable", "pod", "huge-0", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}`)
	if out, err := c.why("pod/huge-0", "-n", "default"); err == nil {
		for _, want := range []string{"It fits on none of 12 nodes.", "CPU were free", "It cannot preempt other pods", `says "Insufficient cpu"`} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	} else {
		t.Errorf("why: %v\n%s", err, out)
	}
	out, err := c.why("pod", "huge-0", "-o", "json")
	var e explain.PodExplanation
	if err == nil {
		err = json.Unmarshal([]byte(out), &e)
	}
	if err != nil || e.Scheduling == nil || len(e.Scheduling.Nodes) != 12 || e.Scheduling.Nodes[0].Lacks["cpu"] == "" || e.Scheduling.Last == nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := c.why("pod/stranger-0"); err != nil || !strings.Contains(out, `a scheduler named "nobody"`) {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := c.why("deployment/web"); err != nil || !strings.Contains(out, "Deployment default/web:") || !strings.Contains(out, "replicas are updated") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, output := range [][]string{nil, {"-o", "json"}} {
		if out, err := c.why(append(output, "pod/nobody")...); err == nil || !strings.Contains(out, `Error: pods "nobody" not found`) {
			t.Errorf("why of a pod that is not there: %v, %s", err, out)
		}
	}
	if out, err := c.why("node/sim-0"); err == nil || !strings.Contains(out, "what can be explained is pod, deployment,") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, stderr, err := c.tryKubectl("", "get", "podexplanations", "huge-0", "--as", "somebody"); err == nil || !strings.Contains(stderr, `cannot get resource "podexplanations" in API group "explain.proa.dev"`) {
		t.Errorf("without permission: %v %s", err, stderr)
	}
	metrics := c.kubectl(t, "get", "--raw", "/metrics")
	for _, want := range []string{
		`scheduler_pending_pods{queue="unschedulable"} 1`, `scheduler_schedule_attempts_total{profile="packer",result="scheduled"} 4`,
		`scheduler_cache_size{type="nodes"} 12`, "scheduler_scheduling_attempt_duration_seconds_bucket{",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
}

// manyPods are equal pods of one scheduler.
func manyPods(name string, n int, scheduler, cpu string) string {
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, `---
apiVersion: v1
kind: Pod
metadata: {name: %s-%d, labels: {app: %s}}
spec: {schedulerName: %s, containers: [{name: c, image: nginx, resources: {requests: {cpu: %s}}}]}
`, name, i, name, scheduler, cpu)
	}
	return all.String()
}

const slowPods = `
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: never}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchLabels: {app: fails}
    matchExpressions: [{key: .status.phase, operator: In, values: [Pending]}]
  next: {statusTemplate: 'phase: Failed'}
`

// The simulator works for a server over the network, with KWOK's stages.
func TestSimulatorBesideAServer(t *testing.T) {
	c := controlPlaneAlone(t)
	end(t, exec.Command(binary, "simulate", "--kubeconfig", c.kubeconfig(), "--nodes", "3", "--config", write(t, "stages.yaml", slowPods)))
	eventually(t, 20*time.Second, func() error {
		if out := c.kubectl(t, "get", "nodes", "--no-headers"); strings.Count(out, " Ready ") != 3 {
			return fmt.Errorf("nodes:\n%s", out)
		}
		return nil
	})
	c.apply(t, manyPods("fails", 2, "default-scheduler", "1"))
	c.apply(t, manyPods("waits", 1, "default-scheduler", "1"))
	c.until(t, "Failed Failed", "pods", "-l", "app=fails", "-o", "jsonpath={.items[*].status.phase}")
	c.until(t, "Pending", "pods", "-l", "app=waits", "-o", "jsonpath={.items[*].status.phase}")
}
