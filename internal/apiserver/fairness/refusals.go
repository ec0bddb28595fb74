package fairness

import (
	"sync"
	"time"
)

// Why requests are refused, as the metric says.
const (
	reasonFull      = "queue-full"
	reasonLimit     = "concurrency-limit"
	reasonTimeout   = "time-out"
	reasonCancelled = "cancelled"
)

// longestRetry bounds Retry-After, in seconds.
const longestRetry = 32

// refusals tells clients when to come again. The time doubles while more than
// three are refused in each of its seconds, and shrinks by one second when fewer
// than one is.
type refusals struct {
	mu    sync.Mutex
	began time.Duration // the window
	count int           // refused in it
	retry int           // seconds, and the length of the window
}

func (r *refusals) note(now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turnLocked(now)
	r.count++
}

func (r *refusals) after(now time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turnLocked(now)
	return r.retry
}

// turnLocked judges windows that are over.
func (r *refusals) turnLocked(now time.Duration) {
	r.retry = max(r.retry, 1)
	for window := time.Duration(r.retry) * time.Second; now-r.began >= window; window = time.Duration(r.retry) * time.Second {
		switch {
		case r.count >= 3*r.retry:
			r.retry = min(2*r.retry, longestRetry)
		case r.count < r.retry && r.retry > 1:
			r.retry--
		case r.retry == 1:
			r.began, r.count = now, 0
			return
		}
		r.began += window
		r.count = 0
	}
}
