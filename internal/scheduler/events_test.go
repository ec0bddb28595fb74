package scheduler

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/client"
	"proa/internal/store/memory"
)

func TestEqualEventsAreASeries(t *testing.T) {
	api := newServer(t, memory.New())
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 123456789)) // finer than what is encoded
	j := newJournal(api, clock)
	r := j.recorder("me")
	p := mustCreate(t, api, pod("p", "1"))
	known := map[seriesKey]*series{}
	note := func(reason string) {
		r.Eventf(p, nil, corev1.EventTypeWarning, reason, "Scheduling", "no %s", "room")
		for _, q := range j.queues {
			select {
			case ev := <-q:
				j.take(t.Context(), known, ev)
			default:
			}
		}
		clock.Step(time.Second)
	}
	written := func() (events []*corev1.Event) {
		events, err := client.Of[*corev1.Event](api).List(t.Context(), "default", metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
	note("FailedScheduling")
	if got := written(); len(got) != 1 || got[0].Message != "no room" || got[0].ReportingController != "me" || got[0].Action != "Scheduling" ||
		got[0].InvolvedObject.Kind != "Pod" || got[0].InvolvedObject.UID != p.UID || got[0].EventTime.IsZero() || got[0].Series != nil {
		t.Fatalf("%+v", got)
	}
	note("FailedScheduling")
	if got := written(); len(got) != 1 || got[0].Series == nil || got[0].Series.Count != 2 {
		t.Fatalf("the second is counted at once: %+v", got)
	}
	note("FailedScheduling")
	note("Other")
	if got := written(); len(got) != 2 {
		t.Fatalf("another reason is another event: %+v", got)
	}
	j.review(t.Context(), known)
	if got := written(); got[0].Series == nil || got[0].Series.Count != 3 {
		t.Fatalf("later ones are counted now and then: %+v", got[0])
	}
	clock.Step(seriesEnd + time.Minute)
	j.review(t.Context(), known)
	note("FailedScheduling")
	if got := written(); len(got) != 3 {
		t.Errorf("a series ends: %+v", got)
	}
}

func TestEventsNeverBlock(t *testing.T) {
	api := newServer(t, memory.New())
	j := newJournal(api, clocktesting.NewFakeClock(time.Unix(1e9, 0)))
	r := j.recorder("me")
	p := pod("p", "1")
	for range eventBacklog + 5 { // nobody writes
		r.Eventf(p, nil, corev1.EventTypeNormal, "Scheduled", "Binding", "x")
	}
	if got := j.dropped.Load(); got != 5 {
		t.Errorf("%d dropped", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { j.run(ctx) })
	cancel()
	wg.Wait()
}
