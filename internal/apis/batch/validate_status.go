package batch

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"proa/internal/apis/validate"
)

// statusChange is a new status of a Job beside the old one. Whoever manages a Job
// (KEP-4368) is held to what its readers rely on: an end is an end, and what is
// said of it agrees. A rule is applied only where what it is about changes, so
// that a Job which breaks it already can still be written.
type statusChange struct {
	job, was *batchv1.Job
	path     *field.Path
	errs     field.ErrorList
}

func validateJobStatusUpdate(j, old *batchv1.Job) field.ErrorList {
	c := &statusChange{job: j, was: old, path: field.NewPath("status")}
	c.counts()
	c.uncounted()
	c.ends()
	c.times()
	c.indexes()
	c.criteria()
	c.steps()
	return c.errs
}

func holds(j *batchv1.Job, kind batchv1.JobConditionType, status corev1.ConditionStatus) bool {
	for _, c := range j.Status.Conditions {
		if c.Type == kind && c.Status == status {
			return true
		}
	}
	return false
}

func isTrue(j *batchv1.Job, kind batchv1.JobConditionType) bool {
	return holds(j, kind, corev1.ConditionTrue)
}

func isOver(j *batchv1.Job) bool {
	return isTrue(j, batchv1.JobComplete) || isTrue(j, batchv1.JobFailed)
}

// turned tells that a condition becomes true, or ceases to be.
func (c *statusChange) turned(kind batchv1.JobConditionType) bool {
	return isTrue(c.job, kind) != isTrue(c.was, kind)
}

func (c *statusChange) invalid(name string, value any, message string) {
	c.errs = append(c.errs, field.Invalid(c.path.Child(name), value, message))
}

func (c *statusChange) conditions(message string) {
	c.invalid("conditions", field.OmitValueType{}, message)
}

// counts checks the numbers of pods.
func (c *statusChange) counts() {
	s, was := &c.job.Status, &c.was.Status
	c.errs = append(c.errs, validate.NonNegative(c.path.Child("active"), s.Active)...)
	c.errs = append(c.errs, validate.NonNegative(c.path.Child("succeeded"), s.Succeeded)...)
	c.errs = append(c.errs, validate.NonNegative(c.path.Child("failed"), s.Failed)...)
	c.errs = append(c.errs, validate.NonNegativePtr(c.path.Child("ready"), s.Ready)...)
	c.errs = append(c.errs, validate.NonNegativePtr(c.path.Child("terminating"), s.Terminating)...)
	over := isOver(c.job)
	ended := over != isOver(c.was)
	if (ended || s.Active != was.Active) && over && s.Active > 0 {
		c.invalid("active", s.Active, "active>0 is invalid for finished job")
	}
	if (ended || !ptr.Equal(s.Terminating, was.Terminating)) && over && ptr.Deref(s.Terminating, 0) > 0 {
		c.invalid("terminating", s.Terminating, "terminating>0 is invalid for finished job")
	}
	if (!ptr.Equal(s.Ready, was.Ready) || s.Active != was.Active) && ptr.Deref(s.Ready, 0) > s.Active {
		c.invalid("ready", *s.Ready, "cannot set more ready pods than active")
	}
	if u := s.UncountedTerminatedPods; (ended || !apiequality.Semantic.DeepEqual(u, was.UncountedTerminatedPods)) && over && u != nil && len(u.Failed)+len(u.Succeeded) > 0 {
		c.invalid("uncountedTerminatedPods", u, "must be empty for finished job")
	}
}

// losses: what was counted stays counted.
func (c *statusChange) losses() {
	s, was := &c.job.Status, &c.was.Status
	if s.Failed < was.Failed {
		c.invalid("failed", s.Failed, "cannot decrease the failed counter")
	}
	elastic := isIndexed(&c.job.Spec) && ptr.Equal(c.job.Spec.Completions, c.job.Spec.Parallelism)
	if !elastic && s.Succeeded < was.Succeeded {
		c.invalid("succeeded", s.Succeeded, "cannot decrease the succeeded counter")
	}
}

// uncounted checks that pods which wait to be counted are named, and once.
func (c *statusChange) uncounted() {
	u := c.job.Status.UncountedTerminatedPods
	if u == nil {
		return
	}
	seen := map[types.UID]bool{}
	check := func(uids []types.UID, path *field.Path) {
		for i, uid := range uids {
			switch {
			case uid == "":
				c.errs = append(c.errs, field.Invalid(path.Index(i), uid, "must not be empty"))
			case seen[uid]:
				c.errs = append(c.errs, field.Duplicate(path.Index(i), uid))
			}
			seen[uid] = true
		}
	}
	path := c.path.Child("uncountedTerminatedPods")
	check(u.Succeeded, path.Child("succeeded"))
	check(u.Failed, path.Child("failed"))
}

// ends checks that a Job ends in one way, and as it was announced.
func (c *statusChange) ends() {
	complete, failed := isTrue(c.job, batchv1.JobComplete), isTrue(c.job, batchv1.JobFailed)
	if (c.turned(batchv1.JobComplete) || c.turned(batchv1.JobFailed)) && complete && failed {
		c.conditions("cannot set Complete=True and Failed=true conditions")
	}
	if (c.turned(batchv1.JobComplete) || c.turned(batchv1.JobFailureTarget)) && complete && isTrue(c.job, batchv1.JobFailureTarget) {
		c.conditions("cannot set Complete=True and FailureTarget=true conditions")
	}
	if (c.turned(batchv1.JobFailed) || !ptr.Equal(c.job.Status.FailedIndexes, c.was.Status.FailedIndexes)) && failed && !isTrue(c.job, batchv1.JobFailureTarget) {
		c.conditions("cannot set Failed=True condition without the FailureTarget=true condition")
	}
	if (c.turned(batchv1.JobComplete) || c.turned(batchv1.JobSuccessCriteriaMet)) && complete && !isTrue(c.job, batchv1.JobSuccessCriteriaMet) {
		c.conditions("cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	}
}

// sameSecond compares times as the wire carries them. A writer in this process
// may have told them more precisely.
func sameSecond(a, b *metav1.Time) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Unix() == b.Unix()
}

// times checks when the Job began and when it was complete.
func (c *statusChange) times() {
	s, was := &c.job.Status, &c.was.Status
	complete := isTrue(c.job, batchv1.JobComplete)
	began := !sameSecond(s.StartTime, was.StartTime)
	done := !sameSecond(s.CompletionTime, was.CompletionTime)
	if c.turned(batchv1.JobComplete) || done {
		if s.CompletionTime != nil && !complete {
			c.invalid("completionTime", s.CompletionTime, "cannot set completionTime when there is no Complete=True condition")
		}
		if s.CompletionTime == nil && complete {
			c.errs = append(c.errs, field.Required(c.path.Child("completionTime"), "completionTime is required for Complete jobs"))
		}
	}
	if (began || done) && s.StartTime != nil && s.CompletionTime != nil && s.CompletionTime.Unix() < s.StartTime.Unix() {
		c.invalid("completionTime", s.CompletionTime, "must be equal to or after `startTime`")
	}
	if done && s.CompletionTime != nil && was.CompletionTime != nil {
		c.invalid("completionTime", s.CompletionTime, "field is immutable")
	}
	suspend := ptr.Deref(c.job.Spec.Suspend, false)
	none := suspend && ptr.Deref(c.job.Spec.Completions, 1) == 0
	if (isOver(c.job) != isOver(c.was) || began) && !none && s.StartTime == nil && isOver(c.job) {
		c.errs = append(c.errs, field.Required(c.path.Child("startTime"), "startTime is required for finished job"))
	}
	resumed := isTrue(c.was, batchv1.JobSuspended) && holds(c.job, batchv1.JobSuspended, corev1.ConditionFalse)
	if began && !resumed && was.StartTime != nil && !suspend {
		c.invalid("startTime", s.StartTime, "field is immutable for unsuspended job once set")
	}
}

// indexes checks the sets of indexes that are over.
func (c *statusChange) indexes() {
	s, was, spec := &c.job.Status, &c.was.Status, &c.job.Spec
	completed := s.CompletedIndexes != was.CompletedIndexes
	failed := !ptr.Equal(s.FailedIndexes, was.FailedIndexes)
	if completed && spec.Completions != nil {
		if err := checkIndexes(s.CompletedIndexes, *spec.Completions); err != nil {
			c.invalid("completedIndexes", s.CompletedIndexes, fmt.Sprintf("error parsing completedIndexes: %s", err))
		}
	}
	if failed && spec.Completions != nil && spec.BackoffLimitPerIndex != nil && s.FailedIndexes != nil {
		if err := checkIndexes(*s.FailedIndexes, *spec.Completions); err != nil {
			c.invalid("failedIndexes", s.FailedIndexes, fmt.Sprintf("error parsing failedIndexes: %s", err))
		}
	}
	if completed && s.CompletedIndexes != "" && !isIndexed(spec) {
		c.invalid("completedIndexes", s.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode")
	}
	if failed && spec.BackoffLimitPerIndex == nil && s.FailedIndexes != nil {
		c.invalid("failedIndexes", *s.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	}
	if (completed || failed) && spec.Completions != nil && s.FailedIndexes != nil {
		if err := checkDisjoint(s.CompletedIndexes, *s.FailedIndexes, *spec.Completions); err != nil {
			c.invalid("failedIndexes", *s.FailedIndexes, err.Error())
		}
	}
}

// checkIndexes tells what is wrong with a set of indexes, which may be empty.
func checkIndexes(list string, completions int32) error {
	if list == "" {
		return nil
	}
	_, err := parseIndexes(list, completions)
	return err
}

// checkDisjoint tells that an index has both completed and failed. What cannot
// be read is another rule's concern.
func checkDisjoint(completed, failed string, completions int32) error {
	if completed == "" || failed == "" {
		return nil
	}
	done, _ := parseIndexes(completed, completions)
	lost, _ := parseIndexes(failed, completions)
	for i, j := 0, 0; i < len(done) && j < len(lost); {
		switch {
		case done[i].last < lost[j].first:
			i++
		case lost[j].last < done[i].first:
			j++
		default:
			return fmt.Errorf("failedIndexes and completedIndexes overlap at index: %d", max(done[i].first, lost[j].first))
		}
	}
	return nil
}

// criteria checks what is said of success, at every write.
func (c *statusChange) criteria() {
	met := isTrue(c.job, batchv1.JobSuccessCriteriaMet)
	if met && isTrue(c.job, batchv1.JobFailed) {
		c.conditions("cannot set SuccessCriteriaMet=True and Failed=true conditions")
	}
	if met && isTrue(c.job, batchv1.JobFailureTarget) {
		c.conditions("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	}
	if c.job.Spec.SuccessPolicy != nil && !met && isTrue(c.job, batchv1.JobComplete) {
		c.conditions("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
	}
}

// steps checks that nothing final is taken back.
func (c *statusChange) steps() {
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		if isTrue(c.was, kind) && !isTrue(c.job, kind) {
			c.conditions(fmt.Sprintf("cannot disable the terminal %s=True condition", kind))
		}
	}
	c.losses()
	met, was := isTrue(c.job, batchv1.JobSuccessCriteriaMet), isTrue(c.was, batchv1.JobSuccessCriteriaMet)
	if was && !met {
		c.conditions("cannot disable the SuccessCriteriaMet=True condition")
	}
	if met && !was && isTrue(c.was, batchv1.JobComplete) {
		c.conditions("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
	}
}
