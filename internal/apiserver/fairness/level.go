package fairness

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// level is a priority level: seats, and queues of those who wait for them.
//
// While nobody waits, whoever comes is served and nothing is accounted: what is
// used then is taken from nobody. The first to wait begins a busy period, which
// lasts until nobody waits. Within it the queues are served by start-time fair
// queuing: a queue's virtual time moves on by the seats times the time its
// requests take, and the queue that is furthest back goes next. The time a
// request takes is guessed when it starts and put right when it ends. So two
// queues that always have someone waiting get the same seat-seconds, whatever
// their requests cost; and a queue that was empty joins at the level's virtual
// time: it has no claim on the past.
//
// A flow is dealt a hand of the queues by its hash, and each of its requests joins
// the one of them where the least work waits. A flow that floods fills its own hand;
// another flow's hand is most unlikely to lie wholly within it.
type level struct {
	name   string
	exempt bool // set once
	clock  clock.Clock
	now    func() time.Duration

	refused refusals

	mu      sync.Mutex // guards what follows, and the queues and tallies
	limit   int        // of seats, now
	queues  []*queue   // none: nobody waits
	hand    int        // queues that are dealt to a flow
	longest int        // requests in one queue

	seats     int // in use
	executing int // requests
	waiting   int // requests
	wanted    int // seats that those who wait want

	backlog []*queue      // those with somebody waiting
	period  uint64        // of being busy; 0: none yet
	began   time.Duration // the busy period
	virtual int64         // of the busy period, in seat-nanoseconds
	order   uint64        // of arrivals
	tallies map[string]*tally
	demand  integrator
	usage   usage
	counts  levelCounts
	running []run // with gaps
	gaps    []int // in running

	nominal, least, most int     // seats: configured, without what is lent, with what is borrowed
	smoothed             float64 // demand
	target               float64 // seats
	last                 demand
	draining             bool // its object is gone
}

// guess is the time that a request is taken to need until it has ended.
const guess = 3 * time.Millisecond

// queue is a part of a level's line.
type queue struct {
	index      int
	first, end *waiter
	length     int
	work       int64 // guessed, of those who wait
	seats      int   // in use by its requests
	executing  int   // its requests
	period     uint64
	virtual    int64 // start of its next request
}

// waiter is a request that waits.
type waiter struct {
	ticket     Ticket
	class      Class
	work       int64
	virtual    int64 // of the level at its arrival: it cannot start earlier
	order      uint64
	arrived    time.Duration
	ready      chan struct{} // closed when it has its seats
	prev, next *waiter
	state      int
}

const (
	stateWaiting = iota
	stateStarted
	stateGone
)

// Ticket is a request's hold on its seats.
type Ticket struct {
	level   *level
	queue   *queue // nil: of a level without queues
	tally   *tally
	width   Width
	started time.Duration
	waited  time.Duration
	period  uint64 // of being busy, in which it was charged; 0: none
	run     int    // its place in running

	server *server // that it is counted in; nil: in none
	kind   int
}

// run is a request that is being answered.
type run struct {
	class   Class // zero: nothing is
	width   Width
	queue   *queue
	arrived time.Duration
	started time.Duration
}

// Waited is how long the request had to wait.
func (t *Ticket) Waited() time.Duration { return t.waited }

func (l *level) fitsLocked(seats int) bool {
	switch {
	case l.exempt:
		return true
	case seats > l.limit:
		return l.executing == 0 && l.seats == 0 // it will never be narrower
	}
	return l.seats+seats <= l.limit
}

// arriveLocked serves a request at once, makes it wait, or says why it is refused.
func (l *level) arriveLocked(c Class, w Width, now time.Duration) (Ticket, *waiter, string) {
	tally := c.schema.tally
	t := Ticket{level: l, tally: tally, width: w}
	tally.widths.observe(float64(w.most()))
	if w.write {
		tally.watches.observe(float64(w.watches))
	}
	if l.exempt || len(l.queues) == 0 {
		if !l.fitsLocked(w.most()) {
			return t, nil, l.refuseLocked(tally, reasonLimit, now)
		}
		l.startLocked(c, &t, now)
		return t, nil, ""
	}
	t.queue = l.dealLocked(c.flow)
	if l.waiting == 0 && l.fitsLocked(w.most()) {
		l.startLocked(c, &t, now)
		return t, nil, ""
	}
	if t.queue.length >= l.longest {
		return t, nil, l.refuseLocked(tally, reasonFull, now)
	}
	return t, l.enqueueLocked(c, t, now), ""
}

func (l *level) refuseLocked(t *tally, reason string, now time.Duration) string {
	t.refused[reason]++
	l.counts.refused++
	l.refused.note(now)
	return reason
}

// startLocked gives a request its seats.
func (l *level) startLocked(c Class, t *Ticket, now time.Duration) {
	seats := t.width.most()
	t.started = now
	l.runLocked(c, t)
	l.seats += seats
	l.executing++
	l.counts.dispatched++
	t.tally.dispatched++
	t.tally.executing++
	t.tally.seats += seats
	if !l.exempt {
		t.tally.waits.observe(t.waited.Seconds())
	}
	if t.queue != nil {
		t.queue.seats += seats
		t.queue.executing++
	}
	l.noteLocked(now)
}

// runLocked notes who is being answered, in a place that is free.
func (l *level) runLocked(c Class, t *Ticket) {
	r := run{class: c, width: t.width, queue: t.queue, arrived: t.started - t.waited, started: t.started}
	if n := len(l.gaps); n > 0 {
		t.run, l.gaps = l.gaps[n-1], l.gaps[:n-1]
		l.running[t.run] = r
		return
	}
	t.run = len(l.running)
	l.running = append(l.running, r)
}

func (l *level) enqueueLocked(c Class, t Ticket, now time.Duration) *waiter {
	if l.waiting == 0 {
		l.period++
		l.began, l.virtual = now, 0
	}
	q := t.queue
	q.joinLocked(l)
	l.order++
	w := &waiter{
		ticket: t, class: c, work: int64(t.width.most()) * int64(guess), virtual: l.virtual,
		order: l.order, arrived: now, ready: make(chan struct{}),
	}
	if q.length == 0 {
		l.backlog = append(l.backlog, q)
	}
	q.pushLocked(w)
	l.waiting++
	l.wanted += t.width.most()
	t.tally.waiting++
	t.tally.wanted += t.width.most()
	t.tally.lengths.observe(float64(q.length))
	l.noteLocked(now)
	l.dispatchLocked(now)
	return w
}

// joinLocked takes a queue into the busy period: what it has running is charged.
func (q *queue) joinLocked(l *level) {
	if q.period != l.period {
		q.period = l.period
		q.virtual = l.virtual + int64(q.seats)*int64(guess)
	}
}

func (q *queue) pushLocked(w *waiter) {
	if w.prev = q.end; w.prev == nil {
		q.first = w
	} else {
		w.prev.next = w
	}
	q.end = w
	q.length++
	q.work += w.work
}

// leaveLocked takes a request out of its queue.
func (l *level) leaveLocked(w *waiter, now time.Duration) {
	q := w.ticket.queue
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.end = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	q.length--
	q.work -= w.work
	if q.length == 0 {
		i := slices.Index(l.backlog, q)
		l.backlog[i] = l.backlog[len(l.backlog)-1]
		l.backlog[len(l.backlog)-1] = nil
		l.backlog = l.backlog[:len(l.backlog)-1]
	}
	l.waiting--
	l.wanted -= w.ticket.width.most()
	w.ticket.tally.waiting--
	w.ticket.tally.wanted -= w.ticket.width.most()
	l.noteLocked(now)
}

// dispatchLocked starts those who wait, the one furthest back first, until the
// next of them does not fit.
func (l *level) dispatchLocked(now time.Duration) {
	for l.waiting > 0 {
		w, start := l.nextLocked()
		if !l.fitsLocked(w.ticket.width.most()) {
			w.ticket.tally.noRoom++
			return
		}
		l.leaveLocked(w, now)
		l.virtual = max(l.virtual, start)
		w.ticket.queue.virtual = start + w.work
		w.ticket.period = l.period
		w.ticket.waited = now - w.arrived
		l.startLocked(w.class, &w.ticket, now)
		w.state = stateStarted
		close(w.ready)
	}
}

// nextLocked is the request with the earliest virtual start; of several the one
// that came first.
func (l *level) nextLocked() (next *waiter, start int64) {
	for _, q := range l.backlog {
		s := max(q.virtual, q.first.virtual)
		if next == nil || s < start || s == start && q.first.order < next.order {
			next, start = q.first, s
		}
	}
	return next, start
}

// wait blocks until the request has its seats, the client is gone or the time is up.
func (l *level) wait(ctx context.Context, w *waiter, limit time.Duration) (Ticket, bool) {
	timer := l.clock.NewTimer(limit)
	defer timer.Stop()
	reason := reasonTimeout
	select {
	case <-w.ready:
	case <-timer.C():
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			reason = reasonCancelled
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.state == stateStarted {
		return w.ticket, true
	}
	now := l.now()
	w.state = stateGone
	l.leaveLocked(w, now)
	w.ticket.tally.gaveUp.observe((now - w.arrived).Seconds())
	if reason == reasonTimeout {
		l.counts.timedOut++
	} else {
		l.counts.cancelled++
	}
	l.refuseLocked(w.ticket.tally, reason, now)
	l.dispatchLocked(now) // a wide one may have stood before narrow ones
	return Ticket{}, false
}

// End gives the seats back; a request whose work goes on after its answer keeps
// them until that is done. Call it once.
func (t *Ticket) End() {
	l := t.level
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if t.server != nil {
		t.server.add(now, t.kind, phaseExecuting, -1)
	}
	took := now - t.started
	l.executing--
	t.tally.executing--
	l.running[t.run] = run{}
	l.gaps = append(l.gaps, t.run)
	if t.queue != nil {
		t.queue.executing--
	}
	l.noteLocked(now)
	t.tally.times.observe(took.Seconds())
	l.settleLocked(t, now)
	if t.width.Linger > 0 {
		go l.linger(*t)
		return
	}
	l.releaseLocked(t, now)
}

// linger holds the seats a little longer.
func (l *level) linger(t Ticket) {
	<-l.clock.After(t.width.Linger)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseLocked(&t, l.now())
}

// settleLocked puts the charge for a request right, now that its time is known.
func (l *level) settleLocked(t *Ticket, now time.Duration) {
	q := t.queue
	if q == nil || l.waiting == 0 || q.period != l.period {
		return
	}
	took := now - max(t.started, l.began) + t.width.Linger
	q.virtual += int64(took-guess) * int64(t.width.most())
}

func (l *level) releaseLocked(t *Ticket, now time.Duration) {
	seats := t.width.most()
	l.seats -= seats
	t.tally.seats -= seats
	if t.queue != nil {
		t.queue.seats -= seats
	}
	l.noteLocked(now)
	l.dispatchLocked(now)
}

// largestHand is more than any that validation lets pass.
const largestHand = 64

// dealLocked deals a hand to a flow and returns the queue of it with the least
// work waiting; where nobody waits, with the fewest seats in use.
func (l *level) dealLocked(flow uint64) *queue {
	n := uint64(len(l.queues))
	if n == 1 {
		return l.queues[0]
	}
	var hand [largestHand]uint64 // sorted
	var best *queue
	for i := range min(l.hand, largestHand, int(n)) {
		left := n - uint64(i)
		card := flow % left
		flow /= left
		at := 0
		for at < i && hand[at] <= card { // the card-th of those that are left
			card++
			at++
		}
		copy(hand[at+1:i+1], hand[at:i])
		hand[at] = card
		q := l.queues[card]
		if best == nil || q.work < best.work || q.work == best.work && q.seats < best.seats {
			best = q
		}
	}
	return best
}

// resizeLocked sets how many queues there are. Those that go are drained: what
// waits in them stays in the backlog.
func (l *level) resizeLocked(queues, hand, longest int) {
	for len(l.queues) < queues {
		l.queues = append(l.queues, &queue{index: len(l.queues)})
	}
	if len(l.queues) > queues {
		l.queues = slices.Clone(l.queues[:queues])
	}
	l.hand, l.longest = hand, longest
}

func (l *level) idleLocked() bool { return l.waiting == 0 && l.executing == 0 && l.seats == 0 }
