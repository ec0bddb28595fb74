package storetest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"

	"proa/internal/store"
)

// read returns the next n events of a watch as text.
func read(t testing.TB, w *store.Watch, n int) (out []string) {
	t.Helper()
	for len(out) < n {
		for _, e := range must[[]store.Event](t)(w.Next(t.Context())) {
			out = append(out, eventString(e))
		}
	}
	return out
}

func testWatchResume(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open()})
	start := s.Revision()
	all := must[*store.Watch](t)(s.Watch(ConfigMaps, "", 0))
	for i := range 100 {
		must[int64](t)(Apply(ctx, s, "ns"+strconv.Itoa(i%2), strconv.Itoa(i%7), strconv.Itoa(i)))
	}
	events := read(t, all, 100)
	for i := 1; i < len(events); i++ {
		w := must[*store.Watch](t)(s.Watch(ConfigMaps, "", start+int64(i)))
		if got := read(t, w, 100-i); !slices.Equal(got, events[i:]) {
			t.Fatalf("after %d events: %v, want %v", i, got, events[i:])
		}
		if w.Revision() != s.Revision() {
			t.Fatalf("having read all, the watch is at %d of %d", w.Revision(), s.Revision())
		}
	}
	odd := must[*store.Watch](t)(s.Watch(ConfigMaps, "ns1", start+40))
	if got := read(t, odd, 30); got[0] != events[41] || got[29] != events[99] {
		t.Errorf("in one namespace: %v", got)
	}
	_, err := s.Watch(ConfigMaps, "", s.Revision()+1)
	wantErr(t, err, store.ErrFuture)
}

func testWatchProgress(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open()})
	pods := must[*store.Watch](t)(s.Watch(Pods, "", 0))
	maps := must[*store.Watch](t)(s.Watch(ConfigMaps, "", 0))
	start := s.Revision()
	for i := range 3 {
		must[int64](t)(Apply(ctx, s, "ns", strconv.Itoa(i), "x"))
	}
	if got := pods.Revision(); got != start+3 {
		t.Errorf("the idle watch is at %d, want %d", got, start+3)
	}
	if got := maps.Revision(); got != start {
		t.Errorf("a watch with events to read is at %d, want %d", got, start)
	}
	read(t, maps, 3)
	if got := maps.Revision(); got != start+3 {
		t.Errorf("having read them it is at %d, want %d", got, start+3)
	}
	other := must[*store.Watch](t)(s.Watch(ConfigMaps, "other", start))
	read(t, other, 0)
	waiting, cancel := context.WithCancel(ctx)
	cancel()
	_, err := other.Next(waiting)
	wantErr(t, err, context.Canceled)
	if got := other.Revision(); got != start+3 {
		t.Errorf("past the events of other namespaces it is at %d, want %d", got, start+3)
	}
}

func testWatchCompacted(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open(), Events: 64})
	slow := must[*store.Watch](t)(s.Watch(ConfigMaps, "", 0))
	idle := must[*store.Watch](t)(s.Watch(Pods, "", 0))
	start := s.Revision()
	for i := range 200 {
		must[int64](t)(Apply(ctx, s, "ns", "a", strconv.Itoa(i)))
	}
	_, err := slow.Next(ctx)
	wantErr(t, err, store.ErrCompacted)
	_, err = s.Watch(ConfigMaps, "", start+1)
	wantErr(t, err, store.ErrCompacted)
	if idle.Revision() != s.Revision() {
		t.Errorf("the idle watch is at %d", idle.Revision())
	}
	recent := must[*store.Watch](t)(s.Watch(ConfigMaps, "", s.Revision()-10))
	if err := s.Compact(ctx, s.Revision()-5); err != nil {
		t.Fatal(err)
	}
	_, err = recent.Next(ctx)
	wantErr(t, err, store.ErrCompacted)
	_, err = s.Watch(Pods, "", s.Revision()-6)
	wantErr(t, err, store.ErrCompacted)
	kept := must[*store.Watch](t)(s.Watch(ConfigMaps, "", s.Revision()-5))
	read(t, kept, 5)
}

// testWatchConcurrent replays the events of watches that start at different
// times, while many write, and compares what they arrive at with the store.
func testWatchConcurrent(t *testing.T, open func() store.Engine) {
	const writers, each, watchers = 6, 40, 8
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open()})
	var writing, watching sync.WaitGroup
	last := make(chan int64, 1)
	for range watchers {
		sn := s.Snapshot()
		w := must[*store.Watch](t)(s.Watch(ConfigMaps, "", sn.Revision()))
		watching.Go(func() { replay(t, s, sn, w, last) })
	}
	for n := range writers {
		writing.Go(func() {
			for i := range each {
				name := strconv.Itoa((n*7 + i) % 10)
				var err error
				if i%4 == 3 {
					_, err = Remove(ctx, s, "ns", name)
				} else {
					_, err = Apply(ctx, s, "ns", name, strconv.Itoa(n*1000+i))
				}
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	must[int64](t)(Apply(ctx, s, "ns", "end", "end"))
	last <- s.Revision()
	watching.Wait()
}

func replay(t *testing.T, s *store.Store, sn *store.Snapshot, w *store.Watch, last chan int64) {
	defer w.Stop()
	state := map[string]*store.Item{}
	revision := sn.Revision()
	for {
		events, err := w.Next(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		for _, e := range events {
			name := e.Item.Key.Namespace + "/" + e.Item.Key.Name
			if e.Item.Revision < revision {
				t.Errorf("%s comes after revision %d", eventString(e), revision)
			}
			if state[name] != e.Prev {
				t.Errorf("%s follows %v", eventString(e), state[name])
			}
			revision = e.Item.Revision
			state[name] = e.Item
			if e.Type == store.Deleted {
				delete(state, name)
			}
		}
		if _, ended := state["ns/end"]; ended {
			break
		}
	}
	end := <-last
	last <- end
	final := Dump(must[*store.Snapshot](t)(s.SnapshotAt(end)))
	if len(final) != len(state) {
		t.Errorf("replayed to %d objects, the store has %d", len(state), len(final))
	}
	for name, item := range state {
		if final[name] != Text(item) {
			t.Errorf("%s replayed to %q, the store has %q", name, Text(item), final[name])
		}
	}
}

func testClose(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := must[*store.Store](t)(store.Open(ctx, store.Config{Engine: open(), Codec: Codec{}}))
	must[int64](t)(Apply(ctx, s, "ns", "a", "1"))
	w := must[*store.Watch](t)(s.Watch(ConfigMaps, "", 0))
	stopped := must[*store.Watch](t)(s.Watch(ConfigMaps, "", 0))
	stopped.Stop()
	stopped.Stop()
	_, err := stopped.Next(ctx)
	wantErr(t, err, store.ErrClosed)

	ended := make(chan error)
	go func() {
		_, err := w.Next(ctx)
		ended <- err
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, <-ended, store.ErrClosed)
	_, err = Apply(ctx, s, "ns", "a", "2")
	wantErr(t, err, store.ErrClosed)
	wantErr(t, s.WaitFor(ctx, s.Revision()+1), store.ErrClosed)
	if got := Dump(s.Snapshot())["ns/a"]; got != "1" {
		t.Errorf("a closed store shows %q", got)
	}
}
