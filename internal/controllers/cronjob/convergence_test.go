package cronjob_test

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/cronjob"
	"proa/internal/controllers/ttlafterfinished"
)

func start(w *controllertest.World) func() {
	return w.Start(func(c controllers.Config) []controllertest.Runner {
		return []controllertest.Runner{cronjob.New(c), ttlafterfinished.New(c)}
	})
}

func tick(change ...func(*batchv1.CronJobSpec)) *batchv1.CronJob {
	cj := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "tick"},
		Spec: batchv1.CronJobSpec{
			Schedule: "*/10 * * * *",
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "one"}},
			}}}},
		},
	}
	for _, f := range change {
		f(&cj.Spec)
	}
	return cj
}

func concurrency(p batchv1.ConcurrencyPolicy) func(*batchv1.CronJobSpec) {
	return func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = p }
}

func pass(w *controllertest.World, d time.Duration) {
	time.Sleep(d)
	w.Settle()
}

func complete(w *controllertest.World, job *batchv1.Job) {
	controllertest.ChangeStatus(w, job.Name, func(j *batchv1.Job) {
		now := metav1.Now()
		j.Status.StartTime, j.Status.CompletionTime, j.Status.Succeeded = &now, &now, 1
		for _, t := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
		}
	})
}

func TestConcurrencyPolicies(t *testing.T) {
	tests := []struct {
		name         string
		cronJob      *batchv1.CronJob
		jobs, active int
	}{
		{"allows jobs beside each other", tick(), 3, 3},
		{"forbids a second one", tick(concurrency(batchv1.ForbidConcurrent)), 1, 1},
		{"replaces the one that runs", tick(concurrency(batchv1.ReplaceConcurrent)), 1, 1},
		{"starts none while suspended", tick(func(s *batchv1.CronJobSpec) { s.Suspend = new(true) }), 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			controllertest.Run(t, func(w *controllertest.World) {
				defer start(w)()
				w.Create(tt.cronJob)
				w.Settle()
				pass(w, 31*time.Minute)
				active := controllertest.Get[*batchv1.CronJob](w, "tick").Status.Active
				if jobs := controllertest.List[*batchv1.Job](w); len(jobs) != tt.jobs || len(active) != tt.active {
					t.Errorf("%d jobs, %d active; want %d and %d", len(jobs), len(active), tt.jobs, tt.active)
				}
			})
		})
	}
}

func TestAJobIsStartedInTheTimeZoneAndSaysForWhen(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(tick(func(s *batchv1.CronJobSpec) { s.Schedule, s.TimeZone = "30 8 * * *", new("Asia/Shanghai") }))
		w.Settle()
		pass(w, 31*time.Minute) // 00:31 UTC is 08:31 there
		jobs := controllertest.List[*batchv1.Job](w)
		if len(jobs) != 1 {
			t.Fatalf("%d jobs", len(jobs))
		}
		if got, want := jobs[0].Annotations[batchv1.CronJobScheduledTimestampAnnotation], "2000-01-01T08:30:00+08:00"; got != want {
			t.Errorf("scheduled for %s, want %s", got, want)
		}
		cj := controllertest.Get[*batchv1.CronJob](w, "tick")
		if !cj.Status.LastScheduleTime.Time.Equal(time.Date(2000, 1, 1, 0, 30, 0, 0, time.UTC)) {
			t.Errorf("last scheduled at %v", cj.Status.LastScheduleTime)
		}
	})
}

func TestOldJobsAreRemovedAndSuccessIsNoted(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(tick(func(s *batchv1.CronJobSpec) { s.SuccessfulJobsHistoryLimit = new(int32(2)) }))
		w.Settle()
		for range 5 {
			pass(w, 10*time.Minute+time.Second)
			for _, job := range controllertest.List[*batchv1.Job](w) {
				if len(job.Status.Conditions) == 0 {
					complete(w, job)
				}
			}
		}
		cj := controllertest.Get[*batchv1.CronJob](w, "tick")
		if jobs := controllertest.List[*batchv1.Job](w); len(jobs) != 2 || len(cj.Status.Active) != 0 || cj.Status.LastSuccessfulTime == nil {
			t.Errorf("%d jobs, status %+v", len(jobs), cj.Status)
		}
	})
}

func TestAMissedStartIsMadeUpForOnceUnlessItIsTooLate(t *testing.T) {
	tests := []struct {
		name     string
		deadline *int64
		want     int
	}{{"made up for", nil, 1}, {"too late", new(int64(60)), 0}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			controllertest.Run(t, func(w *controllertest.World) {
				w.Create(tick(func(s *batchv1.CronJobSpec) { s.StartingDeadlineSeconds = tt.deadline }))
				time.Sleep(3*365*24*time.Hour + 5*time.Minute)
				defer start(w)()
				if jobs := controllertest.List[*batchv1.Job](w); len(jobs) != tt.want {
					t.Errorf("%d jobs, want %d", len(jobs), tt.want)
				}
			})
		})
	}
}

func TestAnExpiredJobIsDeleted(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(tick(func(s *batchv1.CronJobSpec) { s.JobTemplate.Spec.TTLSecondsAfterFinished = new(int32(60)) }))
		w.Settle()
		pass(w, 10*time.Minute+time.Second)
		complete(w, controllertest.List[*batchv1.Job](w)[0])
		pass(w, 59*time.Second)
		if controllertest.List[*batchv1.Job](w)[0].DeletionTimestamp != nil {
			t.Error("deleted too early")
		}
		pass(w, 2*time.Second)
		if jobs := controllertest.List[*batchv1.Job](w); len(jobs) > 0 && jobs[0].DeletionTimestamp == nil {
			t.Error("not deleted")
		}
	})
}

// A new schedule says nothing of the past: what it would have started then was never due.
func TestANewScheduleStartsAtItsNextTime(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(tick(func(s *batchv1.CronJobSpec) { s.Schedule = "0 0 31 12 *" }))
		pass(w, 25*time.Minute)
		controllertest.Change(w, "tick", func(cj *batchv1.CronJob) { cj.Spec.Schedule = "*/10 * * * *" })
		if jobs := controllertest.List[*batchv1.Job](w); len(jobs) != 0 {
			t.Fatalf("%s was started for a time before the schedule was known", jobs[0].Name)
		}
		pass(w, 6*time.Minute)
		if jobs := controllertest.List[*batchv1.Job](w); len(jobs) != 1 {
			t.Errorf("%d jobs after the next time", len(jobs))
		}
	})
}

// A name that somebody else's Job has taken costs one start, not those after it.
func TestAJobOfAnotherInTheWay(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		cj := tick()
		w.Create(cj)
		taken := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("tick-%d", time.Now().Add(10*time.Minute).Unix()/60)}, Spec: *cj.Spec.JobTemplate.Spec.DeepCopy()}
		w.Create(taken)
		pass(w, 10*time.Minute+time.Second)
		if s := controllertest.Get[*batchv1.CronJob](w, "tick").Status; len(s.Active) != 0 || s.LastScheduleTime != nil {
			t.Errorf("status %+v", s)
		}
		pass(w, 10*time.Minute)
		if jobs := controllertest.List[*batchv1.Job](w); len(jobs) != 2 {
			t.Errorf("%d jobs", len(jobs))
		}
	})
}
