// Package bench is the load generator behind the published figures. It speaks
// to any Kubernetes API server over its kubeconfig, as clients do, and reads
// what the server's processes used from /proc.
//
// It shares the machine with the server it measures, so it does as little as it
// can: request bodies are bytes with a number to replace, responses are not
// decoded. Server CPU per call is the figure that a busy machine distorts least.
package bench

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

// Figure is one line of a report. Fields that do not apply are zero.
type Figure struct {
	Task    string  `json:"task"`              // what was done: create, list, fan-out
	How     string  `json:"how,omitempty"`     // under which conditions: "16 clients", "json"
	Count   int     `json:"count,omitempty"`   // how often
	Failed  int     `json:"failed,omitempty"`  // and how often it went wrong
	Seconds float64 `json:"seconds,omitempty"` // how long all of it took

	PerSecond float64 `json:"perSecond,omitempty"`
	Rates     *Rates  `json:"rates,omitempty"` // of whole seconds
	Floor     float64 `json:"floor,omitempty"` // per second, that upstream's own test of this asks for
	P50       float64 `json:"p50Millis,omitempty"`
	P99       float64 `json:"p99Millis,omitempty"`
	CPU       float64 `json:"serverCPUMillisEach,omitempty"` // of the server, for one
	Bytes     int64   `json:"bytesEach,omitempty"`           // received, for one
	Memory    int64   `json:"serverMemoryBytes,omitempty"`   // see the task: what it has, or the most it had more than before
}

// Rates are how much was done in a second: half of all seconds had no more than
// P50, and so on.
type Rates struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

// Report takes figures as they are found.
type Report func(Figure)

// sample collects durations from several goroutines.
type sample struct {
	mu     sync.Mutex // guards the rest
	times  []time.Duration
	failed int
	first  error
}

func (s *sample) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, d)
}

func (s *sample) merge(times []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, times...)
}

func (s *sample) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed++
	if s.first == nil {
		s.first = err
	}
}

// quantile is the smallest time that at least the given part of all times do not
// exceed; 0 of none. times are sorted.
func quantile(times []time.Duration, part float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	rank := int(math.Ceil(part*float64(len(times)))) - 1
	return times[min(max(rank, 0), len(times)-1)]
}

// figure sums a sample up that took a time and that the server spent CPU on.
func (s *sample) figure(task, how string, took, cpu time.Duration) Figure {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.times)
	f := Figure{
		Task: task, How: how, Count: len(s.times), Failed: s.failed, Seconds: took.Seconds(),
		P50: millis(quantile(s.times, 0.5)), P99: millis(quantile(s.times, 0.99)),
	}
	if f.Count > 0 {
		f.CPU = millis(cpu) / float64(f.Count)
		f.PerSecond = float64(f.Count) / took.Seconds()
	}
	return f
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// together runs a function n times at once and returns the first error.
func together(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := fn(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
