// Package queue holds the pods that wait for a node.
//
//	             ┌────────── event that helps ──────────┐
//	             ▼                                      │
//	Add ──▶   active ── Pop ──▶ in flight ── fails ──▶ waiting
//	             ▲                  │                   │
//	             └── backoff ◀──────┴── error, or an ───┘
//	                                    event that came too early
//
// Active pods are ready, the most urgent first. Backoff holds those tried a
// moment ago. Waiting are those that some plugins rejected; an event moves only
// the pods whose plugins say that it may help (KEP-4247), and pods whose
// PreEnqueue plugin keeps them out wait there too. Events that happen while a pod
// is in flight are kept and asked about when it fails, so none is lost.
package queue

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"proa/internal/scheduler/framework"
)

// Config is what a Queue is built from.
type Config struct {
	Less func(a, b *framework.QueuedPodInfo) bool
	// PreEnqueue asks the plugins of a pod's profile; it names the one that says no.
	PreEnqueue func(ctx context.Context, pod *corev1.Pod) (plugin string, s *framework.Status)
	// Hints are the events that plugins registered, by scheduler name and plugin.
	Hints map[string]map[string][]framework.HintedEvent
	Clock clock.WithTicker

	InitialBackoff, MaxBackoff time.Duration // 0 means 1 s and 10 s
	MaxWait                    time.Duration // of a waiting pod without any event; 0 means 5 min

	// Entered is told into which part of the queue a pod has come, and why. Nil: nobody is.
	Entered func(part State, cause string)
	// Hinted is told what a plugin's hint said about an event. Nil: nobody is.
	Hinted func(plugin, event string, hint framework.Hint, took time.Duration)
}

// Causes for which a pod comes into a part of the queue, besides events.
const (
	attemptFailure  = "ScheduleAttemptFailure"
	backoffComplete = "BackoffComplete"
	poppedEarly     = "PopFromBackoffQ"
	activated       = "ForceActivate"
	waitedLong      = "UnschedulableTimeout"
)

var (
	podAdded   = framework.Event{Resource: framework.UnscheduledPod, Action: framework.Add}.Label()
	podUpdated = framework.Event{Resource: framework.UnscheduledPod, Action: framework.UpdateOther}.Label()
)

// Queue is safe for concurrent use.
type Queue struct {
	*Nominations
	config  Config
	byEvent map[framework.Event][]registration // memo of what an event concerns
	ready   chan struct{}                      // signals Pop
	changed chan struct{}                      // signals Run

	mu       sync.Mutex // guards what follows
	seq      int64
	active   *podHeap
	backoff  *podHeap // after a rejection
	failed   *podHeap // backoff after an error
	waiting  map[types.UID]*framework.QueuedPodInfo
	overdue  *podHeap                          // waiting pods that are not gated
	byPlugin map[string]map[types.UID]struct{} // waiting pods by what rejects them
	flights  map[types.UID]*flight
	aloft    map[types.UID]*flight // those of flights that have not landed
	events   []happened            // since the oldest flight took off
	base     int64                 // position of events[0] in all that happened
}

// flight is a pod between Pop and its binding or return.
type flight struct {
	since  int64 // position in events
	landed bool
	urgent bool        // to be activated when it returns
	newest *corev1.Pod // as updated since Pop
}

type happened struct {
	event    framework.Event
	old, new any
}

// registration is a hint that may apply to an event.
type registration struct {
	scheduler, plugin string
	hint              framework.HintFunc
	concerns          func(old, new any) (pods []types.UID, any bool) // nil: any
}

// New returns an empty queue.
func New(c Config) *Queue {
	if c.InitialBackoff == 0 {
		c.InitialBackoff = time.Second
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = 10 * time.Second
	}
	if c.MaxWait == 0 {
		c.MaxWait = 5 * time.Minute
	}
	if c.Entered == nil {
		c.Entered = func(State, string) {}
	}
	if c.Hinted == nil {
		c.Hinted = func(string, string, framework.Hint, time.Duration) {}
	}
	sooner := func(a, b *framework.QueuedPodInfo) bool { return a.Expires.Before(b.Expires) }
	return &Queue{
		Nominations: newNominations(),
		config:      c,
		byEvent:     map[framework.Event][]registration{},
		ready:       make(chan struct{}, 1),
		changed:     make(chan struct{}, 1),
		active:      newPodHeap(c.Less),
		backoff:     newPodHeap(sooner),
		failed:      newPodHeap(sooner),
		overdue:     newPodHeap(func(a, b *framework.QueuedPodInfo) bool { return a.Added.Before(b.Added) }),
		waiting:     map[types.UID]*framework.QueuedPodInfo{},
		byPlugin:    map[string]map[types.UID]struct{}{},
		flights:     map[types.UID]*flight{},
		aloft:       map[types.UID]*flight{},
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Add takes in a pod without a node.
func (q *Queue) Add(ctx context.Context, pod *corev1.Pod) {
	info, _ := framework.NewPodInfo(pod) // a selector that does not parse is PreFilter's to report
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.findLocked(pod.UID) != nil || q.flights[pod.UID] != nil {
		return
	}
	q.seq++
	p := &framework.QueuedPodInfo{PodInfo: info, Seq: q.seq, Added: q.config.Clock.Now()}
	q.NominateFromStatus(info)
	q.enterLocked(ctx, p, podAdded)
}

// enterLocked puts a pod into the active queue, if its PreEnqueue plugins agree.
func (q *Queue) enterLocked(ctx context.Context, p *framework.QueuedPodInfo, cause string) {
	p.GatedBy = ""
	if plugin, s := q.config.PreEnqueue(ctx, p.Pod); !s.IsSuccess() {
		p.GatedBy = plugin
		p.RejectedBy = []string{plugin}
		q.waitLocked(p, cause)
		return
	}
	p.Expires = time.Time{}
	q.active.push(p)
	q.config.Entered(Active, cause)
	signal(q.ready)
}

func (q *Queue) waitLocked(p *framework.QueuedPodInfo, cause string) {
	q.config.Entered(Unschedulable, cause)
	q.waiting[p.Pod.UID] = p
	for _, plugin := range p.RejectedBy {
		if q.byPlugin[plugin] == nil {
			q.byPlugin[plugin] = map[types.UID]struct{}{}
		}
		q.byPlugin[plugin][p.Pod.UID] = struct{}{}
	}
	if p.GatedBy == "" {
		q.overdue.push(p)
		q.wakeLocked(q.overdue, p)
	}
}

// wakeLocked has Run look again when p is what it must wait for now.
func (q *Queue) wakeLocked(h *podHeap, p *framework.QueuedPodInfo) {
	if h.peek() == p {
		signal(q.changed)
	}
}

func (q *Queue) unwaitLocked(p *framework.QueuedPodInfo) {
	delete(q.waiting, p.Pod.UID)
	q.overdue.remove(p.Pod.UID)
	for _, plugin := range p.RejectedBy {
		delete(q.byPlugin[plugin], p.Pod.UID)
	}
}

func (q *Queue) findLocked(uid types.UID) *framework.QueuedPodInfo {
	for _, h := range []*podHeap{q.active, q.backoff, q.failed} {
		if p := h.get(uid); p != nil {
			return p
		}
	}
	return q.waiting[uid]
}

// Update takes in a new version of a pod without a node.
func (q *Queue) Update(ctx context.Context, old, pod *corev1.Pod) {
	info, _ := framework.NewPodInfo(pod)
	event := framework.Event{Resource: framework.UnscheduledPod, Action: PodActions(old, pod)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.flights[pod.UID]; f != nil {
		f.newest = pod
		if event.Action != 0 {
			q.rememberLocked(event, old, pod)
		}
		return
	}
	p := q.findLocked(pod.UID)
	if p == nil {
		q.seq++
		p = &framework.QueuedPodInfo{PodInfo: info, Seq: q.seq, Added: q.config.Clock.Now()}
		q.enterLocked(ctx, p, podUpdated)
		return
	}
	p.PodInfo = info
	q.Renominate(old, info)
	if _, waits := q.waiting[pod.UID]; !waits {
		q.active.fix(pod.UID)
		return
	}
	if event.Action != 0 {
		q.reconsiderLocked(ctx, p, []happened{{event, old, pod}})
	}
}

// Delete forgets a pod: it is gone, or has a node.
func (q *Queue) Delete(uid types.UID) {
	q.Unnominate(uid)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flights[uid] != nil {
		delete(q.flights, uid)
		q.landLocked(uid)
		return
	}
	q.takeLocked(uid)
}

// takeLocked removes a pod from wherever it is and returns it.
func (q *Queue) takeLocked(uid types.UID) *framework.QueuedPodInfo {
	for _, h := range []*podHeap{q.active, q.backoff, q.failed} {
		if p := h.remove(uid); p != nil {
			return p
		}
	}
	p := q.waiting[uid]
	if p != nil {
		q.unwaitLocked(p)
	}
	return p
}

// Pop waits for the next pod. When no pod is active it takes one from backoff:
// an idle scheduler has no reason to make it wait.
func (q *Queue) Pop(ctx context.Context) (*framework.QueuedPodInfo, error) {
	for {
		if p := q.TryPop(); p != nil {
			return p, nil
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Ready signals that a pod may have become active; it is for callers of TryPop.
func (q *Queue) Ready() <-chan struct{} { return q.ready }

// TryPop is Pop, or nil when no pod is ready.
func (q *Queue) TryPop() *framework.QueuedPodInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.active.pop()
	if p == nil {
		if p = q.backoff.pop(); p == nil {
			return nil
		}
		q.config.Entered(Active, poppedEarly)
	}
	if p.Attempts++; p.Attempts == 1 {
		p.FirstAttempt = q.config.Clock.Now()
	}
	f := &flight{since: q.base + int64(len(q.events))}
	q.flights[p.Pod.UID], q.aloft[p.Pod.UID] = f, f
	return p
}

// Done says that a pod in flight will not be rejected any more: a failure from
// here on is an error. It stays in flight until Delete or Return.
func (q *Queue) Done(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.flights[uid]; f != nil {
		f.landed = true
		q.landLocked(uid)
	}
}

// landLocked drops the events that no flight needs any more.
func (q *Queue) landLocked(uid types.UID) {
	delete(q.aloft, uid)
	oldest := q.base + int64(len(q.events))
	for _, f := range q.aloft {
		oldest = min(oldest, f.since)
	}
	if drop := oldest - q.base; drop > 0 {
		q.events = slices.Delete(q.events, 0, int(drop))
		q.base = oldest
	}
}

// Return takes back a pod whose attempt failed. Its RejectedBy and PendingOn say
// why; without any it failed by an error. False: the pod was deleted meanwhile.
func (q *Queue) Return(ctx context.Context, p *framework.QueuedPodInfo) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.flights[p.Pod.UID]
	if f == nil {
		return false
	}
	var missed []happened
	if !f.landed {
		missed = slices.Clone(q.events[f.since-q.base:])
	}
	delete(q.flights, p.Pod.UID)
	q.landLocked(p.Pod.UID)
	if f.newest != nil {
		p.PodInfo, _ = framework.NewPodInfo(f.newest)
	}
	p.Added, p.Flushed = q.config.Clock.Now(), false
	if len(p.RejectedBy) == 0 {
		p.Errors++
		p.Expires = p.Added.Add(q.backoffAfter(p.Errors))
		q.failed.push(p)
		q.config.Entered(Backoff, attemptFailure)
		q.wakeLocked(q.failed, p)
		return true
	}
	p.Errors = 0
	p.Expires = p.Added.Add(q.backoffAfter(p.Attempts))
	if f.urgent {
		q.enterLocked(ctx, p, activated)
		return true
	}
	if helped, skipBackoff, _ := q.helpLocked(p, missed); helped {
		q.moveLocked(ctx, p, skipBackoff, attemptFailure)
	} else {
		q.waitLocked(p, attemptFailure)
	}
	return true
}

func (q *Queue) backoffAfter(attempts int) time.Duration {
	d := q.config.InitialBackoff
	for i := 1; i < attempts && d < q.config.MaxBackoff; i++ {
		d *= 2
	}
	return min(d, q.config.MaxBackoff)
}

// Happened takes in a change of the cluster.
func (q *Queue) Happened(ctx context.Context, event framework.Event, old, new any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.rememberLocked(event, old, new) || len(q.waiting) == 0 {
		return
	}
	concerned := map[types.UID]*framework.QueuedPodInfo{}
	for _, r := range q.registeredLocked(event) {
		if r.concerns != nil {
			if pods, any := r.concerns(old, new); !any {
				for _, uid := range pods {
					if _, rejected := q.byPlugin[r.plugin][uid]; rejected {
						concerned[uid] = q.waiting[uid]
					}
				}
				continue
			}
		}
		for uid := range q.byPlugin[r.plugin] {
			concerned[uid] = q.waiting[uid]
		}
	}
	for _, p := range bySeq(concerned) {
		q.reconsiderLocked(ctx, p, []happened{{event, old, new}})
	}
}

func bySeq(pods map[types.UID]*framework.QueuedPodInfo) []*framework.QueuedPodInfo {
	list := make([]*framework.QueuedPodInfo, 0, len(pods))
	for _, p := range pods {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *framework.QueuedPodInfo) int { return int(a.Seq - b.Seq) })
	return list
}

// rememberLocked keeps an event for the flights; false when it concerns no plugin.
func (q *Queue) rememberLocked(event framework.Event, old, new any) bool {
	if len(q.registeredLocked(event)) == 0 {
		return false
	}
	if len(q.aloft) > 0 {
		q.events = append(q.events, happened{event, old, new})
	}
	return true
}

func (q *Queue) registeredLocked(event framework.Event) []registration {
	found, ok := q.byEvent[event]
	if ok {
		return found
	}
	for _, scheduler := range slices.Sorted(maps.Keys(q.config.Hints)) {
		plugins := q.config.Hints[scheduler]
		for _, plugin := range slices.Sorted(maps.Keys(plugins)) {
			for _, he := range plugins[plugin] {
				if he.Match(event) {
					found = append(found, registration{scheduler, plugin, he.Hint, he.Concerns})
				}
			}
		}
	}
	q.byEvent[event] = found
	return found
}

// reconsiderLocked moves a waiting pod on if one of the events may help it.
func (q *Queue) reconsiderLocked(ctx context.Context, p *framework.QueuedPodInfo, events []happened) {
	if helped, skipBackoff, cause := q.helpLocked(p, events); helped {
		q.moveLocked(ctx, p, skipBackoff, cause)
	}
}

// helpLocked tells whether one of the events may help a rejected pod, whether it
// need not wait for its backoff then, and the label of the event.
func (q *Queue) helpLocked(p *framework.QueuedPodInfo, events []happened) (helped, skipBackoff bool, cause string) {
	for _, h := range events {
		for _, r := range q.registeredLocked(h.event) {
			if r.scheduler != p.Pod.Spec.SchedulerName || !slices.Contains(p.RejectedBy, r.plugin) {
				continue
			}
			if h.event.Resource == framework.UnscheduledPod && !isAbout(h.new, p.Pod) ||
				h.event.Resource == framework.AssignedPod && (isAbout(h.old, p.Pod) || gaveUpWith(h.old, p.Pod)) {
				continue
			}
			if q.hintLocked(r, p, h) == framework.Queue {
				helped, cause = true, h.event.Label()
				skipBackoff = skipBackoff || slices.Contains(p.PendingOn, r.plugin)
			}
		}
	}
	return helped, skipBackoff, cause
}

func (q *Queue) hintLocked(r registration, p *framework.QueuedPodInfo, h happened) framework.Hint {
	if r.hint == nil {
		return framework.Queue
	}
	began := q.config.Clock.Now()
	hint := r.hint(p.Pod, h.old, h.new)
	q.config.Hinted(r.plugin, h.event.Label(), hint, q.config.Clock.Since(began))
	return hint
}

// isAbout tells whether an event's object is pod itself. A rejected pod's own
// update may help it; the place that it has just given back does not.
func isAbout(object any, pod *corev1.Pod) bool {
	of, ok := object.(*corev1.Pod)
	return ok && of != nil && of.UID == pod.UID
}

// gaveUpWith tells whether an event's object is a pod of the same group that was
// never bound: its place is free again because they did not all find one.
func gaveUpWith(object any, pod *corev1.Pod) bool {
	of, ok := object.(*corev1.Pod)
	if !ok || of == nil || of.Spec.NodeName != "" || of.Namespace != pod.Namespace {
		return false
	}
	a, b := of.Spec.SchedulingGroup, pod.Spec.SchedulingGroup
	return a != nil && b != nil && a.PodGroupName != nil && b.PodGroupName != nil && *a.PodGroupName == *b.PodGroupName
}

func (q *Queue) moveLocked(ctx context.Context, p *framework.QueuedPodInfo, skipBackoff bool, cause string) {
	q.unwaitLocked(p)
	if p.GatedBy == "" && !skipBackoff && p.Expires.After(q.config.Clock.Now()) {
		q.backoff.push(p)
		q.config.Entered(Backoff, cause)
		q.wakeLocked(q.backoff, p)
		signal(q.ready)
		return
	}
	q.enterLocked(ctx, p, cause)
}

// Activate moves a pod to the active queue, whatever it waits for.
func (q *Queue) Activate(ctx context.Context, uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.flights[uid]; f != nil {
		f.urgent = true
	} else if p := q.takeLocked(uid); p != nil {
		q.enterLocked(ctx, p, activated)
	}
}

// Run ends backoffs and long waits until ctx ends.
func (q *Queue) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		var timeout <-chan time.Time
		stop := func() bool { return false }
		if next := q.flush(ctx); !next.IsZero() {
			timer := q.config.Clock.NewTimer(next.Sub(q.config.Clock.Now()))
			timeout, stop = timer.C(), timer.Stop
		}
		select {
		case <-timeout:
		case <-q.changed:
		case <-ctx.Done():
		}
		stop()
	}
	return nil
}

// flush moves what is due and returns when to look again; zero for never.
func (q *Queue) flush(ctx context.Context) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.config.Clock.Now()
	var next time.Time
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, h := range []*podHeap{q.backoff, q.failed} {
		for p := h.peek(); p != nil && !p.Expires.After(now); p = h.peek() {
			q.enterLocked(ctx, h.pop(), backoffComplete)
		}
		if p := h.peek(); p != nil {
			sooner(p.Expires)
		}
	}
	for p := q.overdue.peek(); p != nil; p = q.overdue.peek() {
		if due := p.Added.Add(q.config.MaxWait); due.After(now) {
			sooner(due)
			break
		}
		p.Flushed = true
		q.moveLocked(ctx, p, false, waitedLong)
	}
	return next
}

// InFlight counts what is kept for the pods between Pop and their end, by the
// label of the event; "PodPopped" are those pods themselves.
func (q *Queue) InFlight() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	counts := map[string]int{"PodPopped": len(q.aloft)}
	for _, h := range q.events {
		counts[h.event.Label()]++
	}
	return counts
}

// Lengths counts pods by state, as scheduler_pending_pods.
func (q *Queue) Lengths() (active, backoff, unschedulable, gated int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.waiting {
		if p.GatedBy != "" {
			gated++
		}
	}
	return q.active.len(), q.backoff.len() + q.failed.len(), len(q.waiting) - gated, gated
}
