package batch

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A status is what its words change in the status of a Job that runs.
func statusJob(change ...func(*batchv1.Job)) *batchv1.Job {
	began := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC))
	j := &batchv1.Job{
		Spec:   batchv1.JobSpec{CompletionMode: new(batchv1.IndexedCompletion), Completions: new(int32(5)), Parallelism: new(int32(3))},
		Status: batchv1.JobStatus{StartTime: &began, Active: 2, Failed: 1, Succeeded: 1, CompletedIndexes: "0"},
	}
	for _, f := range change {
		f(j)
	}
	return j
}

func said(kinds ...batchv1.JobConditionType) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		for _, kind := range kinds {
			j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue})
		}
	}
}

func status(change func(*batchv1.JobStatus)) func(*batchv1.Job) {
	return func(j *batchv1.Job) { change(&j.Status) }
}

func TestStatusesOfJobs(t *testing.T) {
	end := new(metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
	idle := status(func(s *batchv1.JobStatus) { s.Active = 0 })
	ended := status(func(s *batchv1.JobStatus) { s.Active, s.CompletionTime = 0, end })
	met, complete := batchv1.JobSuccessCriteriaMet, batchv1.JobComplete
	failing, failed := batchv1.JobFailureTarget, batchv1.JobFailed
	tests := []struct {
		name     string
		was, now *batchv1.Job
		want     string
	}{
		{"nothing changes", statusJob(), statusJob(), ""},
		{"complete within the second in which it began", statusJob(), statusJob(said(met, complete), ended), ""},
		{"failed as announced", statusJob(said(failing)), statusJob(said(failing, failed), idle), ""},
		{"complete with active pods", statusJob(), statusJob(said(met, complete), status(func(s *batchv1.JobStatus) { s.CompletionTime = end })), "status.active: Invalid value: 2: active>0 is invalid for finished job"},
		{"failed with pods that are terminating", statusJob(said(failing)), statusJob(said(failing, failed), idle, status(func(s *batchv1.JobStatus) { s.Terminating = new(int32(1)) })), "status.terminating: Invalid value: 1: terminating>0 is invalid for finished job"},
		{"complete without a time", statusJob(), statusJob(said(met, complete), idle), "status.completionTime: Required value: completionTime is required for Complete jobs"},
		{"complete without having met the criteria", statusJob(), statusJob(said(complete), ended), "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition"},
		{"failed without announcement", statusJob(), statusJob(said(failed), idle), "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition"},
		{"a failure that is taken back", statusJob(said(failing)), statusJob(), "status.conditions: Invalid value: cannot disable the terminal FailureTarget=True condition"},
		{"success and failure", statusJob(said(met)), statusJob(said(met, failing)), "status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"},
		{"more ready than active", statusJob(), statusJob(status(func(s *batchv1.JobStatus) { s.Ready = new(int32(3)) })), "status.ready: Invalid value: 3: cannot set more ready pods than active"},
		{"fewer failures", statusJob(), statusJob(status(func(s *batchv1.JobStatus) { s.Failed = 0 })), "status.failed: Invalid value: 0: cannot decrease the failed counter"},
		{"an index that does not exist", statusJob(), statusJob(status(func(s *batchv1.JobStatus) { s.CompletedIndexes = "0,5" })), `status.completedIndexes: Invalid value: "0,5": error parsing completedIndexes: too large index: "5"`},
		{"failed indexes without a limit for them", statusJob(), statusJob(status(func(s *batchv1.JobStatus) { s.FailedIndexes = new("1") })), `status.failedIndexes: Invalid value: "1": cannot set non-null failedIndexes when backoffLimitPerIndex is null`},
		{"an index both failed and completed", statusJob(limited), statusJob(limited, status(func(s *batchv1.JobStatus) { s.CompletedIndexes, s.FailedIndexes = "0,2-4", new("1,3") })), `status.failedIndexes: Invalid value: "1,3": failedIndexes and completedIndexes overlap at index: 3`},
		{"a pod to be counted twice", statusJob(), statusJob(status(func(s *batchv1.JobStatus) {
			s.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"a"}, Failed: []types.UID{"a"}}
		})), `status.uncountedTerminatedPods.failed[0]: Duplicate value: "a"`},
		{"another start", statusJob(), statusJob(status(func(s *batchv1.JobStatus) { s.StartTime = new(metav1.NewTime(end.Add(time.Hour))) })), `status.startTime: Invalid value: "2026-01-02T04:04:05Z": field is immutable for unsuspended job once set`},
		{"a rule that was broken before", statusJob(said(complete)), statusJob(said(complete), status(func(s *batchv1.JobStatus) { s.Failed = 2 })), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if errs := validateJobStatusUpdate(tt.now, tt.was); len(errs) > 0 {
				got = errs[0].Error()
				if len(errs) > 1 {
					got = fmt.Sprint(errs)
				}
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func limited(j *batchv1.Job) { j.Spec.BackoffLimitPerIndex = new(int32(1)) }
