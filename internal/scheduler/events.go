package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/clock"

	"proa/internal/client"
)

// journal writes events in the background, in the form of events.k8s.io: one with
// the time it happened, and a series when it repeats. Bindings must not wait for
// events, nor fall behind them, so a few writers take them from bounded queues;
// what does not fit is dropped. (client-go's broadcaster starts a goroutine per
// event, which at thousands of pods a second take the machine from the bindings.)
//
// They are stored as core/v1 Events, the type that both groups share.
type journal struct {
	events  client.Resource[*corev1.Event]
	clock   clock.WithTicker
	seed    maphash.Seed
	queues  [eventWriters]chan *corev1.Event // by object, so that its events stay in order
	dropped atomic.Int64
}

const (
	eventWriters = 4
	eventBacklog = 4096            // per writer
	maxSeries    = 4096            // remembered per writer
	seriesPeriod = time.Minute     // between writes of a series' count
	seriesEnd    = 6 * time.Minute // after the last event of a series
)

func newJournal(api client.API, clk clock.WithTicker) *journal {
	j := &journal{events: client.Of[*corev1.Event](api), clock: clk, seed: maphash.MakeSeed()}
	for i := range j.queues {
		j.queues[i] = make(chan *corev1.Event, eventBacklog)
	}
	return j
}

// recorder makes the events of one scheduler name.
type recorder struct {
	*journal
	controller, instance string
}

func (j *journal) recorder(name string) *recorder {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &recorder{j, name, name + "-" + host}
}

// Eventf notes an event; it never blocks.
func (r *recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	of, err := reference.GetReference(scheme.Scheme, regarding)
	if err != nil {
		slog.Warn("event about an unknown kind", "reason", reason, "err", err)
		return
	}
	now := r.clock.Now()
	ev := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(of.Namespace, metav1.NamespaceDefault),
			Name:      fmt.Sprintf("%v.%x", of.Name, now.UnixNano()),
		},
		InvolvedObject: *of, Type: kind, Reason: reason, Action: action, Message: fmt.Sprintf(note, args...),
		EventTime: metav1.NewMicroTime(now), ReportingController: r.controller, ReportingInstance: r.instance,
	}
	if related != nil {
		ev.Related, _ = reference.GetReference(scheme.Scheme, related)
	}
	select {
	case r.queues[maphash.String(r.seed, string(of.UID))%eventWriters] <- ev:
	default:
		r.dropped.Add(1)
	}
}

// run writes until ctx ends.
func (j *journal) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, queue := range j.queues {
		wg.Go(func() { j.write(ctx, queue) })
	}
	wg.Wait()
}

// seriesKey is what equal events have in common.
type seriesKey struct {
	kind, reason, action, controller string
	of                               corev1.ObjectReference // with its version: the object has not changed
	related                          corev1.ObjectReference
}

func keyOf(ev *corev1.Event) seriesKey {
	key := seriesKey{kind: ev.Type, reason: ev.Reason, action: ev.Action, controller: ev.ReportingController, of: ev.InvolvedObject}
	if ev.Related != nil {
		key.related = *ev.Related
	}
	return key
}

// series is an event that may repeat.
type series struct {
	namespace, name string
	count           int32
	last            metav1.MicroTime
	unwritten       bool
}

func (j *journal) write(ctx context.Context, queue <-chan *corev1.Event) {
	known := map[seriesKey]*series{}
	tick := j.clock.NewTicker(seriesPeriod)
	defer tick.Stop()
	for {
		select {
		case ev := <-queue:
			j.take(ctx, known, ev)
		case <-tick.C():
			j.review(ctx, known)
		case <-ctx.Done():
			return
		}
	}
}

// take writes a new event at once, and so the first repetition; later ones count.
func (j *journal) take(ctx context.Context, known map[seriesKey]*series, ev *corev1.Event) {
	key := keyOf(ev)
	s := known[key]
	if s == nil {
		if len(known) >= maxSeries {
			clear(known)
		}
		known[key] = &series{namespace: ev.Namespace, name: ev.Name, count: 1, last: ev.EventTime}
		if _, err := j.events.Create(ctx, ev); err != nil {
			j.failed(ctx, err)
		}
		return
	}
	s.count++
	s.last, s.unwritten = ev.EventTime, true
	if s.count == 2 {
		j.update(ctx, s)
	}
}

// review writes the counts that have grown, and forgets series that have ended.
func (j *journal) review(ctx context.Context, known map[seriesKey]*series) {
	for key, s := range known {
		if s.unwritten {
			j.update(ctx, s)
		}
		if j.clock.Since(s.last.Time) > seriesEnd {
			delete(known, key)
		}
	}
	if n := j.dropped.Swap(0); n > 0 {
		slog.WarnContext(ctx, "events were dropped: more than could be written", "events", n)
	}
}

func (j *journal) update(ctx context.Context, s *series) {
	s.unwritten = false
	patch := map[string]any{"series": corev1.EventSeries{Count: s.count, LastObservedTime: s.last}}
	if _, err := j.events.MergePatch(ctx, s.namespace, s.name, patch); err != nil {
		j.failed(ctx, err)
	}
}

func (j *journal) failed(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return // the object or its namespace is on its way out, and so is this process
	}
	slog.WarnContext(ctx, "cannot write event", "err", err)
}

// maxNote is the longest message of an event, in bytes.
const maxNote = 1024

func truncated(message string) string {
	const suffix = " ..."
	if len(message) <= maxNote {
		return message
	}
	return message[:maxNote-len(suffix)] + suffix
}
