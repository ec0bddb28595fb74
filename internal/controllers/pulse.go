package controllers

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// pulse has queues set the gauges of their unfinished work when these are gathered.
// Left alone, every queue wakes up twice a second for them, which is most of what a
// control plane without work does.
type pulse struct {
	gauges []prometheus.Collector

	mu    sync.Mutex // guards beats
	beats []*beat
}

// clock tells a queue the time, and gives it a ticker that ticks with the pulse.
func (p *pulse) clock(c clock.WithTicker) clock.WithTicker { return pulsing{c, p} }

type pulsing struct {
	clock.WithTicker
	pulse *pulse
}

func (c pulsing) NewTicker(time.Duration) clock.Ticker {
	b := &beat{ticks: make(chan time.Time), stopped: make(chan struct{})}
	b.stop = sync.OnceFunc(func() { close(b.stopped) })
	c.pulse.mu.Lock()
	defer c.pulse.mu.Unlock()
	c.pulse.beats = append(c.pulse.beats, b)
	return b
}

// beat is the ticker of one queue.
type beat struct {
	ticks   chan time.Time
	stopped chan struct{}
	stop    func()
}

func (b *beat) C() <-chan time.Time { return b.ticks }
func (b *beat) Stop()               { b.stop() }

// tick returns once the queue has done what it does at a tick: it takes the second
// tick only then. False: the queue has ended.
func (b *beat) tick() bool {
	for range 2 {
		select {
		case b.ticks <- time.Time{}:
		case <-b.stopped:
			return false
		}
	}
	return true
}

func (p *pulse) Describe(to chan<- *prometheus.Desc) {
	for _, g := range p.gauges {
		g.Describe(to)
	}
}

// Collect gathers the gauges of this moment.
func (p *pulse) Collect(to chan<- prometheus.Metric) {
	p.mu.Lock()
	beating := p.beats[:0]
	for _, b := range p.beats {
		if b.tick() {
			beating = append(beating, b)
		}
	}
	clear(p.beats[len(beating):])
	p.beats = beating
	p.mu.Unlock()
	for _, g := range p.gauges {
		g.Collect(to)
	}
}
