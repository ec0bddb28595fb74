package fairness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// testLevel is a level of its own, without configuration.
func testLevel(seats, queues, hand, longest int) *level {
	start := time.Now()
	l := &level{name: "test", clock: clock.RealClock{}, now: func() time.Duration { return time.Since(start) }, tallies: map[string]*tally{}, limit: seats, nominal: seats, usage: newUsage(0)}
	l.resizeLocked(queues, hand, longest)
	return l
}

func (l *level) flow(name string) Class {
	if l.tallies[name] == nil {
		l.tallies[name] = newTally()
	}
	return Class{schema: &flowSchema{name: name, level: l, tally: l.tallies[name]}, flow: hash(7, name), by: name}
}

// ask is Fairness.Start at one level.
func (l *level) ask(ctx context.Context, c Class, w Width, limit time.Duration) (Ticket, bool) {
	l.mu.Lock()
	t, waiting, why := l.arriveLocked(c, w, l.now())
	l.mu.Unlock()
	if why != "" {
		return t, false
	}
	if waiting == nil {
		return t, true
	}
	return l.wait(ctx, waiting, limit)
}

// A hundred clients of one flow never stop asking; two clients of another do the
// same. Each flow is one queue here or more, so that the polite one gets all it can use.
func TestAFloodDoesNotKeepAPoliteFlowWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLevel(10, 64, 6, 50)
		var clients sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		served := map[string]int{}
		var longest time.Duration
		client := func(c Class) {
			for ctx.Err() == nil {
				ticket, ok := l.ask(ctx, c, Width{Seats: 1}, time.Minute)
				if !ok {
					continue
				}
				l.mu.Lock()
				served[c.by]++
				if c.by == "polite" {
					longest = max(longest, ticket.Waited())
				}
				l.mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				ticket.End()
			}
		}
		flood, polite := l.flow("flood"), l.flow("polite")
		for range 100 {
			clients.Go(func() { client(flood) })
		}
		time.Sleep(time.Second) // the flood has the level to itself
		for range 2 {
			clients.Go(func() { client(polite) })
		}
		<-ctx.Done()
		clients.Wait()
		// Two clients of 10 ms requests could do 1 800 in nine seconds if they never waited; each
		// waits for one of ten seats, of which one is free every millisecond.
		if served["polite"] < 800 || longest > 30*time.Millisecond {
			t.Errorf("polite: %d served, waited up to %v", served["polite"], longest)
		}
		if total := served["polite"] + served["flood"]; total < 9900 {
			t.Errorf("%d served in all: seats stood empty", total)
		}
		if l.seats != 0 || l.waiting != 0 || l.executing != 0 || len(l.backlog) != 0 {
			t.Errorf("%d seats, %d waiting, %d executing at the end", l.seats, l.waiting, l.executing)
		}
	})
}

func TestFlowsThatAskForAllGetTheSameSeatTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLevel(8, 2, 1, 100)
		var clients sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		used := map[string]time.Duration{}
		client := func(c Class, w Width, takes time.Duration) {
			for ctx.Err() == nil {
				ticket, ok := l.ask(ctx, c, w, time.Minute)
				if !ok {
					continue
				}
				time.Sleep(takes)
				ticket.End()
				l.mu.Lock()
				used[c.by] += time.Duration(w.Seats) * takes
				l.mu.Unlock()
			}
		}
		narrow, wide := l.flow("narrow"), l.flow("wide")
		narrow.flow, wide.flow = 0, 1 // each has a queue of its own
		for range 20 {
			clients.Go(func() { client(narrow, Width{Seats: 1}, 2*time.Millisecond) })
			clients.Go(func() { client(wide, Width{Seats: 2}, 20*time.Millisecond) })
		}
		<-ctx.Done()
		clients.Wait()
		if ratio := float64(used["narrow"]) / float64(used["wide"]); ratio < 0.8 || ratio > 1.25 {
			t.Errorf("seat time %v", used)
		}
	})
}

func TestAWideRequestIsNotStarvedByNarrowOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLevel(4, 8, 2, 100)
		var clients sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for i := range 20 {
			c := l.flow(fmt.Sprint("narrow", i%2))
			clients.Go(func() {
				for ctx.Err() == nil {
					if ticket, ok := l.ask(ctx, c, Width{Seats: 1}, time.Minute); ok {
						time.Sleep(time.Duration(3+i) * time.Millisecond)
						ticket.End()
					}
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		ticket, ok := l.ask(ctx, l.flow("wide"), Width{Seats: 4}, 4*time.Second)
		if !ok || ticket.Waited() > 500*time.Millisecond {
			t.Errorf("served %v after %v", ok, ticket.Waited())
		}
		if ok {
			ticket.End()
		}
		<-ctx.Done()
		clients.Wait()
	})
}

func TestWhoIsRefused(t *testing.T) {
	tests := []struct {
		name            string
		queues, longest int
		want            string
	}{
		{"a level without queues refuses what has no seat", 0, 0, reasonLimit},
		{"a full queue refuses", 1, 1, reasonFull},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := testLevel(1, tt.queues, 1, tt.longest)
			c := l.flow("x")
			l.arriveLocked(c, Width{Seats: 1}, 0)
			for range tt.longest {
				if _, w, why := l.arriveLocked(c, Width{Seats: 1}, 0); w == nil || why != "" {
					t.Fatalf("does not wait: %s", why)
				}
			}
			if _, _, why := l.arriveLocked(c, Width{Seats: 1}, 0); why != tt.want {
				t.Errorf("got %q", why)
			}
			if c.schema.tally.refused[tt.want] != 1 {
				t.Error(c.schema.tally.refused)
			}
		})
	}
}

func TestWaitingEndsWithTheTimeOrTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLevel(1, 4, 2, 10)
		c := l.flow("x")
		holder, _ := l.ask(t.Context(), c, Width{Seats: 1}, time.Second)
		if _, ok := l.ask(t.Context(), c, Width{Seats: 1}, time.Second); ok {
			t.Error("served without a seat")
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, ok := l.ask(ctx, c, Width{Seats: 1}, time.Minute); ok {
			t.Error("served after its client left")
		}
		if got := c.schema.tally.refused; got[reasonTimeout] != 1 || got[reasonCancelled] != 1 {
			t.Error(got)
		}
		holder.End()
		if l.seats != 0 || l.waiting != 0 {
			t.Errorf("%d seats, %d waiting", l.seats, l.waiting)
		}
	})
}

func TestALingeringRequestKeepsItsSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLevel(5, 4, 2, 10)
		ticket, _ := l.ask(t.Context(), l.flow("x"), Width{Seats: 1, After: 5, Linger: time.Second}, 0)
		ticket.End()
		if l.executing != 0 || l.seats != 5 {
			t.Errorf("%d executing on %d seats", l.executing, l.seats)
		}
		next, ok := l.ask(t.Context(), l.flow("x"), Width{Seats: 1}, time.Minute)
		if !ok || next.Waited() != time.Second {
			t.Errorf("%v after %v", ok, next.Waited())
		}
		next.End()
	})
}

// The model: whatever order arrivals, ends, cancellations, resizes and changes of
// the limit come in, seats in use are those of the tickets that are out, queues hold
// those who wait, and nobody waits while the next would fit.
func TestNoSeatIsLost(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := testLevel(1+r.IntN(10), 1+r.IntN(8), 1+r.IntN(3), 1+r.IntN(5))
		l.hand = min(l.hand, len(l.queues))
		now := time.Duration(0)
		l.now = func() time.Duration { return now }
		var out []*Ticket
		var waiting []*waiter
		for range 300 {
			now += time.Duration(r.IntN(5)) * time.Millisecond
			switch op := r.IntN(10); {
			case op < 5:
				ticket, w, why := l.arriveLocked(l.flow(fmt.Sprint(r.IntN(6))), Width{Seats: 1 + r.IntN(4)}, now)
				if w != nil {
					waiting = append(waiting, w)
				} else if why == "" {
					out = append(out, &ticket)
				}
			case op < 8 && len(out) > 0:
				i := r.IntN(len(out))
				out[i].End()
				out = append(out[:i], out[i+1:]...)
			case op == 8 && len(waiting) > 0:
				i := r.IntN(len(waiting))
				w := waiting[i]
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if ticket, ok := l.wait(ctx, w, time.Hour); ok {
					out = append(out, &ticket)
				}
				waiting = append(waiting[:i], waiting[i+1:]...)
			case op == 9:
				queues := 1 + r.IntN(8)
				l.resizeLocked(queues, min(2, queues), 1+r.IntN(5))
				l.limit = r.IntN(10)
				l.dispatchLocked(now)
			}
			var still []*waiter
			for _, w := range waiting {
				if w.state == stateStarted {
					out = append(out, &w.ticket)
				} else {
					still = append(still, w)
				}
			}
			waiting = still
			checkLevel(t, l, out, waiting, seed)
		}
	}
}

func checkLevel(t *testing.T, l *level, out []*Ticket, waiting []*waiter, seed uint64) {
	t.Helper()
	seats, wanted, queued := 0, 0, 0
	for _, ticket := range out {
		seats += ticket.width.most()
	}
	for _, w := range waiting {
		wanted += w.ticket.width.most()
	}
	for _, q := range l.backlog {
		n, work := 0, int64(0)
		for w := q.first; w != nil; w = w.next {
			n, work = n+1, work+w.work
		}
		if n != q.length || n == 0 || work != q.work {
			t.Fatalf("seed %d: a queue of %d says %d", seed, n, q.length)
		}
		queued += n
	}
	if seats != l.seats || len(out) != l.executing || len(waiting) != l.waiting || queued != l.waiting || wanted != l.wanted {
		t.Fatalf("seed %d: %d seats of %d requests, %d waiting for %d; the level says %d of %d, %d (%d) for %d",
			seed, seats, len(out), len(waiting), wanted, l.seats, l.executing, l.waiting, queued, l.wanted)
	}
	if l.waiting > 0 {
		if next, _ := l.nextLocked(); l.fitsLocked(next.ticket.width.most()) {
			t.Fatalf("seed %d: the next one waits though there is room", seed)
		}
	}
}

func TestADealIsAHandOfDifferentQueues(t *testing.T) {
	l := testLevel(1, 16, 6, 10)
	for flow := range uint64(500) {
		seen := map[*queue]bool{}
		for range l.hand {
			q := l.dealLocked(hash(1, fmt.Sprint(flow)))
			if seen[q] {
				t.Fatal("a queue was dealt twice")
			}
			seen[q] = true
			q.work++
		}
		for q := range seen {
			q.work = 0
		}
	}
}

func TestRetryAfterGrowsWithRefusals(t *testing.T) {
	var r refusals
	now := time.Duration(0)
	if r.after(now) != 1 {
		t.Error("not one second at first")
	}
	for range 100 {
		for range 50 {
			r.note(now)
		}
		now += time.Second / 2
	}
	if got := r.after(now); got != longestRetry {
		t.Errorf("%d s under constant refusal", got)
	}
	if got := r.after(now + time.Hour); got != 1 {
		t.Errorf("%d s after an hour of peace", got)
	}
}
