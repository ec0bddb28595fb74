package cluster

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// pacer decides how much the heap may grow until the next garbage collection.
// Marking takes time in proportion to what is live, which here is mostly the
// shared state: a fixed percentage either collects a small heap many times a
// second while requests come in, or lets a large one keep a lot of garbage
// while nothing happens. So the growth follows the pace: it doubles while
// collections come faster than they are worth, and halves while they are rare.
type pacer struct {
	growth int64 // bytes
	last   time.Time
}

const (
	minGrowth = 8 << 20
	maxGrowth = 96 << 20  // of a small heap
	maxDouble = 512 << 20 // up to here a heap may double, beyond it grows by half

	// worth is the time between collections, per byte that is live, at which
	// marking takes about a twentieth of one processor (it does 1 GB/s).
	worth = 20 * time.Second / (1 << 30)
)

// collected is told of the end of a collection and returns the percentage
// for the next one.
func (p *pacer) collected(now time.Time, live int64) (percent int) {
	live = max(live, 1<<20)
	interval, wanted := now.Sub(p.last), time.Duration(live)*worth
	switch {
	case p.last.IsZero():
	case interval < wanted/2:
		p.growth *= 2
	case interval > wanted*2:
		p.growth /= 2
	}
	p.last = now
	p.growth = min(max(p.growth, minGrowth, live/16), max(maxGrowth, min(live, maxDouble), live/2))
	return int(p.growth * 100 / live)
}

// paceCollector starts the pacing, unless the environment says otherwise. It goes
// on for as long as the process.
func paceCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	p := &pacer{growth: minGrowth}
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent := 0
	var rearm func(struct{})
	rearm = func(struct{}) {
		metrics.Read(heap)
		if wanted := p.collected(time.Now(), int64(heap[0].Value.Uint64())); wanted != percent {
			percent = wanted
			debug.SetGCPercent(percent)
		}
		notice := new([16]byte) // found unreachable by the next collection
		runtime.AddCleanup(notice, rearm, struct{}{})
	}
	rearm(struct{}{})
}
