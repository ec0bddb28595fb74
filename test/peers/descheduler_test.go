package peers

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// balances is a policy for a node that has too much, beside some that have nothing.
const balances = `
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: balance
  pluginConfig:
  - name: DefaultEvictor
    args: {nodeFit: true}
  - name: LowNodeUtilization
    args: {thresholds: {cpu: 20}, targetThresholds: {cpu: 50}}
  plugins:
    balance: {enabled: [LowNodeUtilization]}
`

const leavesTaintedNodes = `
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: taints
  pluginConfig:
  - {name: DefaultEvictor}
  - {name: RemovePodsViolatingNodeTaints}
  plugins:
    deschedule: {enabled: [RemovePodsViolatingNodeTaints]}
`

// What the descheduler finds in place: six pods that fill three quarters of a node, one
// that tolerates what that node will be tainted with, and one whose budget spares it.
const settled = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: c, image: web, resources: {requests: {cpu: 4}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: tolerant}
spec:
  selector: {matchLabels: {app: tolerant}}
  template:
    metadata: {labels: {app: tolerant}}
    spec:
      tolerations: [{key: maintenance, operator: Exists}]
      priorityClassName: system-cluster-critical
      containers: [{name: c, image: tolerant}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: spared}
spec:
  selector: {matchLabels: {app: spared}}
  template:
    metadata: {labels: {app: spared}}
    spec:
      containers: [{name: c, image: spared}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: spared}
spec:
  maxUnavailable: 0
  selector: {matchLabels: {app: spared}}
`

// The descheduler's own program reads what it finds and evicts: what it takes away the
// controllers make anew, and the scheduler puts elsewhere. It acts with the service
// account and the rights that its manifests give it.
func TestADeschedulerEvicts(t *testing.T) {
	program, manifests := built(t, "descheduler"), filepath.Join(published(t, "descheduler", "sigs.k8s.io/descheduler"), "kubernetes/base")
	proa(t)
	c := serve(t, 3)
	c.kubectl(t, "apply", "-k", manifests)
	account := write(t, c.as(t, metav1.NamespaceSystem, "descheduler-sa"))
	deschedule := func(policy string, flags ...string) string {
		t.Helper()
		return complete(t, program, append([]string{"--kubeconfig", account, "--policy-config-file", file(t, "policy.yaml", policy), "--secure-port=0", "-v=1"}, flags...)...)
	}

	c.kubectl(t, "cordon", "sim-1", "sim-2")
	c.apply(t, settled)
	before := c.nodesOf(t, "web", "sim-0 sim-0 sim-0 sim-0 sim-0 sim-0")
	spared, tolerant := c.nodesOf(t, "spared", "sim-0"), c.nodesOf(t, "tolerant", "sim-0")
	c.until(t, "1 0", "pdb", "spared", "-o", "jsonpath={.status.currentHealthy} {.status.disruptionsAllowed}")
	c.kubectl(t, "uncordon", "sim-1", "sim-2")

	eventually(t, func() error { // it copies the cluster while it looks, and may not have got to the pods
		if log := deschedule(balances, "--dry-run"); !strings.Contains(log, "Evicted pod in dry run mode") {
			return fmt.Errorf("a dry run says nothing:\n%s", log)
		}
		return nil
	})
	if after := c.nodesOf(t, "web", "sim-0 sim-0 sim-0 sim-0 sim-0 sim-0"); !slices.Equal(before, after) {
		t.Errorf("a dry run moved pods: %v, then %v", before, after)
	}
	deschedule(balances)
	c.podsUntil(t, "web", func(on map[string]int) bool { return on["sim-0"] == 4 && on["sim-1"]+on["sim-2"] == 2 })

	c.kubectl(t, "taint", "node", "sim-0", "maintenance=:NoSchedule")
	log := deschedule(leavesTaintedNodes)
	if want := "Cannot evict pod as it would violate the pod's disruption budget"; !strings.Contains(log, want) {
		t.Errorf("%q is not in\n%s", want, log)
	}
	c.podsUntil(t, "web", func(on map[string]int) bool { return on["sim-0"] == 0 && on["sim-1"]+on["sim-2"] == 6 })
	if now := c.nodesOf(t, "spared", "sim-0"); !slices.Equal(now, spared) {
		t.Errorf("the pod with a budget was %v and is %v", spared, now)
	}
	if now := c.nodesOf(t, "tolerant", "sim-0"); !slices.Equal(now, tolerant) {
		t.Errorf("the pod that tolerates the taint was %v and is %v", tolerant, now)
	}
	deschedule(c.kubectl(t, "get", "configmap", "-n", "kube-system", "descheduler-policy-configmap", "-o", `jsonpath={.data.policy\.yaml}`))
	c.podsUntil(t, "web", func(on map[string]int) bool { return on["sim-1"] == 3 && on["sim-2"] == 3 })
}

// podsUntil waits until the ready pods of an app are where they should be.
func (c *cluster) podsUntil(t *testing.T, app string, ok func(on map[string]int) bool) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, func() error {
		l, err := c.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		on := map[string]int{}
		for _, p := range l.Items {
			if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
				on[p.Spec.NodeName]++
			}
		}
		if pods = l.Items; !ok(on) {
			return fmt.Errorf("pods of %s: %v", app, on)
		}
		return nil
	})
	return pods
}

// nodesOf waits until the pods of an app run on these nodes, and returns their names.
func (c *cluster) nodesOf(t *testing.T, app, nodes string) (names []string) {
	t.Helper()
	want := map[string]int{}
	for _, n := range strings.Fields(nodes) {
		want[n]++
	}
	for _, p := range c.podsUntil(t, app, func(on map[string]int) bool { return fmt.Sprint(on) == fmt.Sprint(want) }) {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}
