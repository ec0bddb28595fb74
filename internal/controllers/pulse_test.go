package controllers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// unfinished gathers the age of a queue's work in progress, in seconds.
func unfinished(t *testing.T, r *prometheus.Registry, queue string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "workqueue_unfinished_work_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == queue {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("queue %s is not measured", queue)
	return 0
}

func TestUnfinishedWorkIsMeasuredWhenItIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := prometheus.NewRegistry()
		release := make(chan struct{})
		l := NewLoop("slow", Config{Clock: clock.RealClock{}, Queues: NewQueues(r)}, func(context.Context, Key) (Result, error) {
			<-release
			return Result{}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		l.Enqueue(Key{Name: "a"})
		synctest.Wait()
		time.Sleep(7 * time.Second) // of the test's own clock
		if got := unfinished(t, r, "slow"); got != 7 {
			t.Errorf("unfinished for %v s, want 7", got)
		}
		close(release)
		synctest.Wait()
		if got := unfinished(t, r, "slow"); got != 0 {
			t.Errorf("unfinished for %v s, want none", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := unfinished(t, r, "slow"); got != 0 {
			t.Errorf("after the end unfinished for %v s", got)
		}
	})
}
