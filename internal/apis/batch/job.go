package batch

import (
	"maps"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

// Jobs is the batch/v1 jobs resource.
var Jobs = apis.Resource{
	Group: "batch", Version: "v1", Kind: "Job", Plural: "jobs", Categories: []string{"all"},
	New: apis.New[batchv1.Job], NewList: apis.NewList[batchv1.JobList],
	Subresources: []apis.Subresource{
		apis.Writable("status", func(j, old *batchv1.Job) { j.Spec = old.Spec }, validateJobStatusUpdate),
	},
	Default:        apis.On(defaultJob),
	PrepareCreate:  apis.On(prepareJob),
	PrepareUpdate:  apis.OnUpdate(prepareJobUpdate),
	Validate:       apis.Check(validateJob),
	ValidateUpdate: apis.CheckUpdate(validateJobUpdate),
	Warnings:       apis.Warn(jobWarnings),
	Fields: apis.Selectable(map[string]func(*batchv1.Job) string{
		"status.successful": func(j *batchv1.Job) string { return strconv.Itoa(int(j.Status.Succeeded)) },
	}),
	Settle:     apis.On(settleJob),
	Dependents: apis.DependentsOrphaned,
	Columns:    jobColumns,
	Row:        apis.Cells(jobRow),
}

// defaultJob gives a job without labels those of its pods. They are one map until
// prepareJob: what it adds to the template upstream's jobs get, too.
func defaultJob(j *batchv1.Job) {
	defaultJobSpec(&j.Spec)
	if len(j.Labels) == 0 && len(j.Spec.Template.Labels) > 0 {
		j.Labels = j.Spec.Template.Labels
	}
}

// settleJob gives a job whose pods had no labels of their own those that they have got.
func settleJob(j *batchv1.Job) {
	if len(j.Labels) == 0 {
		j.Labels = maps.Clone(j.Spec.Template.Labels)
	}
}

func defaultJobSpec(s *batchv1.JobSpec) {
	core.DefaultTemplate(&s.Template)
	// A work queue (parallelism alone) has no number of completions.
	if s.Completions == nil && s.Parallelism == nil {
		s.Completions = new(int32(1))
	}
	if s.Parallelism == nil {
		s.Parallelism = new(int32(1))
	}
	if s.BackoffLimit == nil {
		if s.BackoffLimitPerIndex != nil {
			s.BackoffLimit = new(int32(1<<31 - 1))
		} else {
			s.BackoffLimit = new(int32(6))
		}
	}
	if s.CompletionMode == nil {
		s.CompletionMode = new(batchv1.NonIndexedCompletion)
	}
	if s.Suspend == nil {
		s.Suspend = new(false)
	}
	if s.PodFailurePolicy != nil {
		for i := range s.PodFailurePolicy.Rules {
			for k := range s.PodFailurePolicy.Rules[i].OnPodConditions {
				if p := &s.PodFailurePolicy.Rules[i].OnPodConditions[k]; p.Status == "" {
					p.Status = corev1.ConditionTrue
				}
			}
		}
	}
	if s.PodReplacementPolicy == nil {
		s.PodReplacementPolicy = new(batchv1.TerminatingOrFailed)
		if s.PodFailurePolicy != nil {
			s.PodReplacementPolicy = new(batchv1.Failed)
		}
	}
	if s.ManualSelector == nil {
		s.ManualSelector = new(false)
	}
}

func prepareJob(j *batchv1.Job) {
	if j.Spec.ManualSelector == nil || !*j.Spec.ManualSelector {
		selectByUID(j)
	}
	j.Labels = maps.Clone(j.Labels)
	j.Status = batchv1.JobStatus{}
}

func prepareJobUpdate(j, old *batchv1.Job) {
	j.Status = old.Status
	j.Labels = maps.Clone(j.Labels)
}

// selectByUID makes the job select its own pods and nobody else's: by labels
// with its uid, under today's names and those of older clients. Labels that
// claim another job are left for validation to refuse.
func selectByUID(j *batchv1.Job) {
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	labels, uid := j.Spec.Template.Labels, string(j.UID)
	for key, value := range map[string]string{
		batchv1.JobNameLabel: j.Name, "job-name": j.Name,
		batchv1.ControllerUidLabel: uid, "controller-uid": uid,
	} {
		if _, claimed := labels[key]; !claimed {
			labels[key] = value
		}
	}
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, claimed := j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !claimed {
		j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = uid
	}
}

func jobWarnings(j, old *batchv1.Job) []string {
	var before *corev1.PodTemplateSpec
	if old != nil {
		before = &old.Spec.Template
	}
	return append(jobSpecWarnings(&j.Spec, "spec"), core.WorkloadWarnings(j, old == nil, "spec.template", &j.Spec.Template, before)...)
}
