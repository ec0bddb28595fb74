package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	stdsync "sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/controllers"
)

// maxUncounted bounds the UIDs that a status carries.
const maxUncounted = 500

// track counts pods that have ended, in three steps that can be interrupted
// anywhere: the status names them as uncounted, their finalizers go, and the
// status counts those it named whose finalizer is gone. The condition that ends
// the Job is the last to be written, once nothing is left to count.
func (c *Controller) track(ctx context.Context, current *batchv1.Job, s *sync) error {
	s.countReleased(s.pods)
	done, all := s.name()
	s.announce()
	current, err := c.write(ctx, current, s)
	if err != nil {
		return err
	}
	for _, action := range s.judged {
		c.measure.judged.WithLabelValues(string(action)).Inc()
	}
	released, err := c.release(ctx, done)
	s.countUIDs(func(uid types.UID) bool { return released[uid] })
	final := s.end()
	ends := err == nil && all && s.settled()
	if ends {
		s.setCondition(final)
		if final.Type == batchv1.JobComplete {
			s.job.Status.CompletionTime = &metav1.Time{Time: s.now}
		}
	}
	_, writeErr := c.write(ctx, current, s)
	if ends && writeErr == nil {
		c.report(s.job, final)
		c.measure.ended(current, final)
	}
	if err == nil && writeErr == nil && !all {
		c.loop.EnqueueObject(s.job)
	}
	return errors.Join(err, writeErr)
}

// countReleased counts pods named earlier that are gone or have lost their finalizer since.
func (s *sync) countReleased(pods []*corev1.Pod) {
	held := map[types.UID]bool{}
	for _, pod := range pods {
		if tracked(pod) {
			held[pod.UID] = true
		}
	}
	s.countUIDs(func(uid types.UID) bool { return !held[uid] })
}

func (s *sync) countUIDs(counted func(types.UID) bool) {
	u := s.job.Status.UncountedTerminatedPods
	before := len(u.Succeeded)
	u.Succeeded = slices.DeleteFunc(u.Succeeded, counted)
	if !s.indexed() {
		s.job.Status.Succeeded += int32(before - len(u.Succeeded))
	}
	before = len(u.Failed)
	u.Failed = slices.DeleteFunc(u.Failed, counted)
	s.job.Status.Failed += int32(before - len(u.Failed))
}

// name adds the pods that ended to the uncounted ones, or their indexes to the
// completed ones, and returns those whose finalizer can go then. all is false
// where the status has no room for more.
func (s *sync) name() (done []*corev1.Pod, all bool) {
	u := s.job.Status.UncountedTerminatedPods
	failsAll := s.finish != nil && s.finish.Type == batchv1.JobFailureTarget
	var completed []int
	all = true
	for _, pod := range s.pods {
		if !s.releasable(pod) {
			continue
		}
		if len(completed)+len(u.Succeeded)+len(u.Failed) >= maxUncounted {
			all = false
			break
		}
		done = append(done, pod)
		switch {
		case s.uncounted[pod.UID] || s.indexed() && !s.hasIndex(pod):
		case pod.Status.Phase == corev1.PodSucceeded:
			if !s.indexed() {
				u.Succeeded = append(u.Succeeded, pod.UID)
			} else if i := indexOf(pod); !s.succeededBefore.has(i) {
				completed = append(completed, i)
			}
		case s.failedPod(pod) || failsAll:
			v := judgePod(s.job.Spec.PodFailurePolicy, pod)
			if v.action != "" {
				s.judged = append(s.judged, v.action)
			}
			if v.counts() {
				u.Failed = append(u.Failed, pod.UID)
			}
		}
	}
	if s.indexed() {
		s.writeIndexes(completed)
	}
	return done, all
}

func (s *sync) writeIndexes(completed []int) {
	set := s.succeededBefore.with(completed)
	s.job.Status.Succeeded, s.job.Status.CompletedIndexes = int32(set.total()), set.String()
	if s.limitsPerIndex() {
		s.job.Status.FailedIndexes = new(s.failedIndexes.String())
	}
}

// releasable tells whether a pod no longer needs its finalizer.
func (s *sync) releasable(pod *corev1.Pod) bool {
	switch {
	case !tracked(pod):
		return false
	case s.job.DeletionTimestamp != nil || s.finish != nil || pod.Status.Phase == corev1.PodSucceeded:
		return true
	case !s.failedPod(pod):
		return false
	}
	kept := s.replaceable[indexOf(pod)]
	return kept == nil || kept.UID != pod.UID
}

// announce writes the condition that tells how the Job will end before it has ended.
func (s *sync) announce() {
	if s.finish != nil {
		s.setCondition(s.finish)
	}
}

// end is the condition that ends the Job, nil while it goes on.
func (s *sync) end() *batchv1.JobCondition {
	if s.finish == nil {
		return nil
	}
	t := batchv1.JobFailed
	if s.finish.Type == batchv1.JobSuccessCriteriaMet {
		t = batchv1.JobComplete
	}
	return s.condition(t, corev1.ConditionTrue, s.finish.Reason, s.finish.Message)
}

// settled tells whether the Job can end: all is counted and no pod still stops.
func (s *sync) settled() bool {
	u, st := s.job.Status.UncountedTerminatedPods, &s.job.Status
	return s.finish != nil && len(u.Succeeded) == 0 && len(u.Failed) == 0 && st.Active == 0 && *st.Terminating == 0
}

func (c *Controller) report(job *batchv1.Job, final *batchv1.JobCondition) {
	if final.Type == batchv1.JobComplete {
		if job.Spec.Completions != nil && job.Status.Succeeded > *job.Spec.Completions {
			c.events.Event(job, corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
		}
		c.events.Event(job, corev1.EventTypeNormal, "Completed", "Job completed")
		return
	}
	c.events.Event(job, corev1.EventTypeWarning, final.Reason, final.Message)
}

// release takes the finalizer off pods at the same time, and returns which have lost it.
func (c *Controller) release(ctx context.Context, pods []*corev1.Pod) (map[types.UID]bool, error) {
	released := map[types.UID]bool{}
	var mu stdsync.Mutex
	var errs []error
	var wg stdsync.WaitGroup
	for _, pod := range pods {
		wg.Go(func() {
			err := c.removeFinalizer(ctx, pod)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			} else {
				released[pod.UID] = true
			}
		})
	}
	wg.Wait()
	return released, errors.Join(errs...)
}

func (c *Controller) removeFinalizer(ctx context.Context, pod *corev1.Pod) error {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":[%q]}}`, pod.UID, batchv1.JobTrackingFinalizer)
	_, err := c.pods.Patch(ctx, pod.Namespace, pod.Name, types.StrategicMergePatchType, patch)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) && c.replaced(pod) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove finalizer of pod %s: %w", pod.Name, err)
	}
	return nil
}

// replaced tells whether the pod's name is another pod's by now.
func (c *Controller) replaced(pod *corev1.Pod) bool {
	current, ok := c.pods.Cached(pod.Namespace, pod.Name)
	return !ok || current.UID != pod.UID
}

// releaseLeft takes the finalizer off pods whose Job is gone or has ended.
func (c *Controller) releaseLeft(ctx context.Context, key controllers.Key, job *batchv1.Job, exists bool) error {
	left := slices.DeleteFunc(c.pods.ByIndex(trackedIndex, key.String()), func(pod *corev1.Pod) bool {
		return exists && metav1.GetControllerOfNoCopy(pod).UID == job.UID && !(finished(job) && managed(job))
	})
	_, err := c.release(ctx, left)
	return err
}

// releaseOrphan takes the finalizer off a pod that no Job controls any more.
func (c *Controller) releaseOrphan(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	pod, ok := c.pods.Cached(key.Namespace, key.Name)
	if !ok || !tracked(pod) || metav1.GetControllerOfNoCopy(pod) != nil {
		return controllers.Result{}, nil
	}
	return controllers.Result{}, c.removeFinalizer(ctx, pod)
}
