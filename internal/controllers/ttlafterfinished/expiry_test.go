package ttlafterfinished

import (
	"math"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExpiry(t *testing.T) {
	ended := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	condition := func(at time.Time, status corev1.ConditionStatus) []batchv1.JobCondition {
		return []batchv1.JobCondition{
			{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at.Add(-time.Hour))},
			{Type: batchv1.JobComplete, Status: status, LastTransitionTime: metav1.NewTime(at)},
		}
	}
	for _, tt := range []struct {
		name       string
		ttl        *int32
		conditions []batchv1.JobCondition
		want       time.Time // zero: never
	}{
		{"no time to live", nil, condition(ended, corev1.ConditionTrue), time.Time{}},
		{"it runs", new(int32(1)), nil, time.Time{}},
		{"it is not complete", new(int32(1)), condition(ended, corev1.ConditionFalse), time.Time{}},
		{"none at all", new(int32(0)), condition(ended, corev1.ConditionTrue), ended},
		{"a minute", new(int32(60)), condition(ended, corev1.ConditionTrue), ended.Add(time.Minute)},
		{"the longest", new(int32(math.MaxInt32)), condition(ended, corev1.ConditionTrue), ended.Add(math.MaxInt32 * time.Second)},
		{"nobody knows since when it is complete", new(int32(60)), condition(time.Time{}, corev1.ConditionTrue), time.Time{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			job := &batchv1.Job{Spec: batchv1.JobSpec{TTLSecondsAfterFinished: tt.ttl}, Status: batchv1.JobStatus{Conditions: tt.conditions}}
			if at, expires := expiry(job); expires != !tt.want.IsZero() || !at.Equal(tt.want) {
				t.Errorf("%v %v, want %v", at, expires, tt.want)
			}
		})
	}
}
