package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// jobManifest is a Job whose pods run a script.
func jobManifest(name, spec, restart, script string) string {
	return "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: " + name + "}\nspec:\n  " + strings.TrimSpace(spec) + "\n  template:\n    spec: {restartPolicy: " + restart +
		", terminationGracePeriodSeconds: 1, containers: [" + busybox("c", script) + "]}\n"
}

func (l *lab) job(name string) *batchv1.Job {
	l.Helper()
	job, err := clients().BatchV1().Jobs(l.ns).Get(l.Context(), name, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return job
}

// jobIs waits for a condition of a Job and returns the Job and the condition's reason.
func (l *lab) jobIs(name string, kind batchv1.JobConditionType) (*batchv1.Job, string) {
	l.Helper()
	var job *batchv1.Job
	var reason string
	eventually(l.T, settle, func() error {
		job = l.job(name)
		for _, c := range job.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionTrue {
				reason = c.Reason
				return nil
			}
		}
		return fmt.Errorf("job %s is not %s: %+v", name, kind, job.Status)
	})
	return job, reason
}

func (l *lab) podsOf(selector string) []corev1.Pod {
	l.Helper()
	list, err := clients().CoreV1().Pods(l.ns).List(l.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		l.Fatal(err)
	}
	return list.Items
}

// Jobs to their completion, and to their failure.
func TestJobs(t *testing.T) {
	l := newLab(t)
	l.apply(jobManifest("plain", "completions: 3\n  parallelism: 2", "Never", "true") +
		jobManifest("indexed", "completions: 2\n  parallelism: 2\n  completionMode: Indexed", "Never", "echo $JOB_COMPLETION_INDEX; hostname") +
		strings.Replace(jobManifest("local", "completions: 2\n  parallelism: 2", "OnFailure", "[ -e /v/ran ] || { touch /v/ran; exit 1; }"),
			"containers: [{", "volumes: [{name: v, emptyDir: {}}], containers: [{volumeMounts: [{name: v, mountPath: /v}], ", 1) +
		jobManifest("fails", "backoffLimit: 1", "Never", "exit 1") +
		jobManifest("policy", "backoffLimit: 6\n  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {containerName: c, operator: In, values: [42]}}]}", "Never", "exit 42") +
		jobManifest("perindex", "completions: 4\n  parallelism: 4\n  completionMode: Indexed\n  backoffLimitPerIndex: 1", "Never", "[ $((JOB_COMPLETION_INDEX % 2)) = 0 ]") +
		jobManifest("failindex", "completions: 2\n  parallelism: 2\n  completionMode: Indexed\n  backoffLimitPerIndex: 1\n  podFailurePolicy: {rules: [{action: FailIndex, onExitCodes: {containerName: c, operator: In, values: [7]}}]}", "Never", "[ $JOB_COMPLETION_INDEX = 1 ] || exit 7") +
		jobManifest("maxfailed", "completions: 4\n  parallelism: 1\n  completionMode: Indexed\n  backoffLimitPerIndex: 0\n  maxFailedIndexes: 0", "Never", "exit 1") +
		jobManifest("successall", "completions: 2\n  parallelism: 2\n  completionMode: Indexed\n  successPolicy: {rules: [{succeededIndexes: '0,1'}]}", "Never", "true") +
		jobManifest("successcount", "completions: 3\n  parallelism: 3\n  completionMode: Indexed\n  successPolicy: {rules: [{succeededCount: 1}]}", "Never", "[ $JOB_COMPLETION_INDEX = 0 ] || sleep 3600") +
		jobManifest("successindex", "completions: 3\n  parallelism: 3\n  completionMode: Indexed\n  successPolicy: {rules: [{succeededIndexes: '1'}]}", "Never", "[ $JOB_COMPLETION_INDEX = 1 ] || sleep 3600") +
		jobManifest("ttl", "ttlSecondsAfterFinished: 1", "Never", "true") +
		jobManifest("deadline", "activeDeadlineSeconds: 1", "Never", "sleep 3600"))

	job, _ := l.jobIs("plain", batchv1.JobComplete)
	if s := job.Status; s.Succeeded != 3 || s.Active != 0 || s.CompletionTime == nil || *s.Ready != 0 {
		t.Errorf("plain: %+v", s)
	}
	job, _ = l.jobIs("indexed", batchv1.JobComplete)
	l.is("completed indexes", job.Status.CompletedIndexes, "0,1")
	for _, pod := range l.podsOf("job-name=indexed") {
		index := pod.Annotations[batchv1.JobCompletionIndexAnnotation]
		if pod.Labels[batchv1.JobCompletionIndexAnnotation] != index || pod.Spec.Hostname != "indexed-"+index || l.logs(pod.Name, "") != index+"\nindexed-"+index+"\n" {
			t.Errorf("%s: index %s, host name %s, log %q", pod.Name, index, pod.Spec.Hostname, l.logs(pod.Name, ""))
		}
	}
	if job, _ := l.jobIs("local", batchv1.JobComplete); job.Status.Failed != 0 {
		t.Errorf("local: %+v", job.Status)
	}
	for _, pod := range l.podsOf("job-name=local") {
		if n := status(&pod, "c").RestartCount; n != 1 {
			t.Errorf("%s was restarted %d times", pod.Name, n)
		}
	}
	job, reason := l.jobIs("fails", batchv1.JobFailed)
	if reason != "BackoffLimitExceeded" || job.Status.Failed != 2 {
		t.Errorf("fails: %s, %+v", reason, job.Status)
	}
	job, reason = l.jobIs("policy", batchv1.JobFailed)
	if reason != "PodFailurePolicy" || job.Status.Failed != 1 {
		t.Errorf("policy: %s, %+v", reason, job.Status)
	}
	job, reason = l.jobIs("perindex", batchv1.JobFailed)
	if reason != "FailedIndexes" || job.Status.CompletedIndexes != "0,2" || *job.Status.FailedIndexes != "1,3" || job.Status.Failed != 4 {
		t.Errorf("perindex: %s, %+v", reason, job.Status)
	}
	job, reason = l.jobIs("failindex", batchv1.JobFailed)
	if reason != "FailedIndexes" || *job.Status.FailedIndexes != "0" || job.Status.Failed != 1 {
		t.Errorf("failindex: %s, %+v", reason, job.Status)
	}
	job, reason = l.jobIs("maxfailed", batchv1.JobFailed)
	if reason != "MaxFailedIndexesExceeded" || job.Status.Failed != 1 {
		t.Errorf("maxfailed: %s, %+v", reason, job.Status)
	}
	for name, completed := range map[string]string{"successall": "0,1", "successcount": "0", "successindex": "1"} {
		_, reason := l.jobIs(name, batchv1.JobSuccessCriteriaMet)
		l.is("reason of "+name, reason, "SuccessPolicy")
		job, reason = l.jobIs(name, batchv1.JobComplete)
		if reason != "SuccessPolicy" || job.Status.CompletedIndexes != completed {
			t.Errorf("%s: %s, %+v", name, reason, job.Status)
		}
	}
	if _, reason := l.jobIs("deadline", batchv1.JobFailed); reason != "DeadlineExceeded" {
		t.Errorf("deadline: %s", reason)
	}
	eventually(t, settle, func() error {
		_, err := clients().BatchV1().Jobs(l.ns).Get(t.Context(), "ttl", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("a Job is left after its time: %v", err)
	})
}

// A Job adopts and releases its pods, waits while suspended, and takes its pods along.
func TestJobOwnership(t *testing.T) {
	l := newLab(t)
	l.apply(jobManifest("j", "parallelism: 2\n  completions: 2\n  suspend: true", "Never", "sleep 3600"))
	l.jobIs("j", batchv1.JobSuspended)
	if pods := l.podsOf("job-name=j"); len(pods) != 0 {
		t.Errorf("a suspended Job has %d pods", len(pods))
	}
	l.kubectl("label", "job", "j", "x=y")
	l.kubectl("patch", "job", "j", "-p", `{"spec":{"suspend":false}}`)
	active := func(want int) []corev1.Pod {
		l.Helper()
		var owned []corev1.Pod
		eventually(t, settle, func() error {
			owned = nil
			for _, pod := range l.podsOf("job-name=j") {
				if metav1.GetControllerOf(&pod) != nil && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
					owned = append(owned, pod)
				}
			}
			if len(owned) != want {
				return fmt.Errorf("%d pods run for the Job, want %d", len(owned), want)
			}
			return nil
		})
		return owned
	}
	pods := active(2)
	l.kubectl("patch", "pod", pods[0].Name, "--type=json", "-p", `[{"op":"remove","path":"/metadata/ownerReferences"}]`)
	active(2)
	if again := l.pod(pods[0].Name); metav1.GetControllerOf(again) == nil || again.UID != pods[0].UID {
		t.Error("an orphaned pod was not adopted")
	}
	l.kubectl("label", "pod", pods[1].Name, "job-name-", "batch.kubernetes.io/job-name-", "controller-uid-", "batch.kubernetes.io/controller-uid-")
	eventually(t, settle, func() error {
		if metav1.GetControllerOf(l.pod(pods[1].Name)) != nil {
			return fmt.Errorf("a pod that no longer matches is still owned")
		}
		return nil
	})
	active(2)
	l.kubectl("delete", "job", "j")
	eventually(t, settle, func() error {
		if left := l.podsOf("job-name=j"); len(left) != 0 {
			return fmt.Errorf("%d pods are left of the Job", len(left))
		}
		return nil
	})
}

// Evictions do not count against a Job whose policy ignores them.
func TestJobIgnoresDisruptions(t *testing.T) {
	l := newLab(t)
	l.apply(jobManifest("j", "completions: 1\n  backoffLimit: 0\n  completionMode: Indexed\n  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: 'True'}]}]}", "Never", "trap 'exit 1' TERM; for i in $(seq 50); do sleep 0.1; done"))
	var first string
	eventually(t, settle, func() error {
		for _, pod := range l.podsOf("job-name=j") {
			if first = pod.Name; isReady(&pod) {
				return nil
			}
		}
		return fmt.Errorf("no pod runs")
	})
	if err := l.evict(first); err != nil {
		t.Fatal(err)
	}
	job, _ := l.jobIs("j", batchv1.JobComplete)
	if job.Status.Failed != 0 || job.Status.Succeeded != 1 {
		t.Errorf("%+v", job.Status)
	}
}

func (l *lab) evict(pod string) error {
	return clients().PolicyV1().Evictions(l.ns).Evict(l.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: l.ns}})
}

// CronJobs and what they do when the time of the next run comes before the last
// one has ended. Missed times are made up for at once, which saves a minute.
func TestCronJobs(t *testing.T) {
	l := newLab(t)
	for _, policy := range []string{"Allow", "Forbid", "Replace"} {
		l.apply("apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: " + strings.ToLower(policy) + "}\nspec:\n  schedule: '* * * * *'\n  concurrencyPolicy: " + policy +
			"\n  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1, containers: [" + busybox("c", "sleep 3600") + "]}}}}\n")
	}
	l.apply("apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: suspended}\nspec:\n  schedule: '* * * * *'\n  suspend: true\n  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [" + busybox("c", "true") + "]}}}}\n")
	jobs := func(owner string) []string {
		list, err := clients().BatchV1().Jobs(l.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, j := range list.Items {
			if o := metav1.GetControllerOf(&j); o != nil && o.Name == owner && j.DeletionTimestamp == nil {
				names = append(names, j.Name)
			}
		}
		return names
	}
	started := func(owner string, atLeast int) []string {
		l.Helper()
		var names []string
		eventually(t, settle, func() error {
			if names = jobs(owner); len(names) < atLeast {
				return fmt.Errorf("%s has jobs %v, want %d", owner, names, atLeast)
			}
			return nil
		})
		return names
	}
	past := time.Now().Add(-90 * time.Second).UTC().Format(time.RFC3339)
	for _, name := range []string{"allow", "forbid", "replace", "suspended"} {
		l.kubectl("patch", "cronjob", name, "--subresource=status", "--type=merge", "-p", `{"status":{"lastScheduleTime":"`+past+`"}}`)
	}
	first := started("replace", 1)
	forbidden := started("forbid", 1)
	l.event("allow", "SuccessfulCreate", "Created job allow-")
	started("allow", 2)
	eventually(t, settle, func() error {
		if now := jobs("replace"); len(now) != 1 || now[0] == first[0] {
			return fmt.Errorf("replace has jobs %v", now)
		}
		return nil
	})
	l.event("forbid", "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
	if now := jobs("forbid"); len(now) != 1 || now[0] != forbidden[0] {
		t.Errorf("forbid has job %v, had %v", now, forbidden)
	}
	if now := jobs("suspended"); len(now) != 0 {
		t.Errorf("a suspended CronJob started %v", now)
	}
	l.kubectl("create", "job", "manual", "--from=cronjob/suspended")
	l.jobIs("manual", batchv1.JobComplete)
}

// A daemon pod on every node that wants one, updated in place of the old.
func TestDaemonSets(t *testing.T) {
	l := newLab(t)
	node := strings.TrimSpace(shared.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
	daemon := func(name, selector, image string) string {
		return "---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: " + name + "}\nspec:\n  selector: {matchLabels: {ds: " + name + "}}\n  template:\n    metadata: {labels: {ds: " + name + "}}\n    spec: {nodeSelector: {" + selector + "}, terminationGracePeriodSeconds: 1, containers: [{name: c, image: '" + image + "', imagePullPolicy: IfNotPresent, command: [sleep, '3600']}]}\n"
	}
	label := "lab/" + l.ns
	l.apply(daemon("every", "", "busybox:1.35") + daemon("some", label+": 'on'", "busybox:1.35"))
	available := func(name string, want int) []corev1.Pod {
		l.Helper()
		var pods []corev1.Pod
		eventually(t, settle, func() error {
			pods = l.podsOf("ds=" + name)
			status := l.kubectl("get", "ds", name, "-o", "jsonpath={.status.desiredNumberScheduled} {.status.numberAvailable} {.status.updatedNumberScheduled}")
			if wanted := fmt.Sprintf("%d %d %d", want, want, want); len(pods) != want || want > 0 && status != wanted {
				return fmt.Errorf("%s has %d pods and status %s, want %s", name, len(pods), status, wanted)
			}
			return nil
		})
		return pods
	}
	first := available("every", 1)
	available("some", 0)
	shared.kubectl(t, "label", "node", node, label+"=on")
	t.Cleanup(func() { shared.tryKubectl("", "label", "node", node, label+"-") })
	available("some", 1)
	shared.kubectl(t, "label", "node", node, label+"-")
	available("some", 0)

	l.kubectl("delete", "pod", first[0].Name)
	second := available("every", 1)
	if second[0].UID == first[0].UID {
		t.Error("the deleted pod is back")
	}
	l.kubectl("patch", "pod", second[0].Name, "--subresource=status", "-p", `{"status":{"phase":"Failed"}}`)
	eventually(t, settle, func() error {
		if pods := l.podsOf("ds=every"); len(pods) != 1 || pods[0].UID == second[0].UID || !isReady(&pods[0]) {
			return fmt.Errorf("the failed pod was not replaced")
		}
		return nil
	})
	l.kubectl("set", "image", "ds/every", "c=busybox:latest")
	l.kubectl("rollout", "status", "ds/every", "--timeout=60s")
	pods := available("every", 1)
	l.is("image", pods[0].Spec.Containers[0].Image, "busybox:latest")
	revisions := strings.Fields(l.kubectl("get", "controllerrevisions", "-l", "ds=every", "-o", "name"))
	if len(revisions) != 2 || !strings.Contains(strings.Join(revisions, " "), pods[0].Labels["controller-revision-hash"]) {
		t.Errorf("revisions %v, pod's %s", revisions, pods[0].Labels["controller-revision-hash"])
	}
	l.kubectl("rollout", "undo", "ds/every")
	l.kubectl("rollout", "status", "ds/every", "--timeout=60s")
	l.is("image after undo", available("every", 1)[0].Spec.Containers[0].Image, "busybox:1.35")
	l.kubectl("delete", "ds", "--all")
	available2 := func() error {
		if pods := l.podsOf("ds"); len(pods) != 0 {
			return fmt.Errorf("%d pods are left", len(pods))
		}
		return nil
	}
	eventually(t, settle, available2)
}

// StatefulSets: order, identity, a claim each, updates by partition.
func TestStatefulSets(t *testing.T) {
	l := newLab(t)
	l.apply(`
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: proa.dev/testserver:1
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, ` + often + `}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}]
`)
	ready := func(name string) *corev1.Pod {
		l.Helper()
		eventually(t, settle, func() error { _, err := l.tryKubectl("get", "pod", name); return err })
		return l.ready(name)
	}
	zero, one := ready("db-0"), ready("db-1")
	if !podCondition(zero, corev1.PodReady).LastTransitionTime.Time.Before(one.CreationTimestamp.Add(time.Second)) {
		t.Errorf("db-1 came at %v, before db-0 was ready at %v", one.CreationTimestamp, podCondition(zero, corev1.PodReady).LastTransitionTime)
	}
	for _, pod := range []*corev1.Pod{zero, one} {
		if pod.Labels["apps.kubernetes.io/pod-index"] != pod.Name[3:] || pod.Spec.Hostname != pod.Name || pod.Spec.Subdomain != "db" {
			t.Errorf("%s: labels %v, host name %s.%s", pod.Name, pod.Labels, pod.Spec.Hostname, pod.Spec.Subdomain)
		}
		l.resolves("db-0", "A", pod.Name+".db", pod.Status.PodIP)
		if _, err := fetch("PUT", "http://"+pod.Status.PodIP+":8080/file?path=/data/name", pod.Name); err != nil {
			t.Error(err)
		}
	}
	l.lines(l.kubectl("get", "pvc", "-o", "name"), "persistentvolumeclaim/data-db-0", "persistentvolumeclaim/data-db-1")

	// An unhealthy pod stops what would follow.
	if _, err := fetch("POST", "http://"+one.Status.PodIP+":8080/readyz?ok=false", ""); err != nil {
		t.Fatal(err)
	}
	l.await("db-1", "unready", func(p *corev1.Pod) bool { return !isReady(p) })
	l.kubectl("scale", "statefulset", "db", "--replicas=3")
	time.Sleep(time.Second)
	if pods := l.podsOf("app=db"); len(pods) != 2 {
		t.Errorf("%d pods while one is unhealthy", len(pods))
	}
	if _, err := fetch("POST", "http://"+one.Status.PodIP+":8080/readyz?ok=true", ""); err != nil {
		t.Fatal(err)
	}
	ready("db-2")

	revision := func(name string) string { return l.pod(name).Labels["controller-revision-hash"] }
	old := revision("db-0")
	l.kubectl("patch", "statefulset", "db", "-p", `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}`)
	l.kubectl("set", "env", "statefulset/db", "VERSION=2")
	l.await("db-2", "updated", func(p *corev1.Pod) bool { return p.Labels["controller-revision-hash"] != old && isReady(p) })
	l.kubectl("delete", "pod", "db-0")
	ready("db-0")
	if revision("db-0") != old || revision("db-1") != old {
		t.Error("a pod below the partition was updated")
	}
	out, err := fetch("GET", "http://"+l.pod("db-0").Status.PodIP+":8080/file?path=/data/name", "")
	if err != nil || out != "db-0" {
		t.Errorf("what the claim of db-0 kept: %q, %v", out, err)
	}
	l.kubectl("patch", "statefulset", "db", "-p", `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	l.kubectl("rollout", "status", "statefulset/db", "--timeout=90s")
	for _, name := range []string{"db-0", "db-1", "db-2"} {
		if revision(name) == old {
			t.Errorf("%s has the old revision", name)
		}
	}
	l.is("revisions", l.kubectl("get", "statefulset", "db", "-o", "jsonpath={.status.currentRevision}"), l.kubectl("get", "statefulset", "db", "-o", "jsonpath={.status.updateRevision}"))
	l.kubectl("rollout", "undo", "statefulset/db")
	l.kubectl("rollout", "status", "statefulset/db", "--timeout=90s")
	l.is("revision after undo", revision("db-0"), old)

	l.kubectl("scale", "statefulset", "db", "--replicas=1")
	eventually(t, settle, func() error {
		if pods := l.podsOf("app=db"); len(pods) != 1 || pods[0].Name != "db-0" {
			return fmt.Errorf("%d pods are left", len(pods))
		}
		return nil
	})
	l.lines(l.kubectl("get", "pvc", "-o", "name"), "persistentvolumeclaim/data-db-2")
}

// A StatefulSet whose pod cannot run where it was bound makes another.
func TestStatefulSetRecreatesFailedPods(t *testing.T) {
	l := newLab(t)
	l.apply(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: s}
spec:
  selector: {matchLabels: {app: s}}
  podManagementPolicy: Parallel
  replicas: 2
  template:
    metadata: {labels: {app: s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, ` + testserver + `, readinessProbe: {httpGet: {path: /nowhere, port: 1}, ` + often + `}}]
`)
	running := func(name string, not string) *corev1.Pod {
		l.Helper()
		var pod *corev1.Pod
		eventually(t, settle, func() (err error) {
			pod, err = clients().CoreV1().Pods(l.ns).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && (pod.Status.Phase != corev1.PodRunning || string(pod.UID) == not) {
				err = fmt.Errorf("%s is %s", name, pod.Status.Phase)
			}
			return err
		})
		return pod
	}
	first := running("s-0", "")
	running("s-1", "") // although s-0 is never ready
	l.kubectl("patch", "pod", "s-0", "--subresource=status", "-p", `{"status":{"phase":"Failed"}}`)
	running("s-0", string(first.UID))
	l.kubectl("scale", "statefulset", "s", "--replicas=0")
	l.gone("s-0")
	l.gone("s-1")
}

// Evictions ask the budget first.
func TestDisruptionBudgets(t *testing.T) {
	l := newLab(t)
	l.apply(servers("web", "a", "b") + `
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
`)
	l.ready("a")
	l.ready("b")
	allowed := func(want string) {
		l.Helper()
		eventually(t, settle, func() error {
			got := l.kubectl("get", "pdb", "web", "-o", "jsonpath={.status.currentHealthy}/{.status.desiredHealthy} {.status.disruptionsAllowed}")
			if got != want {
				return fmt.Errorf("the budget is %s, want %s", got, want)
			}
			return nil
		})
	}
	allowed("2/2 0")
	err := l.evict("a")
	if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "Cannot evict pod as it would violate the pod's disruption budget.") || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		t.Errorf("eviction against the budget: %v", err)
	}
	l.kubectl("patch", "pdb", "web", "-p", `{"spec":{"minAvailable":1}}`)
	allowed("2/1 1")
	pod := l.pod("a")
	stop, done := make(chan struct{}), make(chan *corev1.PodCondition, 1)
	w, err := clients().CoreV1().Pods(l.ns).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a", ResourceVersion: pod.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(stop)
		var seen *corev1.PodCondition
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && podCondition(p, corev1.DisruptionTarget) != nil {
				seen = podCondition(p, corev1.DisruptionTarget)
			}
			if e.Type == "DELETED" {
				break
			}
		}
		done <- seen
	}()
	if err := l.evict("a"); err != nil {
		t.Fatal(err)
	}
	l.gone("a")
	if c := <-done; c == nil || c.Reason != "EvictionByEvictionAPI" || c.Message != "Eviction API: evicting" {
		t.Errorf("condition of the evicted pod: %+v", c)
	}
	w.Stop()
	<-stop
	allowed("1/1 0")
	if err := l.evict("b"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the last pod: %v", err)
	}
	l.kubectl("delete", "pdb", "web")
	dry := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: l.ns}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
	if err := clients().PolicyV1().Evictions(l.ns).Evict(t.Context(), dry); err != nil || l.pod("b").DeletionTimestamp != nil {
		t.Errorf("dry run: %v", err)
	}
	wrong := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: l.ns}, DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("1")}}}
	if err := clients().PolicyV1().Evictions(l.ns).Evict(t.Context(), wrong); !apierrors.IsConflict(err) {
		t.Errorf("a precondition that does not hold: %v", err)
	}
	if err := l.evict("b"); err != nil {
		t.Errorf("without a budget: %v", err)
	}
	l.gone("b")
}
