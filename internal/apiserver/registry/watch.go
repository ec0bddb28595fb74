package registry

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/store"
)

const (
	bookmarkEvery = time.Minute
	// bookmarkEarly is how long before its timeout a watch gets its last bookmark.
	bookmarkEarly = 2 * time.Second
)

// Event is one change that a watch reports. The item of a bookmark carries only a resourceVersion.
type Event struct {
	Type watch.EventType
	Item *store.Item
}

// Watch is one client's stream of changes. It is read by one goroutine.
type Watch struct {
	q      *Request
	sel    *selector
	source *store.Watch
	batch  []Event

	initial      []*store.Item // still to be reported as added
	initialRev   int64
	endOfInitial bool // the annotated bookmark is still due

	refused   error  // what it ends with instead of any event
	from      int64  // changes up to this revision are passed over
	bookmarks bool   // the client takes them
	alarm     *alarm // nil: no bookmarks and no timeout
}

// initialBatch bounds how much of the initial list one Next returns.
const initialBatch = 500

// Watch starts a stream of the objects that the options select. It ends when ctx
// does; call Stop when done before that.
func (r *Registry) Watch(ctx context.Context, q *Request, opts metav1.ListOptions) (*Watch, error) {
	if err := r.watchComputed(q); err != nil {
		return nil, err
	}
	if err := validateListOptions(&opts, true); err != nil {
		return nil, err
	}
	sel, err := newSelector(q, &opts)
	if err != nil {
		return nil, err
	}
	if rv := opts.ResourceVersion; rv != "" {
		if _, wrong := revisionOf(rv, "resourceVersion"); wrong != nil {
			return nil, unknown(wrong.Error())
		}
	}
	w := &Watch{q: q, sel: sel, bookmarks: opts.AllowWatchBookmarks}
	if err := r.begin(ctx, w, &opts); err != nil {
		return nil, err
	}
	if timeout := opts.TimeoutSeconds; opts.AllowWatchBookmarks || timeout != nil {
		w.alarm = newAlarm(ctx, r.clock, opts.AllowWatchBookmarks, timeout)
	}
	if c := q.View.Custom; c != nil { // when its objects look otherwise, the client has to ask again
		if w.alarm == nil {
			w.alarm = &alarm{done: make(chan struct{})}
		}
		w.alarm.forget = context.AfterFunc(c.Lifetime, func() { w.alarm.ring(dueEnd) })
	}
	return w, nil
}

// begin opens the source and, when the options ask for current state first, takes it.
func (r *Registry) begin(ctx context.Context, w *Watch, opts *metav1.ListOptions) error {
	rv, send := opts.ResourceVersion, opts.SendInitialEvents
	list := rv == "" || anyVersion(rv)
	if send != nil {
		list = *send
	}
	if list {
		err := r.reach(ctx, rv, "resourceVersion")
		if apierrors.IsTimeout(err) {
			w.refused = err // told in the stream, which has begun when the wait does
			return nil
		}
		if err != nil {
			return err
		}
		snapshot := r.store.Snapshot()
		first, err := r.collect(&page{snapshot: snapshot}, w.q, w.sel)
		if err != nil {
			return err
		}
		w.initial, w.initialRev = first.Items, first.Revision
		w.endOfInitial = send != nil && opts.AllowWatchBookmarks
		return w.open(r.store, first.Revision)
	}
	if rv == "" || anyVersion(rv) {
		if err := r.reach(ctx, rv, "resourceVersion"); err != nil {
			return err
		}
		return w.open(r.store, r.store.Revision())
	}
	rev, err := parseRevision(rv, "resourceVersion")
	if err != nil {
		return err
	}
	err = w.open(r.store, rev)
	if errors.Is(err, store.ErrFuture) { // it sees nothing until that revision is passed
		w.from = rev
		return w.open(r.store, r.store.Revision())
	}
	return err
}

func (w *Watch) open(s *store.Store, from int64) error {
	var source *store.Watch
	var err error
	if t := w.sel.index; t != nil {
		source, err = s.WatchField(w.q.resource(), t.field, t.value, w.sel.namespace, from)
	} else {
		source, err = s.Watch(w.q.resource(), w.sel.namespace, from)
	}
	if err != nil {
		return watchError(err)
	}
	w.source = source
	return nil
}

func watchError(err error) error {
	if errors.Is(err, store.ErrCompacted) {
		return apierrors.NewResourceExpired("The resourceVersion for the provided watch is too old.")
	}
	if errors.Is(err, store.ErrClosed) {
		return io.EOF
	}
	return err
}

// Stop ends the watch and frees what it holds.
func (w *Watch) Stop() {
	if w.source != nil {
		w.source.Stop()
	}
	if w.alarm != nil {
		w.alarm.stop()
	}
}

// Next blocks for at least one event and returns all that wait, in order. It
// ends with a 410 Expired StatusError, io.EOF when the watch's time is up or the
// store closed, or ctx's error. The slice is valid until the next call.
func (w *Watch) Next(ctx context.Context) ([]Event, error) {
	w.batch = w.batch[:0]
	if w.refused != nil {
		return nil, w.refused
	}
	if len(w.initial) > 0 {
		return w.nextInitial(), nil
	}
	if w.endOfInitial {
		w.endOfInitial = false
		return append(w.batch, w.bookmark(w.initialRev, map[string]string{metav1.InitialEventsAnnotationKey: "true"})), nil
	}
	for {
		changes, due, err := w.wait(ctx)
		if err != nil {
			return nil, err
		}
		for i := range changes {
			if changes[i].Item.Revision > w.from {
				w.add(&changes[i])
			}
		}
		if due == dueBookmark && w.source.Revision() >= w.from {
			w.batch = append(w.batch, w.bookmark(max(w.source.Revision(), w.initialRev), nil))
		}
		if len(w.batch) > 0 {
			return w.batch, nil
		}
		if due == dueEnd {
			return nil, io.EOF
		}
	}
}

// Begun reports whether the first state was returned whole: what comes now are changes.
func (w *Watch) Begun() bool { return len(w.initial) == 0 && !w.endOfInitial }

func (w *Watch) nextInitial() []Event {
	n := min(len(w.initial), initialBatch)
	for _, item := range w.initial[:n] {
		w.batch = append(w.batch, Event{watch.Added, item})
	}
	if w.initial = w.initial[n:]; len(w.initial) == 0 {
		w.initial = nil
	}
	return w.batch
}

// wait blocks for changes or for the alarm.
func (w *Watch) wait(ctx context.Context) ([]store.Event, due, error) {
	if w.alarm == nil {
		changes, err := w.source.Next(ctx)
		return changes, dueNothing, watchError(err)
	}
	if d := w.alarm.arm(ctx); d != dueNothing {
		return nil, d, nil
	}
	changes, err := w.source.Next(w.alarm.waiting)
	if err != nil && ctx.Err() == nil && w.alarm.waiting.Err() != nil {
		return nil, w.alarm.take(), nil
	}
	return changes, dueNothing, watchError(err)
}

// add appends what a change of the store means to a watcher that sees only what
// its selector matches: an object that starts to match is added, one that no
// longer does is deleted.
func (w *Watch) add(e *store.Event) {
	now := e.Type != store.Deleted && w.sel.matches(e.Item.Object)
	before := e.Prev != nil && w.sel.matches(e.Prev.Object)
	switch {
	case now && before:
		w.batch = append(w.batch, Event{watch.Modified, e.Item})
	case now:
		w.batch = append(w.batch, Event{watch.Added, e.Item})
	case before && e.Type == store.Deleted:
		w.batch = append(w.batch, Event{watch.Deleted, e.Item})
	case before:
		last := e.Prev.Object.DeepCopyObject().(apis.Object)
		last.SetResourceVersion(strconv.FormatInt(e.Item.Revision, 10))
		w.batch = append(w.batch, Event{watch.Deleted, store.NewItem(e.Item.Key, last)})
	}
}

func (w *Watch) bookmark(revision int64, annotations map[string]string) Event {
	obj := w.q.View.New()
	obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	obj.SetAnnotations(annotations)
	return Event{watch.Bookmark, store.NewItem(store.Key{Resource: w.q.resource()}, obj)}
}

// Last is the bookmark that a client gets when the server stops, so that it
// resumes where it was; false for a client that takes none or has not seen the
// initial list whole. Call it between two calls of Next.
func (w *Watch) Last() (Event, bool) {
	if !w.bookmarks || w.refused != nil || len(w.initial) > 0 || w.endOfInitial || w.source.Revision() < w.from {
		return Event{}, false
	}
	return w.bookmark(max(w.source.Revision(), w.initialRev), nil), true
}

// due is what an alarm rang for.
type due int

const (
	dueNothing due = iota
	dueBookmark
	dueEnd
)

// alarm interrupts a watch that waits for changes when a bookmark or its end is due.
type alarm struct {
	waiting context.Context // what a wait ends with; used by the watch's reader
	within  context.Context // what waiting was made from

	mu     sync.Mutex // guards what follows
	rang   due
	cancel context.CancelFunc // of waiting

	done   chan struct{}
	once   sync.Once
	forget func() bool // stops waiting for the end of a custom resource; nil: none
}

func newAlarm(ctx context.Context, c clock.WithTicker, bookmarks bool, timeoutSeconds *int64) *alarm {
	a := &alarm{done: make(chan struct{})}
	var end time.Time
	if timeoutSeconds != nil {
		end = c.Now().Add(time.Duration(*timeoutSeconds) * time.Second)
	}
	timer := c.NewTimer(a.until(c.Now(), end, bookmarks))
	go func() {
		defer timer.Stop()
		for {
			select {
			case <-timer.C():
			case <-a.done:
				return
			case <-ctx.Done():
				return
			}
			now := c.Now()
			if !end.IsZero() && !now.Before(end) {
				a.ring(dueEnd)
				return
			}
			a.ring(dueBookmark)
			timer.Reset(a.until(now, end, bookmarks))
		}
	}()
	return a
}

// until is the time to the next ring.
func (a *alarm) until(now, end time.Time, bookmarks bool) time.Duration {
	if !bookmarks {
		return end.Sub(now)
	}
	d := bookmarkEvery
	if !end.IsZero() {
		left := end.Sub(now)
		if left <= bookmarkEarly {
			return left
		}
		d = min(d, left-bookmarkEarly)
	}
	return d
}

func (a *alarm) ring(d due) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rang = max(a.rang, d)
	if a.cancel != nil {
		a.cancel()
	}
}

// arm lets the alarm interrupt a wait within ctx that starts now, unless it has
// rung already. The context of the wait is made anew only when it has to be.
func (a *alarm) arm(ctx context.Context) due {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.within != ctx || a.waiting.Err() != nil {
		if a.cancel != nil {
			a.cancel()
		}
		a.within = ctx
		a.waiting, a.cancel = context.WithCancel(ctx)
	}
	return a.takeLocked()
}

func (a *alarm) take() due {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.takeLocked()
}

// takeLocked empties the alarm; its end stays.
func (a *alarm) takeLocked() due {
	d := a.rang
	if d != dueEnd {
		a.rang = dueNothing
	}
	return d
}

func (a *alarm) stop() {
	a.once.Do(func() { close(a.done) })
	if a.forget != nil {
		a.forget()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel != nil {
		a.cancel()
	}
}
