package workloads

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func job(name string, change ...func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(name)}}
	j.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels(name)}, Spec: podSpec("")}
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	for _, f := range change {
		f(j)
	}
	return j
}

// indexed is for job: n indexes, all at once.
func indexed(n int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
		j.Spec.Completions, j.Spec.Parallelism = &n, new(n)
	}
}

func suspended(j *batchv1.Job) { j.Spec.Suspend = new(true) }

func (c *cluster) createJob(j *batchv1.Job) *batchv1.Job {
	c.t.Helper()
	return must(c.BatchV1().Jobs(ns).Create(c.ctx, j, metav1.CreateOptions{}))(c)
}

func (c *cluster) jobUntil(name string, ok func(*batchv1.Job) error) *batchv1.Job {
	c.t.Helper()
	l := until(c, c.BatchV1().Jobs(ns), named(name), func(l *batchv1.JobList) error {
		if len(l.Items) != 1 {
			return fmt.Errorf("no Job %s", name)
		}
		return ok(&l.Items[0])
	})
	return &l.Items[0]
}

// jobCondition returns a condition that is True.
func jobCondition(j *batchv1.Job, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if c := &j.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// has is for jobUntil: a condition is true, for a reason.
func has(kind batchv1.JobConditionType, reason string) func(*batchv1.Job) error {
	return func(j *batchv1.Job) error {
		if c := jobCondition(j, kind); c == nil || c.Reason != reason {
			return fmt.Errorf("no condition %s for %q: %+v", kind, reason, j.Status.Conditions)
		}
		return nil
	}
}

// bound waits for n pods that have nodes and stay, by name.
func (c *cluster) bound(selector string, n int) []corev1.Pod {
	c.t.Helper()
	var live []corev1.Pod
	c.pods(selector, func(pods []corev1.Pod) error {
		live = slices.DeleteFunc(pods, func(p corev1.Pod) bool {
			return p.DeletionTimestamp != nil || p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
		})
		return want("pods with nodes", len(live), n)
	})
	return live
}

// terminate does what a kubelet does with the pods of a job that are deleted.
func (c *cluster) terminate(selector string) {
	c.t.Helper()
	pods := c.pods(selector, func(pods []corev1.Pod) error {
		if slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
		}) {
			return fmt.Errorf("a pod of %s is not being deleted", selector)
		}
		return nil
	})
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			c.play(p.Name, exited(143))
			c.deletePod(p.Name)
		}
	}
}

func graceful(j *batchv1.Job) { j.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(30)) }

func TestStatusOfAJob(t *testing.T) {
	c := start(t, 0)
	c.node("node")
	c.createJob(job("work", indexed(2)))
	c.jobUntil("work", func(j *batchv1.Job) error { return want("active", j.Status.Active, 2) })
	jobs := c.BatchV1().Jobs(ns)
	patched := must(jobs.Patch(c.ctx, "work", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"patchedstatus":"true"}},"status":{"conditions":[{"type":"Custom","status":"True"}]}}`), metav1.PatchOptions{}, "status"))(c)
	if patched.Annotations["patchedstatus"] != "true" || jobCondition(patched, "Custom") == nil {
		t.Errorf("patched: %+v", patched)
	}
	replaced := edit(c, statusOf{jobs}, "work", func(j *batchv1.Job) {
		j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: "Replaced", Status: corev1.ConditionTrue})
		j.Spec.Parallelism = new(int32(7))
	})
	if jobCondition(replaced, "Replaced") == nil || *replaced.Spec.Parallelism != 2 {
		t.Errorf("replaced: %+v", replaced)
	}
	read := must(c.dynamic.Resource(batchv1.SchemeGroupVersion.WithResource("jobs")).Namespace(ns).Get(c.ctx, "work", metav1.GetOptions{}, "status"))(c)
	if condition(read, "Custom") == nil || condition(read, "Replaced") == nil {
		t.Errorf("/status: %v", read.Object["status"])
	}
}

func TestLifeOfJobs(t *testing.T) {
	c := start(t, 1)
	jobs := c.BatchV1().Jobs(ns)
	w := must(c.BatchV1().Jobs("").Watch(c.ctx, labelled("app=work")))(c)
	defer w.Stop()
	c.createJob(job("work", indexed(4), suspended))
	c.jobUntil("work", has(batchv1.JobSuspended, "JobSuspended"))
	patched := must(jobs.Patch(c.ctx, "work", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"stage":"patched"}}}`), metav1.PatchOptions{}))(c)
	if patched.Labels["stage"] != "patched" {
		t.Errorf("patched: %v", patched.Labels)
	}
	edit(c, jobs, "work", func(j *batchv1.Job) { j.Annotations = map[string]string{"updated": "true"} })
	if j := must(jobs.Get(c.ctx, "work", metav1.GetOptions{}))(c); j.Annotations["updated"] != "true" {
		t.Errorf("replaced: %v", j.Annotations)
	}
	if l := must(c.BatchV1().Jobs("").List(c.ctx, labelled("stage=patched")))(c); len(l.Items) != 1 {
		t.Errorf("%d jobs of all namespaces", len(l.Items))
	}
	c.ok(jobs.DeleteCollection(c.ctx, background, labelled("stage=patched")))
	gone(c, jobs, named("work"), func(l *batchv1.JobList) int { return len(l.Items) })
	for e := range w.ResultChan() {
		if e.Type == "DELETED" {
			break
		}
	}
	c.pods("app=work", anyPods(0))
}

func TestVerbsOfCronJobs(t *testing.T) {
	c := start(t, 1)
	resources := must(c.Discovery().ServerResourcesForGroupVersion("batch/v1"))(c)
	for _, name := range []string{"cronjobs", "cronjobs/status"} {
		if !slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == name && r.Kind == "CronJob" && r.Namespaced }) {
			t.Errorf("discovery has no %s", name)
		}
	}
	cron := func(name string) *batchv1.CronJob {
		return &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels("cron")}, Spec: batchv1.CronJobSpec{
			Schedule: "* * * * *", Suspend: new(true), JobTemplate: batchv1.JobTemplateSpec{Spec: job("work").Spec},
		}}
	}
	jobs := c.BatchV1().CronJobs(ns)
	w := must(c.BatchV1().CronJobs("").Watch(c.ctx, labelled("app=cron")))(c)
	defer w.Stop()
	for _, name := range []string{"a", "b", "c"} {
		must(jobs.Create(c.ctx, cron(name), metav1.CreateOptions{}))(c)
	}
	if got := must(jobs.Get(c.ctx, "a", metav1.GetOptions{}))(c); got.Spec.ConcurrencyPolicy != batchv1.AllowConcurrent || *got.Spec.SuccessfulJobsHistoryLimit != 3 || *got.Spec.FailedJobsHistoryLimit != 1 {
		t.Errorf("defaults: %+v", got.Spec)
	}
	for _, in := range []string{ns, ""} {
		if l := must(c.BatchV1().CronJobs(in).List(c.ctx, labelled("app=cron")))(c); len(l.Items) != 3 {
			t.Errorf("%d in %q", len(l.Items), in)
		}
	}
	must(jobs.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"metadata":{"annotations":{"patched":"true"}}}`), metav1.PatchOptions{}))(c)
	updated := edit(c, jobs, "a", func(j *batchv1.CronJob) { j.Annotations["updated"] = "true" })
	if updated.Annotations["patched"] != "true" || updated.Annotations["updated"] != "true" {
		t.Errorf("annotations: %v", updated.Annotations)
	}

	at := metav1.NewTime(time.Now().Add(-time.Hour)).Rfc3339Copy()
	text, _ := json.Marshal(batchv1.CronJobStatus{LastScheduleTime: &at})
	patched := must(jobs.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"metadata":{"annotations":{"patchedstatus":"true"}},"status":`+string(text)+`}`), metav1.PatchOptions{}, "status"))(c)
	if !patched.Status.LastScheduleTime.Equal(&at) || patched.Annotations["patchedstatus"] != "true" {
		t.Errorf("a patched status: %+v", patched)
	}
	later := metav1.NewTime(at.Add(time.Minute))
	patched.Status.LastScheduleTime, patched.Spec.Schedule = &later, "0 0 * * *"
	if u := must(jobs.UpdateStatus(c.ctx, patched, metav1.UpdateOptions{}))(c); !u.Status.LastScheduleTime.Equal(&later) || u.Spec.Schedule != "* * * * *" {
		t.Errorf("an updated status: %+v", u)
	}
	read := must(c.dynamic.Resource(batchv1.SchemeGroupVersion.WithResource("cronjobs")).Namespace(ns).Get(c.ctx, "a", metav1.GetOptions{}, "status"))(c)
	if got := read.Object["status"].(map[string]any)["lastScheduleTime"]; got != later.UTC().Format(time.RFC3339) {
		t.Errorf("/status: %v", got)
	}

	c.ok(jobs.Delete(c.ctx, "a", metav1.DeleteOptions{}))
	c.ok(jobs.DeleteCollection(c.ctx, metav1.DeleteOptions{}, labelled("app=cron")))
	gone(c, jobs, metav1.ListOptions{}, func(l *batchv1.CronJobList) int { return len(l.Items) })
	events := map[string]string{}
	for len(events) < 3 || strings.Count(fmt.Sprint(events), "DELETED") < 3 {
		select {
		case e, open := <-w.ResultChan():
			j, ok := e.Object.(*batchv1.CronJob)
			if !open || !ok {
				t.Fatalf("watch: %+v", e)
			}
			events[j.Name] += string(e.Type) + " "
		case <-c.ctx.Done():
			t.Fatalf("events: %v", events)
		}
	}
	if got := events["a"]; got != "ADDED MODIFIED MODIFIED MODIFIED MODIFIED DELETED " {
		t.Errorf("events of a: %s", got)
	}
	c.pods("app=work", anyPods(0))
}

// KEP-3329.
func TestPodFailurePolicies(t *testing.T) {
	c := start(t, 0)
	c.node("node")
	jobs := c.BatchV1().Jobs(ns)
	ignore := batchv1.PodFailurePolicyRule{
		Action:          batchv1.PodFailurePolicyActionIgnore,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
	}
	onExit := func(action batchv1.PodFailurePolicyAction, codes ...int32) batchv1.PodFailurePolicyRule {
		return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: codes,
		}}
	}
	policy := func(rules ...batchv1.PodFailurePolicyRule) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Spec.PodFailurePolicy, j.Spec.BackoffLimit = &batchv1.PodFailurePolicy{Rules: rules}, new(int32(0))
		}
	}
	for _, bad := range []struct {
		message string
		change  func(*batchv1.Job)
	}{
		{"spec.podFailurePolicy.rules: Too many: 21: must have at most 20 items", policy(slices.Repeat([]batchv1.PodFailurePolicyRule{ignore}, 21)...)},
		{`spec.template.spec.restartPolicy: Invalid value: "OnFailure": only "Never" is supported when podFailurePolicy is specified`, func(j *batchv1.Job) {
			policy(ignore)(j)
			j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		}},
		{`spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"`, func(j *batchv1.Job) {
			policy(ignore)(j)
			j.Spec.PodReplacementPolicy = new(batchv1.TerminatingOrFailed)
		}},
		{`spec.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator`, policy(onExit(batchv1.PodFailurePolicyActionFailJob, 0))},
	} {
		_, err := jobs.Create(c.ctx, job("bad", bad.change), metav1.CreateOptions{})
		c.refused(err, bad.message)
	}

	// Evicted: replaced, and not counted although no failure is allowed.
	c.createJob(job("work", indexed(1), graceful, policy(onExit(batchv1.PodFailurePolicyActionCount, 3), ignore, onExit(batchv1.PodFailurePolicyActionFailJob, 42))))
	first := c.bound("app=work", 1)[0]
	c.play(first.Name, running(time.Now()))
	c.ok(c.CoreV1().Pods(ns).EvictV1(c.ctx, evictionOf(first.Name)))
	evicted := c.pod(first.Name, func(p *corev1.Pod) error { return want("goes", p.DeletionTimestamp != nil, true) })
	if d := podCondition(evicted, corev1.DisruptionTarget); d.Status != corev1.ConditionTrue || d.Reason != "EvictionByEvictionAPI" || d.Message != "Eviction API: evicting" {
		t.Errorf("evicted: %+v", d)
	}
	c.play(first.Name, exited(143))
	c.deletePod(first.Name)
	second := c.bound("app=work", 1)[0]
	if j := must(jobs.Get(c.ctx, "work", metav1.GetOptions{}))(c); j.Status.Failed != 0 || second.UID == first.UID {
		t.Errorf("after an eviction: %+v", j.Status)
	}

	// Tainted: the same.
	c.play(second.Name, running(time.Now()))
	edit(c, c.CoreV1().Nodes(), "node", func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "example.com/out", Effect: corev1.TaintEffectNoExecute})
	})
	tainted := c.pod(second.Name, func(p *corev1.Pod) error { return want("goes", p.DeletionTimestamp != nil, true) })
	if d := podCondition(tainted, corev1.DisruptionTarget); d.Status != corev1.ConditionTrue || d.Reason != "DeletionByTaintManager" || d.Message != "Taint manager: deleting due to NoExecute taint" {
		t.Errorf("tainted: %+v", d)
	}
	edit(c, c.CoreV1().Nodes(), "node", func(n *corev1.Node) {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "example.com/out" })
	})
	c.play(second.Name, exited(143))
	c.deletePod(second.Name)
	third := c.bound("app=work", 1)[0]

	// A bug in the software: no retry.
	c.play(third.Name, exited(42))
	failed := c.jobUntil("work", has(batchv1.JobFailed, "PodFailurePolicy"))
	target := jobCondition(failed, batchv1.JobFailureTarget)
	message := fmt.Sprintf("Container c for pod default/%s failed with exit code 42 matching FailJob rule at index 2", third.Name)
	if target == nil || target.Reason != "PodFailurePolicy" || target.Message != message || jobCondition(failed, batchv1.JobFailed).Message != message {
		t.Errorf("conditions: %+v, want %s", failed.Status.Conditions, message)
	}
	if failed.Status.Failed != 1 || jobCondition(failed, batchv1.JobSuccessCriteriaMet) != nil {
		t.Errorf("status: %+v", failed.Status)
	}
}

// many are so many indexes, one by one: more than 64 KiB of 15 000.
func many(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprint(2*i))
	}
	return strings.Join(list, ",")
}

// KEP-3998.
func TestSuccessPolicies(t *testing.T) {
	c := start(t, 0)
	c.node("node")
	jobs := c.BatchV1().Jobs(ns)
	policy := func(rules ...batchv1.SuccessPolicyRule) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: rules} }
	}
	for _, bad := range []struct {
		message string
		change  []func(*batchv1.Job)
	}{
		{`spec.successPolicy: Invalid value`, []func(*batchv1.Job){policy(batchv1.SuccessPolicyRule{SucceededCount: new(int32(1))})}},
		{`spec.successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified`, []func(*batchv1.Job){indexed(4), policy()}},
		{`spec.successPolicy.rules[0].succeededCount: Invalid value: 5: must be less than or equal to 4 (the number of specified completions)`, []func(*batchv1.Job){indexed(4), policy(batchv1.SuccessPolicyRule{SucceededCount: new(int32(5))})}},
		{`spec.successPolicy.rules[0].succeededCount: Invalid value: 4: must be less than or equal to 3 (the number of indexes in the specified succeededIndexes field)`, []func(*batchv1.Job){indexed(6), policy(batchv1.SuccessPolicyRule{SucceededIndexes: new("0,2-3"), SucceededCount: new(int32(4))})}},
		{`spec.successPolicy.rules: Too many: 21: must have at most 20 items`, []func(*batchv1.Job){indexed(4), policy(slices.Repeat([]batchv1.SuccessPolicyRule{{SucceededCount: new(int32(1))}}, 21)...)}},
		{`spec.successPolicy.rules[0].succeededIndexes: Too long: may not be more than 65536 bytes`, []func(*batchv1.Job){indexed(40_000), policy(batchv1.SuccessPolicyRule{SucceededIndexes: new(many(15_000))})}},
	} {
		_, err := jobs.Create(c.ctx, job("bad", bad.change...), metav1.CreateOptions{})
		c.refused(err, bad.message)
	}

	c.createJob(job("work", indexed(10), graceful, policy(batchv1.SuccessPolicyRule{SucceededIndexes: new("0,2-3"), SucceededCount: new(int32(1))})))
	_, err := jobs.Patch(c.ctx, "work", types.MergePatchType, []byte(`{"spec":{"successPolicy":{"rules":[{"succeededCount":2}]}}}`), metav1.PatchOptions{})
	c.refused(err, "spec.successPolicy: Invalid value")
	pods := c.bound("app=work", 10)
	for _, p := range pods {
		c.play(p.Name, running(time.Now()))
	}
	play := func(index string, code int32) {
		t.Helper()
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Annotations[batchv1.JobCompletionIndexAnnotation] == index })
		c.play(pods[i].Name, exited(code))
	}
	play("5", 0) // not one that counts
	c.jobUntil("work", func(j *batchv1.Job) error {
		return all(want("succeeded", j.Status.Succeeded, 1), want("met", jobCondition(j, batchv1.JobSuccessCriteriaMet) == nil, true))
	})
	play("2", 0)
	met := c.jobUntil("work", has(batchv1.JobSuccessCriteriaMet, "SuccessPolicy"))
	if jobCondition(met, batchv1.JobComplete) != nil || jobCondition(met, batchv1.JobSuccessCriteriaMet).Message != "Matched rules at index 0" {
		t.Errorf("conditions while pods are terminating: %+v", met.Status.Conditions)
	}
	c.terminate("app=work")
	done := c.jobUntil("work", has(batchv1.JobComplete, "SuccessPolicy"))
	if done.Status.CompletedIndexes != "2,5" || jobCondition(done, batchv1.JobFailed) != nil || jobCondition(done, batchv1.JobFailureTarget) != nil || done.Status.CompletionTime == nil {
		t.Errorf("done: %+v", done.Status)
	}

	// Plain completion meets the criteria as well.
	c.createJob(job("plain", indexed(1)))
	c.play(c.bound("app=plain", 1)[0].Name, exited(0))
	c.jobUntil("plain", func(j *batchv1.Job) error {
		return all(has(batchv1.JobSuccessCriteriaMet, "CompletionsReached")(j), has(batchv1.JobComplete, "CompletionsReached")(j))
	})

	// What fails the job is looked at first.
	c.createJob(job("both", indexed(2), policy(batchv1.SuccessPolicyRule{SucceededIndexes: new("0")}), func(j *batchv1.Job) {
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:      batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}},
		}}}
	}))
	both := c.bound("app=both", 2)
	c.play(both[1].Name, exited(42))
	failed := c.jobUntil("both", has(batchv1.JobFailureTarget, "PodFailurePolicy"))
	if jobCondition(failed, batchv1.JobSuccessCriteriaMet) != nil {
		t.Errorf("conditions: %+v", failed.Status.Conditions)
	}
}
