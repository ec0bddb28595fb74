package batch

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

var (
	containersColumn = apis.Wide("Containers", "string", "Names of each container in the template.")
	imagesColumn     = apis.Wide("Images", "string", "Images referenced by each container in the template.")
	selectorColumn   = apis.Wide("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"])
)

var jobColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Status", "string", "Status of the job."),
	apis.Column("Completions", "string", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
	apis.Column("Duration", "string", "Time required to complete the job."),
	apis.AgeColumn, containersColumn, imagesColumn, selectorColumn,
}

func jobRow(j *batchv1.Job, now time.Time) []any {
	names, images := core.ContainersAndImages(&j.Spec.Template)
	return []any{
		j.Name, jobStatus(j), jobCompletions(j), jobDuration(j, now), apis.AgeOf(j, now),
		names, images, metav1.FormatLabelSelector(j.Spec.Selector),
	}
}

func jobStatus(j *batchv1.Job) string {
	has := map[batchv1.JobConditionType]bool{}
	for _, c := range j.Status.Conditions {
		has[c.Type] = c.Status == corev1.ConditionTrue
	}
	switch {
	case has[batchv1.JobComplete]:
		return "Complete"
	case has[batchv1.JobFailed]:
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case has[batchv1.JobSuspended]:
		return "Suspended"
	case has[batchv1.JobFailureTarget]:
		return "FailureTarget"
	case has[batchv1.JobSuccessCriteriaMet]:
		return "SuccessCriteriaMet"
	default:
		return "Running"
	}
}

func jobCompletions(j *batchv1.Job) string {
	switch {
	case j.Spec.Completions != nil:
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	case j.Spec.Parallelism != nil && *j.Spec.Parallelism > 1:
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, *j.Spec.Parallelism)
	default:
		return fmt.Sprintf("%d/1", j.Status.Succeeded)
	}
}

func jobDuration(j *batchv1.Job, now time.Time) string {
	switch {
	case j.Status.StartTime == nil:
		return ""
	case j.Status.CompletionTime == nil:
		return duration.HumanDuration(now.Sub(j.Status.StartTime.Time))
	default:
		return duration.HumanDuration(j.Status.CompletionTime.Sub(j.Status.StartTime.Time))
	}
}

var cronJobColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Schedule", "string", batchv1.CronJobSpec{}.SwaggerDoc()["schedule"]),
	apis.Column("Timezone", "string", batchv1.CronJobSpec{}.SwaggerDoc()["timeZone"]),
	apis.Column("Suspend", "boolean", batchv1.CronJobSpec{}.SwaggerDoc()["suspend"]),
	apis.Column("Active", "integer", batchv1.CronJobStatus{}.SwaggerDoc()["active"]),
	apis.Column("Last Schedule", "string", batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"]),
	apis.AgeColumn, containersColumn, imagesColumn, selectorColumn,
}

func cronJobRow(c *batchv1.CronJob, now time.Time) []any {
	zone, suspended, last := "<none>", "False", "<none>"
	if c.Spec.TimeZone != nil {
		zone = *c.Spec.TimeZone
	}
	if c.Spec.Suspend != nil && *c.Spec.Suspend {
		suspended = "True"
	}
	if c.Status.LastScheduleTime != nil {
		last = apis.Age(*c.Status.LastScheduleTime, now)
	}
	names, images := core.ContainersAndImages(&c.Spec.JobTemplate.Spec.Template)
	return []any{
		c.Name, c.Spec.Schedule, zone, suspended, int64(len(c.Status.Active)), last, apis.AgeOf(c, now),
		names, images, metav1.FormatLabelSelector(c.Spec.JobTemplate.Spec.Selector),
	}
}
