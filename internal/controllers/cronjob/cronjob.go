// Package cronjob starts a Job at every time that a CronJob's schedule names.
package cronjob

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	_ "time/tzdata" // spec.timeZone works on hosts without a zone database

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/ownership"
	"proa/internal/controllers/podcontrol"
)

const name = "cronjob-controller"

var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

// Controller reconciles CronJobs.
type Controller struct {
	loop     *controllers.Loop
	cronJobs *client.Informer[*batchv1.CronJob]
	jobs     *client.Informer[*batchv1.Job]
	owned    *ownership.Claims[*batchv1.Job]
	events   controllers.EventRecorder
	clock    clock.PassiveClock
	late     prometheus.Histogram // Jobs that were created after their time
}

// New returns the CronJob controller.
func New(c controllers.Config) *Controller {
	j := &Controller{
		cronJobs: client.Shared[*batchv1.CronJob](c.Cache),
		jobs:     client.Shared[*batchv1.Job](c.Cache),
		events:   c.Events(name),
		clock:    c.Clock,
		late: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cronjob_controller_job_creation_skew_duration_seconds", Help: "[STABLE] Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
	}
	c.Register(j.late)
	j.owned = ownership.New(j.jobs, kind)
	j.loop = controllers.NewLoop("cronjob", c, j.reconcile)
	j.cronJobs.OnChange(j.changed)
	j.owned.OnChange(j.loop.Enqueue, func(*batchv1.Job) []controllers.Key { return nil }) // a CronJob adopts nothing
	return j
}

// changed has a CronJob looked at. With a new schedule that is at its next time: what
// the schedule says of the past was never due.
func (c *Controller) changed(old, cj *batchv1.CronJob) {
	if cj == nil {
		return
	}
	if old != nil && (old.Spec.Schedule != cj.Spec.Schedule || !ptr.Equal(old.Spec.TimeZone, cj.Spec.TimeZone)) {
		if s, _ := parse(cj); s != nil {
			c.loop.EnqueueAfter(controllers.Key{Namespace: cj.Namespace, Name: cj.Name}, s.next(cj, c.clock.Now()))
			return
		}
	}
	c.loop.EnqueueObject(cj)
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// reconcile takes note of Jobs that ended, starts the one that is due, removes
// old ones and comes back at the next time of the schedule.
func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	current, ok := c.cronJobs.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil // garbage collection removes its Jobs
	}
	jobs := c.owned.Owned(current.UID)
	cj := current.DeepCopy()
	cleanErr := c.cleanup(ctx, current, cj, jobs)
	if err := c.noteJobs(ctx, current, cj, jobs); err != nil {
		return controllers.Result{}, errors.Join(cleanErr, err)
	}
	wait, startErr := c.start(ctx, current, cj)
	var writeErr error
	if !apiequality.Semantic.DeepEqual(current.Status, cj.Status) {
		if _, writeErr = c.cronJobs.UpdateStatus(ctx, cj); writeErr != nil {
			writeErr = fmt.Errorf("update status: %w", writeErr)
		}
	}
	return controllers.Result{After: wait}, errors.Join(startErr, cleanErr, writeErr)
}

func ending(job *batchv1.Job) batchv1.JobConditionType {
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

func isActive(cj *batchv1.CronJob, uid types.UID) bool {
	return slices.ContainsFunc(cj.Status.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

func dropActive(cj *batchv1.CronJob, uid types.UID) {
	cj.Status.Active = slices.DeleteFunc(cj.Status.Active, func(ref corev1.ObjectReference) bool { return ref.UID == uid })
}

// noteJobs keeps the list of active Jobs and the time of the last success.
func (c *Controller) noteJobs(ctx context.Context, current, cj *batchv1.CronJob, jobs []*batchv1.Job) error {
	children := map[types.UID]bool{}
	for _, job := range jobs {
		children[job.UID] = true
		end, active := ending(job), isActive(cj, job.UID)
		switch {
		case end == "" && !active:
			c.events.Eventf(current, corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", job.Name)
		case end != "" && active:
			dropActive(cj, job.UID)
			c.events.Eventf(current, corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", job.Name, end)
		}
		if end != batchv1.JobComplete {
			continue
		}
		last := cj.Status.LastSuccessfulTime
		if last == nil || job.Status.CompletionTime != nil && job.Status.CompletionTime.After(last.Time) {
			cj.Status.LastSuccessfulTime = job.Status.CompletionTime
		}
	}
	for _, ref := range slices.Clone(cj.Status.Active) {
		if children[ref.UID] {
			continue
		}
		_, err := c.jobs.Get(ctx, cj.Namespace, ref.Name)
		switch {
		case apierrors.IsNotFound(err):
			c.events.Eventf(current, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			dropActive(cj, ref.UID)
		case err != nil:
			return fmt.Errorf("get job %s: %w", ref.Name, err)
		}
	}
	return nil
}

// start creates the Job that is due, if there is one, and returns the time until the next is.
func (c *Controller) start(ctx context.Context, current, cj *batchv1.CronJob) (time.Duration, error) {
	if cj.DeletionTimestamp != nil {
		return 0, nil
	}
	s, problem := parse(cj)
	suspended := cj.Spec.Suspend != nil && *cj.Spec.Suspend
	if problem != nil && (!suspended || problem.reason == unknownZone) {
		c.events.Event(current, corev1.EventTypeWarning, problem.reason, problem.message)
	}
	if s == nil || suspended {
		return 0, nil // a change of spec comes back here
	}
	now := c.clock.Now()
	due, missed, err := s.due(cj, now)
	if err != nil {
		c.events.Eventf(current, corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : %s", cj.Spec.Schedule, err)
		return 0, nil
	}
	if missed > manyMissed {
		c.events.Event(current, corev1.EventTypeWarning, "TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	next := s.next(cj, now)
	if due.IsZero() || !c.mayStart(current, cj, due, now) {
		return next, nil
	}
	if cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent {
		if err := c.replace(ctx, current, cj); err != nil {
			return 0, err
		}
	}
	return next, c.create(ctx, current, cj, due)
}

func (c *Controller) mayStart(current, cj *batchv1.CronJob, due, now time.Time) bool {
	name := jobName(cj, due)
	started := slices.ContainsFunc(cj.Status.Active, func(ref corev1.ObjectReference) bool { return ref.Name == name })
	switch deadline := cj.Spec.StartingDeadlineSeconds; {
	case deadline != nil && due.Add(time.Duration(*deadline)*time.Second).Before(now):
		c.events.Eventf(current, corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", due.UTC().Format(time.RFC1123Z))
	case started || cj.Status.LastScheduleTime != nil && cj.Status.LastScheduleTime.Time.Equal(due):
	case cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(cj.Status.Active) > 0:
		c.events.Event(current, corev1.EventTypeNormal, "JobAlreadyActive",
			"Not starting job because prior execution is running and concurrency policy is Forbid")
	default:
		return true
	}
	return false
}

func (c *Controller) replace(ctx context.Context, current, cj *batchv1.CronJob) error {
	for _, ref := range slices.Clone(cj.Status.Active) {
		job, err := c.jobs.Get(ctx, cj.Namespace, ref.Name)
		if err != nil {
			c.events.Eventf(current, corev1.EventTypeWarning, "FailedGet", "Get job: %v", err)
			return fmt.Errorf("get job %s: %w", ref.Name, err)
		}
		if err := c.delete(ctx, current, cj, job); err != nil {
			return err
		}
	}
	return nil
}

func (c *Controller) delete(ctx context.Context, current, cj *batchv1.CronJob, job *batchv1.Job) error {
	uid := job.UID
	_, err := c.jobs.Delete(ctx, job.Namespace, job.Name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground),
		Preconditions:     &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		c.events.Eventf(current, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return fmt.Errorf("delete job %s: %w", job.Name, err)
	}
	dropActive(cj, job.UID)
	c.events.Eventf(current, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", job.Name)
	return nil
}

// create starts the Job of one time. Its name follows from the time, so that one
// that was created before and is missing in the status is found and not repeated.
func (c *Controller) create(ctx context.Context, current, cj *batchv1.CronJob, due time.Time) error {
	wanted := newJob(cj, c.owned.Reference(cj), due)
	jobName := wanted.Name
	job, err := c.jobs.Create(ctx, wanted)
	switch {
	case podcontrol.NamespaceGoes(err):
		return nil
	case apierrors.IsAlreadyExists(err):
		if job, err = c.jobs.Get(ctx, cj.Namespace, jobName); err != nil {
			return fmt.Errorf("get job %s: %w", jobName, err)
		}
		if !metav1.IsControlledBy(job, cj) {
			return nil // it is another's, and so is the status
		}
		if ending(job) != "" {
			cj.Status.LastScheduleTime = &metav1.Time{Time: due}
			return nil
		}
	case err != nil:
		c.events.Eventf(current, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return fmt.Errorf("create job %s: %w", jobName, err)
	default:
		c.late.Observe(job.CreationTimestamp.Sub(due).Seconds())
		c.events.Eventf(current, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", job.Name)
	}
	cj.Status.Active = append(cj.Status.Active, corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job",
		Namespace: job.Namespace, Name: job.Name, UID: job.UID, ResourceVersion: job.ResourceVersion,
	})
	cj.Status.LastScheduleTime = &metav1.Time{Time: due}
	return nil
}

// cleanup deletes the oldest Jobs beyond the history limits.
func (c *Controller) cleanup(ctx context.Context, current, cj *batchv1.CronJob, jobs []*batchv1.Job) error {
	if cj.DeletionTimestamp != nil {
		return nil
	}
	var errs []error
	for _, job := range planCleanup(cj, jobs) {
		errs = append(errs, c.delete(ctx, current, cj, job))
	}
	return errors.Join(errs...)
}
