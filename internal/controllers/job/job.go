// Package job runs the pods of a Job until enough of them have succeeded, or too
// many have failed. Every pod keeps a finalizer until the Job's status has
// counted how it ended, so that no end is ever lost or counted twice.
package job

import (
	"context"
	"errors"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/ownership"
	"proa/internal/controllers/podcontrol"
)

const (
	name         = "job-controller"
	trackedIndex = "tracked by job"
)

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

// Controller reconciles Jobs.
type Controller struct {
	loop    *controllers.Loop
	orphans *controllers.Loop // pods with the finalizer and without a Job
	jobs    *client.Informer[*batchv1.Job]
	pods    *client.Informer[*corev1.Pod]
	claims  *ownership.Claims[*corev1.Pod]
	control *podcontrol.Control
	events  controllers.EventRecorder
	clock   clock.PassiveClock
	measure *measures
}

// New returns the Job controller.
func New(c controllers.Config) *Controller {
	events := c.Events(name)
	j := &Controller{
		jobs:    client.Shared[*batchv1.Job](c.Cache),
		pods:    client.Shared[*corev1.Pod](c.Cache),
		events:  events,
		clock:   c.Clock,
		measure: newMeasures(),
	}
	c.Register(j.measure.collectors()...)
	j.claims = ownership.New(j.pods, kind)
	j.claims.Finalizers = []string{batchv1.JobTrackingFinalizer}
	j.control = podcontrol.New(j.pods, events)
	j.loop = controllers.NewLoop("job", c, j.reconcile)
	j.orphans = controllers.NewLoop("job_orphan_pod", c, j.releaseOrphan)
	j.pods.AddIndex(trackedIndex, func(pod *corev1.Pod) []string {
		if key, ok := j.claims.OwnerKey(pod); ok && tracked(pod) {
			return []string{key.String()}
		}
		return nil
	})
	j.jobs.OnChange(func(old, job *batchv1.Job) {
		if job == nil {
			job = old // its pods keep the finalizer
		} else if old == nil && !managed(job) {
			j.measure.foreign.WithLabelValues(*job.Spec.ManagedBy).Inc()
		}
		j.loop.EnqueueObject(job)
	})
	j.claims.OnChange(j.loop.Enqueue, j.adopters)
	j.pods.OnChange(func(old, pod *corev1.Pod) {
		j.measure.holds(old, pod)
		if pod != nil && tracked(pod) && metav1.GetControllerOfNoCopy(pod) == nil {
			j.orphans.EnqueueObject(pod)
		}
	})
	return j
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- c.orphans.Run(ctx) }()
	return errors.Join(c.loop.Run(ctx), <-done)
}

func (c *Controller) adopters(pod *corev1.Pod) []controllers.Key {
	if len(pod.Labels) == 0 {
		return nil
	}
	var keys []controllers.Key
	for _, job := range c.jobs.Select(pod.Namespace, labels.Everything()) {
		selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(pod.Labels)) {
			keys = append(keys, controllers.Key{Namespace: job.Namespace, Name: job.Name})
		}
	}
	return keys
}

func finished(job *batchv1.Job) bool {
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// managed tells whether this controller looks after the Job (KEP-4368).
func managed(job *batchv1.Job) bool {
	return job.Spec.ManagedBy == nil || *job.Spec.ManagedBy == batchv1.JobControllerName
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	current, ok := c.jobs.Cached(key.Namespace, key.Name)
	if err := c.releaseLeft(ctx, key, current, ok); err != nil || !ok || !managed(current) || finished(current) {
		return controllers.Result{}, err
	}
	if m := current.Spec.CompletionMode; m != nil && *m != batchv1.NonIndexedCompletion && *m != batchv1.IndexedCompletion {
		c.events.Event(current, corev1.EventTypeWarning, "UnknownCompletionMode", "Skipped Job sync because completion mode is unknown")
		return controllers.Result{}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(current.Spec.Selector)
	if err != nil {
		return controllers.Result{}, nil // accepted by an older server; nothing it could select
	}
	pods, err := c.claims.Claim(ctx, current, selector, func(ctx context.Context) (client.Object, error) {
		return c.jobs.Get(ctx, key.Namespace, key.Name)
	})
	if err != nil {
		return controllers.Result{}, fmt.Errorf("claim pods: %w", err)
	}
	s := observe(current.DeepCopy(), pods, c.clock.Now())
	return c.sync(ctx, current, s, selector)
}

// sync creates or deletes pods, then brings the status up to date with them.
func (c *Controller) sync(ctx context.Context, current *batchv1.Job, s *sync, selector labels.Selector) (controllers.Result, error) {
	s.start()
	s.judge()
	p := s.planPods()
	began := c.clock.Now()
	result, err := c.carryOut(ctx, current, s, p, selector)
	c.measure.synced(current, p, err, c.clock.Since(began))
	return result, err
}

func (c *Controller) carryOut(ctx context.Context, current *batchv1.Job, s *sync, p plan, selector labels.Selector) (controllers.Result, error) {
	manageErr := c.apply(ctx, current, s, p)
	s.countPods(c.owned(s.job, selector))
	if s.finish == nil && s.job.Status.Active == 0 && s.completed() {
		s.finish = s.condition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	}
	if s.finish == nil && s.job.DeletionTimestamp == nil {
		c.noteSuspension(current, s)
	}
	if err := c.track(ctx, current, s); err != nil {
		return controllers.Result{}, errors.Join(manageErr, err)
	}
	wait := p.wait
	if left, limited := s.deadline(); limited && left > 0 {
		wait = podcontrol.Sooner(wait, left)
	}
	return controllers.Result{After: wait}, manageErr
}

func (c *Controller) owned(job *batchv1.Job, selector labels.Selector) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range c.claims.Owned(job.UID) {
		if selector.Matches(labels.Set(pod.Labels)) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// start notes when the Job began: its deadline counts from here.
func (s *sync) start() {
	if s.job.Status.StartTime == nil && !s.suspended() {
		s.job.Status.StartTime = &metav1.Time{Time: s.now}
	}
	if s.job.Status.UncountedTerminatedPods == nil {
		s.job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
}

func (s *sync) countPods(pods []*corev1.Pod) {
	var active, ready, going int32
	for _, pod := range pods {
		if podcontrol.Active(pod) {
			active++
			if podcontrol.Ready(pod) {
				ready++
			}
		}
		if terminating(pod) {
			going++
		}
	}
	s.job.Status.Active, s.job.Status.Ready, s.job.Status.Terminating = active, &ready, &going
}

// noteSuspension keeps the Suspended condition. A resumed Job starts anew, so
// that the time it was suspended does not count towards its deadline.
func (c *Controller) noteSuspension(current *batchv1.Job, s *sync) {
	if s.suspended() {
		if s.setCondition(s.condition(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended")) {
			c.events.Event(current, corev1.EventTypeNormal, "Suspended", "Job suspended")
			s.job.Status.StartTime = nil
		}
		return
	}
	if s.setCondition(s.condition(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed")) {
		c.events.Event(current, corev1.EventTypeNormal, "Resumed", "Job resumed")
		s.job.Status.StartTime = &metav1.Time{Time: s.now}
	}
}

func (c *Controller) apply(ctx context.Context, current *batchv1.Job, s *sync, p plan) error {
	if len(p.delete) > 0 {
		return c.remove(ctx, current, s, p.delete)
	}
	ref := c.claims.Reference(current)
	_, err := podcontrol.SlowStart(len(p.create), func(i int) error {
		_, err := c.control.Create(ctx, current, s.newPod(ref, p.create[i]))
		c.measure.made(s, err)
		if podcontrol.NamespaceGoes(err) {
			return nil
		}
		return err
	})
	return err
}

// remove deletes active pods. While the Job goes on they are no failures: they lose
// their finalizer first, so that nobody counts how they end.
func (c *Controller) remove(ctx context.Context, current *batchv1.Job, s *sync, pods []*corev1.Pod) error {
	if s.finish != nil {
		return c.control.DeleteAll(ctx, current, pods)
	}
	released, err := c.release(ctx, slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !tracked(pod) }))
	pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return tracked(pod) && !released[pod.UID] })
	return errors.Join(err, c.control.DeleteAll(ctx, current, pods))
}

func (c *Controller) write(ctx context.Context, current *batchv1.Job, s *sync) (*batchv1.Job, error) {
	if apiequality.Semantic.DeepEqual(current.Status, s.job.Status) {
		return current, nil
	}
	written, err := c.jobs.UpdateStatus(ctx, s.job.DeepCopy())
	if err != nil {
		return nil, fmt.Errorf("update status: %w", err)
	}
	s.job.ResourceVersion = written.ResourceVersion
	c.measure.counted(written, &current.Status)
	return written, nil
}
