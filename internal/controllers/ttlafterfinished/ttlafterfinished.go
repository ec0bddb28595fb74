// Package ttlafterfinished deletes Jobs that ended a while ago: as many seconds
// as spec.ttlSecondsAfterFinished says.
package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

// Controller deletes Jobs whose time is over. It writes as the service account
// ttl-after-finished-controller.
type Controller struct {
	loop  *controllers.Loop
	jobs  *client.Informer[*batchv1.Job]
	clock clock.PassiveClock
	late  prometheus.Histogram // deletions after the time
}

// New returns the controller.
func New(c controllers.Config) *Controller {
	t := &Controller{jobs: client.Shared[*batchv1.Job](c.Cache), clock: c.Clock,
		late: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ttl_after_finished_controller_job_deletion_duration_seconds", Help: "[ALPHA] The time it took to delete the job since it became eligible for deletion",
			Buckets: prometheus.ExponentialBuckets(0.1, 2, 14),
		})}
	c.Register(t.late)
	t.loop = controllers.NewLoop("ttl_jobs_to_delete", c, t.reconcile)
	t.jobs.OnChange(func(_, job *batchv1.Job) {
		if job == nil {
			return
		}
		if _, expires := expiry(job); expires {
			t.loop.EnqueueObject(job)
		}
	})
	return t
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// expiry is when a Job that has ended is to be deleted.
func expiry(job *batchv1.Job) (at time.Time, expires bool) {
	if job.Spec.TTLSecondsAfterFinished == nil || job.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			if c.LastTransitionTime.IsZero() {
				return time.Time{}, false // whoever manages the Job did not say when
			}
			return c.LastTransitionTime.Add(time.Duration(*job.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}

// reconcile deletes a Job once it has expired, after reading it past every cache:
// its owner may have given it more time.
func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	job, ok := c.jobs.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	if left, expires := c.left(job); !expires || left > 0 {
		return controllers.Result{After: left}, nil
	}
	job, err := c.jobs.Get(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		return controllers.Result{}, nil
	}
	if err != nil {
		return controllers.Result{}, fmt.Errorf("get job: %w", err)
	}
	if left, expires := c.left(job); !expires || left > 0 {
		return controllers.Result{After: left}, nil
	}
	uid := job.UID
	_, err = c.jobs.Delete(ctx, key.Namespace, key.Name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationForeground),
		Preconditions:     &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return controllers.Result{}, fmt.Errorf("delete expired job: %w", err)
	}
	if at, expires := expiry(job); expires && err == nil {
		c.late.Observe(c.clock.Since(at).Seconds())
	}
	return controllers.Result{}, nil
}

func (c *Controller) left(job *batchv1.Job) (time.Duration, bool) {
	at, expires := expiry(job)
	if !expires {
		return 0, false
	}
	return max(0, at.Sub(c.clock.Now())), true
}
