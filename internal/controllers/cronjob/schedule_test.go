package cronjob

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDue(t *testing.T) {
	at := func(s string) time.Time {
		d, err := time.Parse("2006-01-02 15:04:05", s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	created := at("2026-01-01 00:00:30")
	tests := []struct {
		name, schedule string
		deadline       *int64
		last, now      string
		due            string // "" for none
		next           time.Duration
		missed         int64
	}{
		{"not yet", "0 * * * *", nil, "", "2026-01-01 00:59:59", "", time.Second + lag, 0},
		{"now", "0 * * * *", nil, "", "2026-01-01 01:00:00", "2026-01-01 01:00:00", time.Hour + lag, 1},
		{"done before", "0 * * * *", nil, "2026-01-01 01:00:00", "2026-01-01 01:30:00", "", 30*time.Minute + lag, 0},
		{"the latest of several missed", "0 * * * *", nil, "2026-01-01 01:00:00", "2026-01-01 05:30:00", "2026-01-01 05:00:00", 30*time.Minute + lag, 4},
		{"years of missed ones", "* * * * *", nil, "", "2029-01-01 00:00:10", "2029-01-01 00:00:00", 50*time.Second + lag, 1578240},
		{"not before the deadline's window", "0 0 * * *", new(int64(60)), "", "2026-01-05 12:00:00", "", 12*time.Hour + lag, 0},
		{"a schedule with gaps", "0 9 * * 1-5", nil, "2026-01-02 09:00:00", "2026-01-06 08:00:00", "2026-01-05 09:00:00", time.Hour + lag, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
			cj.Spec.Schedule, cj.Spec.StartingDeadlineSeconds = tt.schedule, tt.deadline
			if tt.last != "" {
				cj.Status.LastScheduleTime = &metav1.Time{Time: at(tt.last)}
			}
			s, problem := parse(cj)
			if problem != nil {
				t.Fatal(problem)
			}
			due, missed, err := s.due(cj, at(tt.now))
			if err != nil {
				t.Fatal(err)
			}
			var want time.Time
			if tt.due != "" {
				want = at(tt.due)
			}
			if !due.Equal(want) || missed != tt.missed {
				t.Errorf("due %v with %d missed, want %v with %d", due, missed, want, tt.missed)
			}
			if next := s.next(cj, at(tt.now)); next != tt.next {
				t.Errorf("next in %v, want %v", next, tt.next)
			}
		})
	}
}

func TestSchedulesThatCannotBeUsed(t *testing.T) {
	tests := []struct{ name, schedule, zone, reason string }{
		{"nonsense", "every day", "", "UnparseableSchedule"},
		{"an unknown zone", "0 0 * * *", "Mars/X", "UnknownTimeZone"},
		{"a zone in the schedule works with a warning", "TZ=UTC 0 0 * * *", "", "UnsupportedSchedule"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cj := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: tt.schedule}}
			if tt.zone != "" {
				cj.Spec.TimeZone = &tt.zone
			}
			s, problem := parse(cj)
			if problem == nil || problem.reason != tt.reason || (s != nil) != (tt.reason == "UnsupportedSchedule") {
				t.Errorf("got %v, %v", s, problem)
			}
		})
	}
	never := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: "59 23 31 2 *"}}
	s, _ := parse(never)
	if _, _, err := s.due(never, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)); err == nil {
		t.Error("a date that never comes is accepted")
	}
}
