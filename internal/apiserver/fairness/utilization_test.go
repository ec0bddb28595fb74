package fairness

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// seconds are the times within each bucket that has any.
func seconds(u *utilization) map[float64]float64 {
	got := map[float64]float64{}
	for i, ns := range u.times {
		if ns > 0 && i < len(u.bounds) {
			got[u.bounds[i]] = time.Duration(ns).Seconds()
		}
	}
	return got
}

func TestUtilizationIsOfTime(t *testing.T) {
	u := newUtilization(seatRatios)
	u.outOf(0, 10)
	u.set(2*time.Second, 5)  // 2 s of nothing
	u.set(5*time.Second, 10) // 3 s of half
	u.set(4*time.Second, 10) // a clock that another has read before
	u.outOf(6*time.Second, 20)
	u.advance(10 * time.Second) // 1 s of all, 4 s of half again
	if got := seconds(&u); len(got) != 3 || got[0] != 2 || got[0.5] != 7 || got[1] != 1 {
		t.Errorf("seconds by ratio: %v", got)
	}
	if want := (3*0.5 + 1 + 4*0.5) * 1e9; u.sum != want {
		t.Errorf("the sum is %v, want %v", u.sum, want)
	}
}

func TestALevelTellsHowMuchOfItIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLevel(2, 1, 1, 4)
		l.usage.seats.outOf(0, 2)
		l.usage.waiting.outOf(0, 4)
		one, _ := l.ask(t.Context(), l.flow("a"), Width{Seats: 2}, time.Minute)
		two := make(chan Ticket)
		go func() {
			ticket, _ := l.ask(t.Context(), l.flow("a"), Width{Seats: 1}, time.Minute)
			two <- ticket
		}()
		synctest.Wait()
		time.Sleep(10 * time.Second)
		d := requestDump{}
		l.mu.Lock()
		rows := d.ofLocked(l)
		l.mu.Unlock()
		if len(rows) != 2 || strings.Join(rows[0][:5], " ") != "test a 0 0 a" || strings.Join(rows[1][:5], " ") != "test a 0 -1 a" {
			t.Errorf("the dump shows %v", rows)
		}
		one.End()
		second := <-two
		time.Sleep(5 * time.Second)
		second.End()
		l.mu.Lock()
		defer l.mu.Unlock()
		if got := seconds(&l.usage.seats); got[1] != 10 || got[0.5] != 5 {
			t.Errorf("seats in use: %v", got)
		}
		if got := seconds(&l.usage.waiting); got[0.25] != 10 || got[0] != 5 {
			t.Errorf("waiting: %v", got)
		}
		if rows := d.ofLocked(l); len(rows) != 0 || len(l.gaps) != len(l.running) {
			t.Errorf("after the end the dump shows %v", rows)
		}
		ch := make(chan prometheus.Metric, 1)
		l.usage.seats.collect(ch, l.now(), seatUse, "test")
		var m dto.Metric
		if err := (<-ch).Write(&m); err != nil || m.Histogram.GetSampleCount() != uint64(15*time.Second) {
			t.Errorf("the metric is %v, %v", &m, err)
		}
	})
}
