// Package scheduler decides where pods run.
//
// One loop takes the most important pod from the queue, looks for the best node
// in its picture of the cluster, counts the pod there at once (assumes it) and goes
// on to the next; the binding is written beside it. What does not fit waits in the
// queue until an event that may help. The packages below: framework (what plugins
// see), plugins (the decisions), profile (a set of plugins), queue and cache.
package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand"
	"runtime"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/scheduler/cache"
	"proa/internal/scheduler/devices"
	"proa/internal/scheduler/extender"
	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/plugins"
	"proa/internal/scheduler/profile"
	"proa/internal/scheduler/queue"
)

// DefaultName is the scheduler that pods name unless they say otherwise.
const DefaultName = corev1.DefaultSchedulerName

// Scheduler is made by New and works while Run does.
type Scheduler struct {
	clock       clock.WithTicker
	parallelism int
	binders     int
	pods        *client.Informer[*corev1.Pod]
	profiles    map[string]*profile.Profile
	recorders   map[string]events.EventRecorder
	journal     *journal // of recorders that the scheduler made
	queue       *queue.Queue
	cache       *cache.Cache
	snapshot    *framework.Snapshot
	attempts    *attempts
	extenders   []*extender.Extender
	bindings    chan *placement
	unwritten   *verdicts
	tasks       tasks
	permits     permits
	metrics     *metrics
	questions   chan question
	devices     *devices.Inventory

	// What follows belongs to the scheduling loop.
	random  *rand.Rand
	sample  *rand.Rand // of the pods whose plugins are timed
	next    int        // node to begin the next search with
	batches batches
	scratch scratch
}

// New registers the scheduler's informers and handlers with the cache, which must
// not run yet.
func New(c Config) (*Scheduler, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if len(c.Profiles) == 0 {
		c.Profiles = []profile.Config{{SchedulerName: DefaultName}}
	}
	s := &Scheduler{
		clock:       c.Clock,
		parallelism: cmp.Or(c.Parallelism, runtime.GOMAXPROCS(0)),
		binders:     cmp.Or(c.Binders, 64),
		pods:        client.Shared[*corev1.Pod](c.Cache),
		profiles:    map[string]*profile.Profile{},
		recorders:   map[string]events.EventRecorder{},
		cache:       cache.New(),
		attempts:    newAttempts(),
		journal:     newJournal(c.Cache.API(), c.Clock),
		bindings:    make(chan *placement, 1024),
		unwritten:   newVerdicts(cmp.Or(c.Binders, 64)),
		questions:   make(chan question),
		metrics:     newMetrics(),
		random:      rand.New(rand.NewSource(cmp.Or(c.Seed, 1))),
		sample:      rand.New(rand.NewSource(cmp.Or(c.Seed, 1))),
	}
	s.snapshot = s.cache.Refresh()
	for _, ec := range c.Extenders {
		e, err := extender.New(ec)
		if err != nil {
			return nil, err
		}
		s.extenders = append(s.extenders, e)
	}
	s.devices = devices.New(c.Cache)
	hints := map[string]map[string][]framework.HintedEvent{}
	for _, pc := range c.Profiles {
		if err := s.addProfile(c, pc, hints); err != nil {
			return nil, err
		}
	}
	first := s.profiles[cmp.Or(c.Profiles[0].SchedulerName, DefaultName)]
	s.queue = queue.New(queue.Config{
		Less:  first.Less,
		Hints: hints,
		Clock: c.Clock,

		Entered: s.entered,
		Hinted:  s.hinted,

		InitialBackoff: c.InitialBackoff,
		MaxBackoff:     c.MaxBackoff,
		PreEnqueue: func(ctx context.Context, pod *corev1.Pod) (string, *framework.Status) {
			return s.profiles[pod.Spec.SchedulerName].PreEnqueue(ctx, pod)
		},
	})
	s.watch(c.Cache)
	if c.Metrics != nil {
		return s, s.register(c.Metrics)
	}
	return s, nil
}

func (s *Scheduler) addProfile(c Config, pc profile.Config, hints map[string]map[string][]framework.HintedEvent) error {
	pc.SchedulerName = cmp.Or(pc.SchedulerName, DefaultName)
	if s.profiles[pc.SchedulerName] != nil {
		return fmt.Errorf("duplicate scheduler name %q", pc.SchedulerName)
	}
	s.recorders[pc.SchedulerName] = s.recorder(c, pc.SchedulerName)
	pc.Count = func(point profile.Point, plugin string) profile.Counter {
		return s.metrics.evaluations.WithLabelValues(plugin, strings.ToUpper(string(point[:1]))+string(point[1:]), pc.SchedulerName)
	}
	pc.Took = func(plugin, point string, code framework.Code, took time.Duration) {
		s.pluginTook(pc.SchedulerName, plugin, point, code, took)
	}
	factories := plugins.Factories()
	maps.Copy(factories, c.Factories)
	p, err := profile.New(pc, factories, framework.Handle{
		Cache: c.Cache, Clock: c.Clock, Recorder: s.recorders[pc.SchedulerName], Snapshot: s.snapshot, Devices: s.devices,
		PodGroups:    c.PodGroups,
		Nominated:    func(node string) []*framework.PodInfo { return s.queue.NominatedTo(node) },
		NominationOf: func(uid types.UID) string { return s.queue.NominationOf(uid) },
		Nominate:     func(pod *framework.PodInfo, node string) { s.queue.Nominate(pod, node) },
		Activate:     func(pod *framework.PodInfo) { s.queue.Activate(context.Background(), pod.Pod.UID) },
		Preempted:    s.preempted,
		Evicted:      s.evicted,
		Allow:        s.Allow,
		Reject:       s.Reject,
		Background:   s.tasks.start,
		Extenders:    s.extenders,
	})
	if err != nil {
		return err
	}
	s.profiles[pc.SchedulerName] = p
	hints[pc.SchedulerName] = p.Hints()
	if len(s.extenders) > 0 { // nobody knows what helps those
		hints[pc.SchedulerName][extender.Name] = []framework.HintedEvent{{Event: framework.Event{Resource: framework.WildCard, Action: framework.All}}}
	}
	return nil
}

func (s *Scheduler) recorder(c Config, name string) events.EventRecorder {
	if c.Recorder != nil {
		return c.Recorder(name)
	}
	return s.journal.recorder(name)
}

// Run schedules until ctx ends and all that it began has ended too. The cache
// must have synced.
func (s *Scheduler) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.queue.Run(ctx) })
	wg.Go(func() { s.journal.run(ctx) })
	wg.Go(func() { s.tasks.run(ctx) })
	for range s.binders {
		wg.Go(func() { s.bindNext(ctx) })
	}
	for _, queue := range s.unwritten.queues {
		wg.Go(func() { s.writeVerdicts(ctx, queue) })
	}
	for ctx.Err() == nil {
		if pod := s.queue.TryPop(); pod != nil {
			s.schedule(ctx, pod)
			s.answerWaiting(ctx)
			continue
		}
		select {
		case <-s.queue.Ready():
		case q := <-s.questions:
			s.answer(ctx, q)
		case <-ctx.Done():
		}
	}
	return nil
}

// tasks are goroutines that end with the scheduler.
type tasks struct {
	mu      sync.Mutex // guards what follows
	ctx     context.Context
	waiting []func(context.Context) // began before run
	wg      sync.WaitGroup
	done    bool
}

func (t *tasks) start(f func(context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.done:
	case t.ctx == nil:
		t.waiting = append(t.waiting, f)
	default:
		ctx := t.ctx
		t.wg.Go(func() { f(ctx) })
	}
}

func (t *tasks) run(ctx context.Context) {
	t.mu.Lock()
	t.ctx = ctx
	for _, f := range t.waiting {
		t.wg.Go(func() { f(ctx) })
	}
	t.waiting = nil
	t.mu.Unlock()
	<-ctx.Done()
	t.mu.Lock()
	t.done = true
	t.mu.Unlock()
	t.wg.Wait()
}
