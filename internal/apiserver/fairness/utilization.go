package fairness

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A utilization follows the ratio of what is used to what there is. As upstream's
// timing histograms it is observed once every nanosecond: its counts are times.
type utilization struct {
	bounds []float64
	times  []uint64 // nanoseconds up to each bound, and above
	sum    float64
	of     float64 // what there is
	used   float64
	since  time.Duration // used
}

func newUtilization(bounds []float64) utilization {
	return utilization{bounds: bounds, times: make([]uint64, len(bounds)+1), of: 1}
}

var (
	requestRatios = []float64{0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1}
	seatRatios    = []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1}
	serverRatios  = []float64{0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1}
)

// begin starts the observation.
func (u *utilization) begin(now time.Duration) { u.since = now }

func (u *utilization) set(now time.Duration, used int) {
	u.advance(now)
	u.used = float64(used)
}

// outOf says how much there is from now on.
func (u *utilization) outOf(now time.Duration, n int) {
	u.advance(now)
	u.of = float64(max(n, 1))
}

// advance counts the time up to now. Of two that come at once the later may be first.
func (u *utilization) advance(now time.Duration) {
	if now <= u.since {
		return
	}
	ratio, took := u.used/u.of, now-u.since
	i := 0
	for i < len(u.bounds) && ratio > u.bounds[i] {
		i++
	}
	u.times[i] += uint64(took)
	u.sum += ratio * float64(took)
	u.since = now
}

func (u *utilization) collect(ch chan<- prometheus.Metric, now time.Duration, d *prometheus.Desc, labels ...string) {
	u.advance(now)
	h := histogram{bounds: u.bounds, counts: u.times}
	total := uint64(0)
	for _, n := range u.times {
		total += n
	}
	ch <- prometheus.MustNewConstHistogram(d, total, u.sum, h.buckets(), labels...)
}

// usage is how much of a level is used.
type usage struct {
	waiting, executing, seats utilization
}

func newUsage(now time.Duration) usage {
	u := usage{newUtilization(requestRatios), newUtilization(requestRatios), newUtilization(seatRatios)}
	u.waiting.begin(now)
	u.executing.begin(now)
	u.seats.begin(now)
	return u
}

// noteLocked takes down how much of the level is used from now on.
func (l *level) noteLocked(now time.Duration) {
	l.demand.set(now, l.seats+l.wanted)
	l.usage.waiting.set(now, l.waiting)
	l.usage.executing.set(now, l.executing)
	l.usage.seats.set(now, l.seats)
}

// server is how much of the whole server those who read and those who write use.
type server struct {
	mu    sync.Mutex // guards the rest
	kinds [2]struct {
		n                  [2]int // requests in each phase
		waiting, executing utilization
	}
}

const (
	reading = iota
	writing
)

const (
	phaseWaiting = iota
	phaseExecuting
)

var (
	kindNames  = [...]string{reading: "readOnly", writing: "mutating"}
	phaseNames = [...]string{phaseWaiting: "waiting", phaseExecuting: "executing"}
)

func (s *server) begin(now time.Duration) {
	for i := range s.kinds {
		k := &s.kinds[i]
		k.waiting, k.executing = newUtilization(serverRatios), newUtilization(serverRatios)
		k.waiting.begin(now)
		k.executing.begin(now)
	}
}

func (s *server) configure(now time.Duration, waiting, executing int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.kinds {
		s.kinds[i].waiting.outOf(now, waiting)
		s.kinds[i].executing.outOf(now, executing)
	}
}

// add takes down that so many more requests of a kind are in a phase.
func (s *server) add(now time.Duration, kind, phase, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.kinds[kind]
	k.n[phase] += n
	[...]*utilization{&k.waiting, &k.executing}[phase].set(now, k.n[phase])
}

func (s *server) collect(ch chan<- prometheus.Metric, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.kinds {
		k := &s.kinds[i]
		k.waiting.collect(ch, now, readWrite, phaseNames[phaseWaiting], kindNames[i])
		k.executing.collect(ch, now, readWrite, phaseNames[phaseExecuting], kindNames[i])
	}
}

// kindOf tells what a verb does.
func kindOf(verb string) int {
	switch verb {
	case "get", "list", "watch":
		return reading
	}
	return writing
}
