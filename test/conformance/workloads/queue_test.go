package workloads

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const manager = "example.com/queue"

func managed(j *batchv1.Job) { j.Spec.ManagedBy = new(manager) }

// metrics reads what the server measures.
func (c *cluster) metrics() string {
	c.t.Helper()
	client := must(rest.HTTPClientFor(c.access))(c)
	defer client.CloseIdleConnections()
	request := must(http.NewRequestWithContext(c.ctx, http.MethodGet, c.access.Host+"/metrics", nil))(c)
	answer := must(client.Do(request))(c)
	defer answer.Body.Close()
	return string(must(io.ReadAll(answer.Body))(c))
}

// KEP-4368: a Job of another manager is its alone, from its first status to its last.
func TestAJobOfAnotherManagerIsLeftAlone(t *testing.T) {
	c := start(t, 1)
	jobs := c.BatchV1().Jobs(ns)
	for value, message := range map[string]string{
		"queue":                                  `spec.managedBy: Invalid value: "queue": must be a domain-prefixed path`,
		"example.com/" + strings.Repeat("a", 60): "spec.managedBy: Too long: may not be more than 63 bytes",
	} {
		_, err := jobs.Create(c.ctx, job("bad", func(j *batchv1.Job) { j.Spec.ManagedBy = &value }), metav1.CreateOptions{})
		c.refused(err, message)
	}
	created := c.createJob(job("foreign", indexed(2), managed))
	c.createJob(job("ours", func(j *batchv1.Job) { j.Spec.ManagedBy = new(batchv1.JobControllerName) }))
	c.jobUntil("ours", has(batchv1.JobComplete, "CompletionsReached")) // the controller works
	_, err := jobs.Patch(c.ctx, "foreign", types.MergePatchType, []byte(`{"spec":{"managedBy":null}}`), metav1.PatchOptions{})
	c.refused(err, "spec.managedBy: Invalid value")
	if j := must(jobs.Get(c.ctx, "foreign", metav1.GetOptions{}))(c); j.ResourceVersion != created.ResourceVersion {
		t.Errorf("touched: %+v", j)
	}
	c.pods("app=foreign", anyPods(0))

	// Its manager mirrors what it has run elsewhere; a status that makes no sense is refused.
	status := func(change func(*batchv1.JobStatus)) error {
		j, err := jobs.Get(c.ctx, "foreign", metav1.GetOptions{})
		c.ok(err)
		change(&j.Status)
		_, err = jobs.UpdateStatus(c.ctx, j, metav1.UpdateOptions{})
		return err
	}
	began := metav1.NewTime(time.Now().Add(-time.Minute).Truncate(time.Second))
	c.ok(status(func(s *batchv1.JobStatus) { s.StartTime, s.Active, s.Ready = &began, 2, new(int32(1)) }))
	complete := batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}
	met := batchv1.JobCondition{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue}
	for message, change := range map[string]func(*batchv1.JobStatus){
		"status.active: Invalid value: 2: active>0 is invalid for finished job": func(s *batchv1.JobStatus) {
			s.Conditions, s.CompletionTime = []batchv1.JobCondition{met, complete}, new(metav1.Now())
		},
		"cannot set Complete=True and Failed=true conditions": func(s *batchv1.JobStatus) {
			s.Active, s.Ready, s.CompletionTime = 0, nil, new(metav1.Now())
			s.Conditions = []batchv1.JobCondition{met, complete, {Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
		},
		"status.startTime: Invalid value: null: field is immutable for unsuspended job once set": func(s *batchv1.JobStatus) { s.StartTime = nil },
	} {
		c.refused(status(change), message)
	}
	c.ok(status(func(s *batchv1.JobStatus) { s.Conditions = []batchv1.JobCondition{met} }))
	c.ok(status(func(s *batchv1.JobStatus) {
		s.Active, s.Ready, s.Succeeded, s.CompletedIndexes, s.CompletionTime = 0, new(int32(0)), 2, "0,1", new(metav1.Now())
		s.Conditions = append(s.Conditions, complete)
	}))
	c.jobUntil("foreign", func(j *batchv1.Job) error {
		return all(has(batchv1.JobComplete, "")(j), want("start", j.Status.StartTime.Time.Unix(), began.Unix()))
	})
	c.pods("app=foreign", anyPods(0))
	if m := c.metrics(); !strings.Contains(m, `job_controller_jobs_by_external_controller_total{controller_name="`+manager+`"} 1`) {
		t.Error("job_controller_jobs_by_external_controller_total does not count the job")
	}
}

// queue admits Jobs as Kueue does: those that are created suspended wait until
// the cores of all that run leave room, and run where the queue says.
func queue(ctx context.Context, c *cluster, cores int64) error {
	w, err := c.BatchV1().Jobs(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	for range w.ResultChan() {
		list, err := c.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		free := cores
		for i := range list.Items {
			if j := &list.Items[i]; !*j.Spec.Suspend && jobCondition(j, batchv1.JobComplete) == nil {
				free -= coresOf(j)
			}
		}
		for i := range list.Items {
			j := &list.Items[i]
			if !*j.Spec.Suspend || suspendedCondition(j) == nil || coresOf(j) > free {
				continue // or nobody has seen yet that it waits
			}
			j.Spec.Suspend = new(false)
			j.Spec.Template.Spec.NodeSelector = map[string]string{"flavor": "reserved"}
			j.Spec.Template.Annotations = map[string]string{"admitted": "yes"}
			if _, err := c.BatchV1().Jobs(ns).Update(ctx, j, metav1.UpdateOptions{}); err != nil {
				break // seen anew with the next event
			}
			free -= coresOf(j)
		}
	}
	return nil
}

func coresOf(j *batchv1.Job) int64 {
	cpu := j.Spec.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]
	return cpu.Value() * int64(*j.Spec.Parallelism)
}

func TestAQueueAdmitsJobsAsThereIsRoom(t *testing.T) {
	c := start(t, 0)
	c.node("spare")
	c.node("reserved", func(n *corev1.Node) { n.Labels["flavor"] = "reserved" })
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() { ended <- queue(ctx, c, 4) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}()
	work := func(name string) *batchv1.Job {
		return job(name, indexed(3), suspended, func(j *batchv1.Job) {
			j.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		})
	}
	c.createJob(work("first"))
	pods := c.bound("app=first", 3)
	c.createJob(work("second"))
	c.jobUntil("second", has(batchv1.JobSuspended, "JobSuspended"))
	for _, p := range pods {
		if p.Spec.NodeName != "reserved" || p.Annotations["admitted"] != "yes" {
			t.Errorf("%s on %s: %v", p.Name, p.Spec.NodeName, p.Annotations)
		}
		c.play(p.Name, running(time.Now()))
	}
	c.jobUntil("first", func(j *batchv1.Job) error {
		if s := suspendedCondition(j); s == nil || s.Status != corev1.ConditionFalse || s.Reason != "JobResumed" {
			return fmt.Errorf("conditions: %+v", j.Status.Conditions)
		}
		return all(want("ready", *j.Status.Ready, 3), want("started", j.Status.StartTime != nil, true))
	})
	c.event("first", "Resumed", "Job resumed")
	c.event("second", "Suspended", "Job suspended")
	if j := must(c.BatchV1().Jobs(ns).Get(c.ctx, "second", metav1.GetOptions{}))(c); !*j.Spec.Suspend || j.Status.StartTime != nil || j.Status.Active != 0 {
		t.Errorf("the second: %+v", j.Status)
	}
	c.pods("app=second", anyPods(0))
	_, err := c.BatchV1().Jobs(ns).Patch(c.ctx, "first", types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"nodeSelector":null}}}}`), metav1.PatchOptions{})
	c.refused(err, "spec.template: Invalid value")

	for _, p := range pods {
		c.play(p.Name, exited(0))
	}
	c.jobUntil("first", has(batchv1.JobComplete, "CompletionsReached"))
	for _, p := range c.bound("app=second", 3) {
		c.play(p.Name, running(time.Now()))
	}
	c.jobUntil("second", func(j *batchv1.Job) error { return want("ready", *j.Status.Ready, 3) })
}

func suspendedCondition(j *batchv1.Job) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if j.Status.Conditions[i].Type == batchv1.JobSuspended {
			return &j.Status.Conditions[i]
		}
	}
	return nil
}
