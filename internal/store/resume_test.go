package store_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	corev1 "k8s.io/api/core/v1"

	"proa/internal/store"
	"proa/internal/store/memory"
	"proa/internal/store/pebble"
	"proa/internal/store/storetest"
)

var byText = []store.Index{{Resource: storetest.ConfigMaps, Field: "text", Value: func(obj store.Object) string {
	return obj.(*corev1.ConfigMap).Data["text"]
}}}

func write(t *testing.T, s *store.Store, name, text string) int64 {
	t.Helper()
	revision, err := storetest.Apply(t.Context(), s, "ns", name, text)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func TestHistoryFromTheEngineKeepsTheBudgets(t *testing.T) {
	fs := vfs.NewMem()
	open := func(c store.Config) *store.Store {
		e, err := pebble.Open(pebble.Config{Dir: "store", FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		c.Engine, c.Codec = e, storetest.Codec{}
		s, err := store.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(store.Config{})
	for i := range 100 {
		write(t, s, strconv.Itoa(i%5), strconv.Itoa(i))
	}
	s.Close()

	tests := []struct {
		name   string
		config store.Config
		before func(*store.Store) // the first watch
		from   int64              // of the newest revision
		err    error
	}{
		{"within both", store.Config{}, nil, 99, nil},
		{"within the number of events", store.Config{Events: 20}, nil, 20, nil},
		{"beyond the number of events", store.Config{Events: 20}, nil, 21, store.ErrCompacted},
		{"beyond the bytes", store.Config{EventBytes: 500}, nil, 99, store.ErrCompacted},
		{"after events were dropped, which leaves a gap", store.Config{Events: 3}, func(s *store.Store) {
			for i := range 5 {
				write(t, s, "late", strconv.Itoa(int(s.Revision())*10+i))
			}
		}, 50, store.ErrCompacted},
		{"after a compaction", store.Config{}, func(s *store.Store) {
			if err := s.Compact(t.Context(), s.Revision()-10); err != nil {
				t.Fatal(err)
			}
		}, 11, store.ErrCompacted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(tt.config)
			defer s.Close()
			newest := s.Revision()
			if tt.before != nil {
				tt.before(s)
			}
			w, err := s.Watch(storetest.ConfigMaps, "", newest-tt.from)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err != nil {
				return
			}
			defer w.Stop()
			for want := newest - tt.from + 1; want <= newest; {
				events, err := w.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range events {
					if e.Item.Revision != want || want > newest-95 && e.Prev == nil {
						t.Fatalf("event at %d was %v, want one at %d", e.Item.Revision, e.Prev, want)
					}
					want++
				}
			}
		})
	}
}

func TestAWatchOfOneValueOutlivesTheEventsOfOthers(t *testing.T) {
	s := storetest.Open(t, store.Config{Engine: memory.New(), Events: 10, Indexes: byText})
	from := write(t, s, "mine", "x")
	watch := func() *store.Watch {
		w, err := s.WatchField(storetest.ConfigMaps, "text", "x", "", from)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	idle, slow := watch(), watch()
	for i := range 100 {
		write(t, s, "other", strconv.Itoa(i))
	}
	write(t, s, "mine", "y")
	events, err := idle.Next(t.Context())
	if err != nil || len(events) != 1 || storetest.Text(events[0].Item) != "y" {
		t.Fatalf("events %v, error %v, want the one in which the value left", events, err)
	}
	if idle.Revision() != s.Revision() {
		t.Errorf("at %d of %d", idle.Revision(), s.Revision())
	}
	for i := range 100 {
		write(t, s, "other", strconv.Itoa(i))
	}
	if _, err := slow.Next(t.Context()); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch whose own event was dropped: error %v, want %v", err, store.ErrCompacted)
	}
}

func TestTheCompactorKeepsOneIntervalOfHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: storetest.Codec{}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		write(t, s, "a", "0")
		first := write(t, s, "a", "1")
		go (&store.Compactor{Store: s}).Run(ctx)
		synctest.Wait()
		second := write(t, s, "a", "2")
		resumes := func(from int64) bool {
			w, err := s.Watch(storetest.ConfigMaps, "", from)
			if err == nil {
				w.Stop()
			}
			return err == nil
		}
		time.Sleep(5*time.Minute + time.Second) // the bubble's clock
		synctest.Wait()
		if resumes(first-1) || !resumes(first) {
			t.Errorf("after one interval: resumes before the first write %v, after it %v", resumes(first-1), resumes(first))
		}
		write(t, s, "a", "3")
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if resumes(first) || !resumes(second) {
			t.Errorf("after two intervals: resumes after the first write %v, after the second %v", resumes(first), resumes(second))
		}
	})
}
