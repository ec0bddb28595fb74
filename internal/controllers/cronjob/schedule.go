package cronjob

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	manyMissed = 100
	// lag is added to the next time: a clock that is a little behind must not
	// come back just before it.
	lag = 100 * time.Millisecond
)

// unknownZone is the reason of what is wrong even with a schedule that is suspended.
const unknownZone = "UnknownTimeZone"

// problem is what is wrong with a schedule, as an event tells it.
type problem struct{ reason, message string }

type schedule struct{ cron.Schedule }

// parse reads the schedule of a CronJob in its time zone. The problem may be one
// that a schedule works with; without a schedule it is one that forbids to start.
func parse(cj *batchv1.CronJob) (*schedule, *problem) {
	spec := cj.Spec.Schedule
	var warning *problem
	switch zone := cj.Spec.TimeZone; {
	case strings.Contains(spec, "TZ"):
		warning = &problem{"UnsupportedSchedule", fmt.Sprintf(
			"CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", spec)}
	case zone != nil:
		if _, err := time.LoadLocation(*zone); err != nil {
			return nil, &problem{unknownZone, fmt.Sprintf("invalid timeZone: %q: %s", *zone, err)}
		}
		spec = "TZ=" + *zone + " " + spec
	}
	s, err := cron.ParseStandard(spec)
	if err != nil {
		return nil, &problem{"UnparseableSchedule", fmt.Sprintf("unparseable schedule: %q : %s", cj.Spec.Schedule, err)}
	}
	return &schedule{s}, warning
}

// latest returns the latest time of the schedule up to now and after earliest,
// zero if there is none, and how many there were at least.
func (s *schedule) latest(earliest, now time.Time) (latest time.Time, missed int64, err error) {
	first := s.Next(earliest)
	second := s.Next(first)
	switch {
	case !first.IsZero() && now.Before(first):
		return time.Time{}, 0, nil
	case !second.IsZero() && now.Before(second):
		return first, 1, nil
	}
	between := int64(math.Round(second.Sub(first).Seconds()))
	if between < 1 {
		return time.Time{}, 0, errors.New("time difference between two schedules is less than 1 second")
	}
	// Jump close to now before stepping: a schedule can have been missed for years.
	missed = int64(now.Sub(first).Seconds())/between + 1
	latest = first
	start := first
	if missed > 2 {
		start = s.Next(first.Add(time.Duration((missed-2)*between)*time.Second - time.Second))
	}
	for t := start; !t.IsZero() && !t.After(now); t = s.Next(t) {
		latest = t
	}
	return latest, missed, nil
}

func lastStart(cj *batchv1.CronJob) time.Time {
	if t := cj.Status.LastScheduleTime; t != nil {
		return t.Time
	}
	return cj.CreationTimestamp.Time
}

// due returns the time that a Job is to be started for, zero for none. Of
// several missed ones it is the latest.
func (s *schedule) due(cj *batchv1.CronJob, now time.Time) (time.Time, int64, error) {
	earliest := lastStart(cj)
	if d := cj.Spec.StartingDeadlineSeconds; d != nil {
		if from := now.Add(-time.Duration(*d) * time.Second); from.After(earliest) {
			earliest = from
		}
	}
	if earliest.After(now) {
		return time.Time{}, 0, nil
	}
	return s.latest(earliest, now)
}

// next returns how long it is until the schedule's next time.
func (s *schedule) next(cj *batchv1.CronJob, now time.Time) time.Duration {
	from := lastStart(cj)
	if latest, _, err := s.latest(from, now); err != nil {
		from = now
	} else if !latest.IsZero() {
		from = latest
	}
	return s.Next(from).Add(lag).Sub(now)
}

func jobName(cj *batchv1.CronJob, due time.Time) string {
	return fmt.Sprintf("%s-%d", cj.Name, due.Unix()/60)
}

func newJob(cj *batchv1.CronJob, ref *metav1.OwnerReference, due time.Time) *batchv1.Job {
	zone := time.UTC
	if cj.Spec.TimeZone != nil {
		if z, err := time.LoadLocation(*cj.Spec.TimeZone); err == nil {
			zone = z
		}
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: jobName(cj, due), Namespace: cj.Namespace,
			Labels:            maps.Clone(cj.Spec.JobTemplate.Labels),
			Annotations:       maps.Clone(cj.Spec.JobTemplate.Annotations),
			CreationTimestamp: metav1.NewTime(due),
			OwnerReferences:   []metav1.OwnerReference{*ref},
		},
	}
	metav1.SetMetaDataAnnotation(&job.ObjectMeta, batchv1.CronJobScheduledTimestampAnnotation, due.In(zone).Format(time.RFC3339))
	cj.Spec.JobTemplate.Spec.DeepCopyInto(&job.Spec)
	return job
}

// planCleanup returns the oldest successful and failed Jobs beyond their limits.
func planCleanup(cj *batchv1.CronJob, jobs []*batchv1.Job) []*batchv1.Job {
	var doomed []*batchv1.Job
	for end, limit := range map[batchv1.JobConditionType]*int32{
		batchv1.JobComplete: cj.Spec.SuccessfulJobsHistoryLimit,
		batchv1.JobFailed:   cj.Spec.FailedJobsHistoryLimit,
	} {
		if limit == nil {
			continue
		}
		ended := slices.DeleteFunc(slices.Clone(jobs), func(job *batchv1.Job) bool { return ending(job) != end || job.DeletionTimestamp != nil })
		slices.SortStableFunc(ended, func(a, b *batchv1.Job) int {
			return cmp.Or(started(a).Compare(started(b)), cmp.Compare(a.Name, b.Name))
		})
		doomed = append(doomed, ended[:max(0, len(ended)-int(*limit))]...)
	}
	slices.SortFunc(doomed, func(a, b *batchv1.Job) int { return cmp.Compare(a.Name, b.Name) })
	return doomed
}

func started(job *batchv1.Job) time.Time {
	if job.Status.StartTime == nil {
		return time.Time{}
	}
	return job.Status.StartTime.Time
}
