package suites

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const kueue = "sigs.k8s.io/kueue@v0.14.0"

// queues are objects of Kueue that are right.
const queues = `
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: default-flavor}
spec:
  nodeLabels: {instance-type: on-demand}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: team}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors:
    - name: default-flavor
      resources:
      - {name: cpu, nominalQuota: 4}
      - {name: memory, nominalQuota: 36Gi}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: users, namespace: default}
spec: {clusterQueue: team}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: Workload
metadata: {name: job-sample, namespace: default}
spec:
  queueName: users
  podSets:
  - name: main
    count: 3
    template:
      spec:
        restartPolicy: Never
        containers:
        - {name: c, image: job, resources: {requests: {cpu: 1}}}
`

// TestKueuesDefinitions installs what Kueue publishes, out of its module: its
// custom resources serve, their rules hold, and then its webhooks are asked.
func TestKueuesDefinitions(t *testing.T) {
	if !wanted("kueue") {
		t.Skip("PROA_SUITES does not name kueue, whose definitions are downloaded")
	}
	assets, config := writeAssets(t), filepath.Join(download(t, kueue).Dir, "config")
	kubeconfig := serve(t, assets, filepath.Join(config, "components/crd"))
	kubectl := func(input, args string) (string, error) {
		cmd := exec.Command(filepath.Join(assets, "kubectl"), append([]string{"--kubeconfig", kubeconfig}, strings.Fields(args)...)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	changed := func(from, to string) string { return strings.Replace(queues, from, to, 1) }
	const apply, patch = "apply -f -", "patch --type=merge -p "
	for _, tt := range []struct {
		name, input, args, want string
		refused                 bool
	}{
		{"the definitions explain themselves", "", "explain clusterqueue.spec.resourceGroups.flavors.resources.nominalQuota", "The nominalQuota must be non-negative.", false},
		{"the queues are applied", queues, apply, "workload.kueue.x-k8s.io/job-sample created", false},
		{"they are applied again", queues, apply, "clusterqueue.kueue.x-k8s.io/team unchanged", false},
		{"they are applied by the server", queues, "apply --server-side --force-conflicts -f -", "localqueue.kueue.x-k8s.io/users serverside-applied", false},
		{"queues have columns of their own", "", "get localqueue users", "CLUSTERQUEUE", false},
		{"short names", "", "get cq team -o name", "clusterqueue.kueue.x-k8s.io/team", false},
		{"categories and defaults", "", "get clusterqueue team -o jsonpath={.spec.queueingStrategy},{.spec.preemption.withinClusterQueue}", "BestEffortFIFO,Never", false},
		{"a workload's status has its own way", "", "patch workload job-sample --subresource=status --type=merge -p {\"status\":{\"requeueState\":{\"count\":2}}}", "patched", false},
		{
			"flavors have the resources that are covered", changed("coveredResources: [cpu, memory]", "coveredResources: [cpu]"), apply,
			"flavors must have the same number of resources as the coveredResources", true,
		},
		{
			"nothing is borrowed without a cohort", changed("nominalQuota: 4}", "nominalQuota: 4, borrowingLimit: 2}"), apply,
			"borrowingLimit must be nil when cohort is empty", true,
		},
		{"strategies are an enum", "", patch + `{"spec":{"queueingStrategy":"Random"}} clusterqueue team`, `Unsupported value: "Random"`, true},
		{"a local queue keeps its cluster queue", "", patch + `{"spec":{"clusterQueue":"other"}} localqueue users`, "field is immutable", true},
		{"a minimum is at most the count", "", patch + `{"spec":{"podSets":[{"name":"main","count":3,"minCount":4,"template":{"spec":{"containers":[]}}}]}} workload job-sample`, "minCount should be positive and less or equal to count", true},
		{"a class of priority brings its value", "", patch + `{"spec":{"priorityClassName":"high"}} workload job-sample`, "priority should not be nil when priorityClassName is set", true},
		{"fields that do not exist are refused", changed("queueName: users", "queue: users"), apply, `unknown field "spec.queue"`, true},
		{"nothing of that has changed anything", "", "get workload job-sample -o jsonpath={.spec.podSets[0].count},{.spec.queueName},{.status.requeueState.count}", "3,users,2", false},
		{"all else that it installs is applied", "", "apply --server-side --force-conflicts -k " + filepath.Join(config, "default"), "validatingwebhookconfiguration.admissionregistration.k8s.io/kueue-validating-webhook-configuration serverside-applied", false},
		{"then its webhooks are asked, and nobody answers", changed("name: team", "name: second"), apply, `failed calling webhook "mclusterqueue.kb.io"`, true},
		{"jobs too", "", "create job j --image=i", `failed calling webhook "mjob.kb.io"`, true},
		{"its extension server is missed", "", "wait apiservice v1beta1.visibility.kueue.x-k8s.io --for=condition=Available=False --timeout=30s", "condition met", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := kubectl(tt.input, tt.args)
			if !strings.Contains(out, tt.want) || (err != nil) != tt.refused {
				t.Errorf("%v\n%s\ndoes not contain %q", err, out, tt.want)
			}
		})
	}
}
