package batch

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

// CronJobs is the batch/v1 cronjobs resource.
var CronJobs = apis.Resource{
	Group: "batch", Version: "v1", Kind: "CronJob", Plural: "cronjobs", Short: []string{"cj"}, Categories: []string{"all"},
	New: apis.New[batchv1.CronJob], NewList: apis.NewList[batchv1.CronJobList],
	Subresources: []apis.Subresource{
		apis.Writable("status", func(c, old *batchv1.CronJob) { c.Spec = old.Spec }, nil),
	},
	Default: apis.On(defaultCronJob),
	PrepareCreate: apis.On(func(c *batchv1.CronJob) {
		c.Status = batchv1.CronJobStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(c, old *batchv1.CronJob) {
		c.Status = old.Status
	}),
	Validate:       apis.Check(validateCronJob),
	ValidateUpdate: apis.CheckUpdate(validateCronJobUpdate),
	Warnings:       apis.Warn(cronJobWarnings),
	Columns:        cronJobColumns,
	Row:            apis.Cells(cronJobRow),
}

func defaultCronJob(c *batchv1.CronJob) {
	s := &c.Spec
	defaultJobTemplateSpec(&s.JobTemplate)
	if s.ConcurrencyPolicy == "" {
		s.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	if s.Suspend == nil {
		s.Suspend = new(false)
	}
	if s.SuccessfulJobsHistoryLimit == nil {
		s.SuccessfulJobsHistoryLimit = new(int32(3))
	}
	if s.FailedJobsHistoryLimit == nil {
		s.FailedJobsHistoryLimit = new(int32(1))
	}
}

// A job's own defaults wait until the job is made; its pod's are filled here.
func defaultJobTemplateSpec(t *batchv1.JobTemplateSpec) {
	core.DefaultTemplate(&t.Spec.Template)
	if p := t.Spec.PodFailurePolicy; p != nil {
		for i := range p.Rules {
			for k := range p.Rules[i].OnPodConditions {
				if c := &p.Rules[i].OnPodConditions[k]; c.Status == "" {
					c.Status = corev1.ConditionTrue
				}
			}
		}
	}
}

func cronJobWarnings(c, old *batchv1.CronJob) []string {
	var before *corev1.PodTemplateSpec
	if old != nil {
		before = &old.Spec.JobTemplate.Spec.Template
	}
	warnings := core.WorkloadWarnings(c, old == nil, "spec.jobTemplate.spec.template", &c.Spec.JobTemplate.Spec.Template, before)
	warnings = append(warnings, jobSpecWarnings(&c.Spec.JobTemplate.Spec, "spec.jobTemplate.spec")...)
	return append(warnings, timeZoneWarnings(c.Spec.Schedule)...)
}
