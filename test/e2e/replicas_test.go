package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Every replica of a ReplicaSet and of a ReplicationController runs its image and
// answers by its own name.
func TestEveryReplicaAnswers(t *testing.T) {
	for kind, manifest := range map[string]string{
		"replicaset":            "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: web}\nspec:\n  replicas: 2\n  selector: {matchLabels: {app: web}}\n",
		"replicationcontroller": "apiVersion: v1\nkind: ReplicationController\nmetadata: {name: web}\nspec:\n  replicas: 2\n  selector: {app: web}\n",
	} {
		t.Run(kind, func(t *testing.T) {
			ns := shared.namespace(t)
			shared.apply(t, manifest+`
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: server
        image: proa.dev/testserver:1
        args: [serve]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`, "-n", ns)
			eventually(t, rollout, func() error {
				if out := shared.kubectl(t, "get", kind, "web", "-n", ns, "-o", "jsonpath={.status.readyReplicas}"); out != "2" {
					return fmt.Errorf("%q replicas are ready", out)
				}
				return nil
			})
			pods := strings.Fields(shared.kubectl(t, "get", "pods", "-n", ns, "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))
			if len(pods) != 2 {
				t.Fatalf("pods: %v", pods)
			}
			for _, pod := range pods {
				if out := shared.kubectl(t, "get", "--raw", "/api/v1/namespaces/"+ns+"/pods/"+pod+":8080/proxy/hostname"); strings.TrimSpace(out) != pod {
					t.Errorf("%s answers as %q", pod, out)
				}
			}
		})
	}
}

// A leader and its workers, as MPI and PyTorch operators run them: they find each
// other by stable names, and the leader's end is the job's.
func TestALeaderAndItsWorkers(t *testing.T) {
	ns := shared.namespace(t)
	shared.apply(t, `
apiVersion: v1
kind: Service
metadata: {name: training}
spec: {clusterIP: None, selector: {job-name: training}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: training}
spec:
  completions: 3
  parallelism: 3
  completionMode: Indexed
  backoffLimit: 0
  successPolicy: {rules: [{succeededIndexes: "0"}]}
  template:
    spec:
      subdomain: training
      restartPolicy: Never
      terminationGracePeriodSeconds: 5
      containers:
      - name: c
        image: busybox:1.35
        command: [sh, -c]
        args:
        - |
          if [ "$JOB_COMPLETION_INDEX" = 0 ]; then
            mkfifo /tmp/open && exec <>/tmp/open # an input without end: nc at the end of its own tells the worker, which may not have written yet
            nc -l -p 4001; nc -l -p 4002
            exit 0
          fi
          until echo "worker $JOB_COMPLETION_INDEX on $(hostname)" | nc training-0.training.`+ns+`.svc.cluster.local 400$JOB_COMPLETION_INDEX; do sleep 1; done
          trap 'exit 3' TERM
          sleep 3600 & wait
`, "-n", ns)
	eventually(t, 60*time.Second, func() error {
		out := shared.kubectl(t, "get", "job", "training", "-n", ns, "-o", "jsonpath={range .status.conditions[*]}{.type}={.reason} {end}{.status.completedIndexes} {.status.active}")
		if want := "SuccessCriteriaMet=SuccessPolicy Complete=SuccessPolicy 0 "; out != want {
			return fmt.Errorf("job: %q, want %q", out, want)
		}
		return nil
	})
	leader := shared.kubectl(t, "get", "pods", "-n", ns, "-l", "batch.kubernetes.io/job-completion-index=0", "-o", "name")
	out := shared.kubectl(t, "logs", "-n", ns, strings.TrimSpace(leader))
	if want := "worker 1 on training-1\nworker 2 on training-2\n"; out != want {
		t.Errorf("the leader heard %q, want %q", out, want)
	}
	if out := shared.kubectl(t, "get", "pods", "-n", ns, "-o", "jsonpath={.items[?(@.status.phase=='Running')].metadata.name}"); out != "" {
		t.Errorf("still running: %s", out)
	}
}
