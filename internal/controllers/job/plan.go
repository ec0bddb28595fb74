package job

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers/podcontrol"
)

const noIndex = -1

// plan is what a Job lacks: pods to delete or pods to create, never both.
type plan struct {
	delete []*corev1.Pod
	create []int         // an index for each, noIndex in a NonIndexed Job
	wait   time.Duration // until more can be created
}

// planPods brings the active pods to what parallelism and completions ask for.
func (s *sync) planPods() plan {
	switch {
	case s.finish != nil:
		return plan{delete: s.active}
	case s.job.DeletionTimestamp != nil:
		return plan{}
	case s.suspended():
		return plan{delete: s.remove(len(s.active))}
	}
	want := s.wantActive()
	if doomed := s.remove(max(0, len(s.active)-want)); len(doomed) > 0 {
		return plan{delete: doomed[:min(len(doomed), podcontrol.Burst)]}
	}
	missing := want - len(s.active)
	if s.replacesFailedOnly() {
		missing -= s.terminating()
	}
	missing = min(missing, podcontrol.Burst)
	if missing <= 0 {
		return plan{}
	}
	return s.planCreate(missing)
}

func (s *sync) wantActive() int {
	parallelism := int(*s.job.Spec.Parallelism)
	if s.job.Spec.Completions == nil {
		if s.succeeded > 0 {
			return len(s.active) // a work queue that is empty gets no more workers
		}
		return parallelism
	}
	return max(0, min(s.completions()-s.succeeded-s.failedIndexes.total(), parallelism))
}

func (s *sync) terminating() int {
	n := 0
	for _, pod := range s.pods {
		if terminating(pod) {
			n++
		}
	}
	return n
}

func (s *sync) planCreate(missing int) plan {
	var p plan
	if !s.limitsPerIndex() {
		if p.wait = s.backoff(); p.wait > 0 {
			return p
		}
	}
	if !s.indexed() {
		p.create = slices.Repeat([]int{noIndex}, missing)
		return p
	}
	for _, i := range s.pendingIndexes(missing) {
		if last := s.replaceable[i]; last != nil {
			if wait := remaining(allFailures(last)+1, finishedAt(last), s.now); wait > 0 {
				p.wait = podcontrol.Sooner(p.wait, wait)
				continue
			}
		}
		p.create = append(p.create, i)
	}
	return p
}

// pendingIndexes returns the lowest indexes that neither run nor are done.
func (s *sync) pendingIndexes(n int) []int {
	taken := map[int]bool{}
	for _, pod := range s.pods {
		if podcontrol.Active(pod) || s.replacesFailedOnly() && terminating(pod) {
			taken[indexOf(pod)] = true
		}
	}
	var pending []int
	for i := 0; i < s.completions() && len(pending) < n; i++ {
		if !taken[i] && !s.succeededIndexes.has(i) && !s.failedIndexes.has(i) {
			pending = append(pending, i)
		}
	}
	return pending
}

// remove chooses at least n active pods: those without a proper index and all
// but one of each index in any case, then those whose loss costs least.
func (s *sync) remove(n int) []*corev1.Pod {
	left := slices.Clone(s.active)
	podcontrol.DeletionOrder(left, nil, s.now)
	var doomed []*corev1.Pod
	if s.indexed() {
		kept := map[int]*corev1.Pod{}
		for _, pod := range left {
			kept[indexOf(pod)] = pod // the one that would be deleted last
		}
		left = slices.DeleteFunc(left, func(pod *corev1.Pod) bool {
			if s.hasIndex(pod) && kept[indexOf(pod)] == pod {
				return false
			}
			doomed = append(doomed, pod)
			return true
		})
	}
	return append(doomed, left[:max(0, min(n-len(doomed), len(left)))]...)
}

// judge decides whether the Job ends, and how. What was decided before stays:
// first by failure, then, for an Indexed Job, by the success policy.
func (s *sync) judge() {
	if c := condition(s.job, batchv1.JobSuccessCriteriaMet); c != nil && c.Status == corev1.ConditionTrue {
		s.finish = c.DeepCopy()
		return
	}
	if c := condition(s.job, batchv1.JobFailureTarget); c != nil && c.Status == corev1.ConditionTrue {
		s.finish = c.DeepCopy()
		return
	}
	if reason, message := s.failure(); reason != "" {
		s.finish = s.condition(batchv1.JobFailureTarget, corev1.ConditionTrue, reason, message)
		return
	}
	if s.indexed() {
		if message, met := succeeds(s.job.Spec.SuccessPolicy, s.completions(), s.succeededIndexes); met {
			s.finish = s.condition(batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue, batchv1.JobReasonSuccessPolicy, message)
		}
	}
}

// failure returns the first reason for the Job to fail, or "".
func (s *sync) failure() (reason, message string) {
	for _, pod := range s.pods {
		if !s.failedPod(pod) {
			continue
		}
		if v := judgePod(s.job.Spec.PodFailurePolicy, pod); v.action == batchv1.PodFailurePolicyActionFailJob {
			return batchv1.JobReasonPodFailurePolicy, v.message
		}
	}
	switch left, limited := s.deadline(); {
	case s.failed > int(*s.job.Spec.BackoffLimit) || s.restartsExceed():
		return batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit"
	case limited && left <= 0:
		return batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline"
	case !s.limitsPerIndex():
		return "", ""
	}
	failed := s.failedIndexes.total()
	switch most := s.job.Spec.MaxFailedIndexes; {
	case most != nil && failed > int(*most):
		return batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes"
	case failed > 0 && failed+s.succeededIndexes.total() >= s.completions():
		return batchv1.JobReasonFailedIndexes, "Job has failed indexes"
	}
	return "", ""
}

// restartsExceed counts restarts in place against the backoff limit.
func (s *sync) restartsExceed() bool {
	if s.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var restarts int32
	for _, pod := range s.pods {
		if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range list {
				restarts += list[i].RestartCount
			}
		}
	}
	limit := *s.job.Spec.BackoffLimit
	return restarts > 0 && restarts >= limit
}

// deadline returns the time left to run, if that is limited.
func (s *sync) deadline() (left time.Duration, limited bool) {
	if s.job.Spec.ActiveDeadlineSeconds == nil || s.job.Status.StartTime == nil || s.suspended() {
		return 0, false
	}
	allowed := time.Duration(*s.job.Spec.ActiveDeadlineSeconds) * time.Second
	return s.job.Status.StartTime.Add(allowed).Sub(s.now), true
}

// completed tells whether the Job has all the successes it asks for.
func (s *sync) completed() bool {
	if s.job.Spec.Completions == nil {
		return s.succeeded > 0
	}
	return s.succeeded >= s.completions()
}

func (s *sync) condition(t batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string) *batchv1.JobCondition {
	now := metav1.NewTime(s.now)
	return &batchv1.JobCondition{Type: t, Status: status, Reason: reason, Message: message, LastProbeTime: now, LastTransitionTime: now}
}

func condition(job *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range job.Status.Conditions {
		if job.Status.Conditions[i].Type == t {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}

// setCondition adds a condition, or moves one that has another status, reason or
// message. A false one is not added where there was none. It tells whether the status changed.
func (s *sync) setCondition(c *batchv1.JobCondition) bool {
	have := condition(s.job, c.Type)
	switch {
	case have == nil && c.Status == corev1.ConditionFalse:
		return false
	case have == nil:
		s.job.Status.Conditions = append(s.job.Status.Conditions, *c)
		return true
	case have.Status == c.Status && have.Reason == c.Reason && have.Message == c.Message:
		return false
	}
	*have = *c
	return true
}
