package job

import (
	"math"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/controllers/podcontrol"
)

const (
	backoffBase = 10 * time.Second
	backoffMax  = 10 * time.Minute
)

// sync is one Job at one moment. job is the reconcile's own copy: its status is
// changed in place.
type sync struct {
	job  *batchv1.Job
	pods []*corev1.Pod
	now  time.Time

	uncounted map[types.UID]bool // ended pods that the status names already
	active    []*corev1.Pod
	succeeded int
	failed    int

	succeededBefore, succeededIndexes indexes
	failedIndexes                     indexes
	// replaceable holds, per index, the failed pod that its next pod will
	// replace: it carries the index's count of failures and so keeps its finalizer.
	replaceable map[int]*corev1.Pod

	finish *batchv1.JobCondition // how the Job ends, nil while it goes on

	judged []batchv1.PodFailurePolicyAction // what rules made of the pods that are named now
}

func observe(job *batchv1.Job, pods []*corev1.Pod, now time.Time) *sync {
	s := &sync{job: job, pods: pods, now: now, uncounted: map[types.UID]bool{}}
	if u := job.Status.UncountedTerminatedPods; u != nil {
		for _, uid := range slices.Concat(u.Succeeded, u.Failed) {
			s.uncounted[uid] = true
		}
		s.succeeded, s.failed = len(u.Succeeded), len(u.Failed)
	}
	s.succeeded += int(job.Status.Succeeded)
	s.failed += int(job.Status.Failed)
	var done []int
	for _, pod := range pods {
		if podcontrol.Active(pod) {
			s.active = append(s.active, pod)
		}
		if !s.counts(pod) || s.uncounted[pod.UID] {
			continue
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			s.succeeded++
			if s.indexed() {
				done = append(done, indexOf(pod))
			}
		case s.failedPod(pod) && judgePod(job.Spec.PodFailurePolicy, pod).counts():
			s.failed++
		}
	}
	if s.indexed() {
		s.observeIndexes(done)
	}
	return s
}

func (s *sync) observeIndexes(done []int) {
	s.succeededBefore = parseIndexes(s.job.Status.CompletedIndexes, s.completions())
	s.succeededIndexes = s.succeededBefore.with(done)
	s.succeeded = s.succeededIndexes.total()
	if !s.limitsPerIndex() {
		return
	}
	if f := s.job.Status.FailedIndexes; f != nil {
		s.failedIndexes = parseIndexes(*f, s.completions())
	}
	var failed []int
	for _, pod := range s.pods {
		if s.counts(pod) && s.failedPod(pod) && s.failsIndex(pod) {
			failed = append(failed, indexOf(pod))
		}
	}
	s.failedIndexes = s.failedIndexes.with(failed)
	s.observeReplaceable()
}

func (s *sync) observeReplaceable() {
	s.replaceable = map[int]*corev1.Pod{}
	running := map[int]bool{}
	for _, pod := range s.active {
		running[indexOf(pod)] = true
	}
	for _, pod := range s.pods {
		i := indexOf(pod)
		if !s.counts(pod) || !s.failedPod(pod) || running[i] || s.succeededIndexes.has(i) || s.failedIndexes.has(i) {
			continue
		}
		last, ok := s.replaceable[i]
		if !ok || allFailures(last) <= allFailures(pod) && !finishedAt(pod).Before(finishedAt(last)) {
			s.replaceable[i] = pod
		}
	}
}

func (s *sync) indexed() bool {
	return s.job.Spec.CompletionMode != nil && *s.job.Spec.CompletionMode == batchv1.IndexedCompletion
}

func (s *sync) limitsPerIndex() bool { return s.indexed() && s.job.Spec.BackoffLimitPerIndex != nil }

// replacesFailedOnly: a terminating pod keeps its place until it has ended (KEP-3939).
func (s *sync) replacesFailedOnly() bool {
	return s.job.Spec.PodReplacementPolicy != nil && *s.job.Spec.PodReplacementPolicy == batchv1.Failed
}

func (s *sync) suspended() bool { return s.job.Spec.Suspend != nil && *s.job.Spec.Suspend }

func (s *sync) completions() int {
	if s.job.Spec.Completions == nil {
		return 0
	}
	return int(*s.job.Spec.Completions)
}

// counts tells whether a pod is still to be accounted for: it has the finalizer
// and, in an Indexed Job, an index of the Job.
func (s *sync) counts(pod *corev1.Pod) bool {
	return tracked(pod) && (!s.indexed() || s.hasIndex(pod))
}

func (s *sync) hasIndex(pod *corev1.Pod) bool {
	i := indexOf(pod)
	return i >= 0 && i < s.completions()
}

// failedPod tells whether a pod counts as failed. One being deleted may never
// get to say how it ended.
func (s *sync) failedPod(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	return !s.replacesFailedOnly() && pod.DeletionTimestamp != nil && pod.Status.Phase != corev1.PodSucceeded
}

// failsIndex tells whether a failed pod was the last of its index.
func (s *sync) failsIndex(pod *corev1.Pod) bool {
	switch judgePod(s.job.Spec.PodFailurePolicy, pod).action {
	case batchv1.PodFailurePolicyActionFailIndex:
		return true
	case batchv1.PodFailurePolicyActionIgnore:
		return false
	}
	return failures(pod) >= int(*s.job.Spec.BackoffLimitPerIndex)
}

func tracked(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

func terminating(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil && !podcontrol.Ended(pod) }

// indexOf is the completion index of a pod, -1 if it has none.
func indexOf(pod *corev1.Pod) int {
	i, err := strconv.ParseInt(pod.Annotations[batchv1.JobCompletionIndexAnnotation], 10, 32)
	if err != nil || i < 0 {
		return -1
	}
	return int(i)
}

// failures of a pod's index before it; allFailures has the ignored ones too.
func failures(pod *corev1.Pod) int {
	return annotatedCount(pod, batchv1.JobIndexFailureCountAnnotation)
}

func allFailures(pod *corev1.Pod) int {
	return failures(pod) + annotatedCount(pod, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

func annotatedCount(pod *corev1.Pod, key string) int {
	n, err := strconv.ParseInt(pod.Annotations[key], 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int(n)
}

// finishedAt is when a pod's last container ended, or the nearest to it that is known.
func finishedAt(pod *corev1.Pod) time.Time {
	var latest metav1.Time
	for i := range pod.Status.ContainerStatuses {
		t := pod.Status.ContainerStatuses[i].State.Terminated
		if t == nil || t.FinishedAt.IsZero() {
			latest = metav1.Time{}
			break
		}
		if latest.Before(&t.FinishedAt) {
			latest = t.FinishedAt
		}
	}
	if !latest.IsZero() {
		return latest.Time
	}
	if c := podcontrol.Condition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if pod.DeletionTimestamp != nil {
		at := pod.DeletionTimestamp.Time
		if g := pod.DeletionGracePeriodSeconds; g != nil {
			at = at.Add(-time.Duration(*g) * time.Second)
		}
		return at
	}
	return pod.CreationTimestamp.Time
}

// backoff is how long no pod may be created: from the last failure, twice as
// long for each failure since the last success.
func (s *sync) backoff() time.Duration {
	var lastSuccess, lastFailure time.Time
	for _, pod := range s.pods {
		if at := finishedAt(pod); pod.Status.Phase == corev1.PodSucceeded && at.After(lastSuccess) {
			lastSuccess = at
		}
	}
	failed := 0
	for _, pod := range s.pods {
		if at := finishedAt(pod); s.failedPod(pod) && at.After(lastSuccess) {
			failed++
			if at.After(lastFailure) {
				lastFailure = at
			}
		}
	}
	return remaining(failed, lastFailure, s.now)
}

func remaining(failed int, last, now time.Time) time.Duration {
	if failed == 0 {
		return 0
	}
	wait := backoffMax
	if factor := math.Pow(2, float64(failed-1)); factor < float64(backoffMax/backoffBase) {
		wait = time.Duration(factor) * backoffBase
	}
	return max(0, last.Add(wait).Sub(now))
}
