package store_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/store"
	"proa/internal/store/memory"
	"proa/internal/store/storetest"
)

func created(obj store.Object) time.Time { return obj.GetCreationTimestamp().Time }

// applyAt writes a config map that says when it was created.
func applyAt(t *testing.T, s *store.Store, name string, at time.Time) {
	t.Helper()
	_, err := s.Update(t.Context(), func(tx *store.Tx) error {
		key, obj := storetest.ConfigMap("ns", name, name)
		obj.CreationTimestamp = metav1.NewTime(at)
		if _, err := tx.Get(key); err == nil {
			_, err := tx.Put(key, obj)
			return err
		}
		_, err := tx.Create(key, obj)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestExpiryRemovesWhatNobodyHasWrittenForTheTTL(t *testing.T) {
	s := storetest.Open(t, store.Config{Engine: memory.New()})
	e := &store.Expiry{Store: s, Resource: storetest.ConfigMaps, TTL: time.Hour, Written: created}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	sweep := func(after time.Duration, want ...string) {
		t.Helper()
		if err := e.Sweep(t.Context(), start.Add(after)); err != nil {
			t.Fatal(err)
		}
		left := map[string]string{}
		for _, name := range want {
			left["ns/"+name] = name
		}
		if got := storetest.Dump(s.Snapshot()); !maps.Equal(got, left) {
			t.Errorf("after %s: %v are left, want %v", after, got, left)
		}
	}
	applyAt(t, s, "before the restart", start.Add(-59*time.Minute))
	applyAt(t, s, "expired at the restart", start.Add(-61*time.Minute))
	applyAt(t, s, "from the future", start.Add(1000*time.Hour))
	applyAt(t, s, "written again", start)
	sweep(0, "before the restart", "from the future", "written again")
	applyAt(t, s, "new", start.Add(time.Minute))
	sweep(2*time.Minute, "from the future", "written again", "new")
	applyAt(t, s, "written again", start.Add(30*time.Minute))
	sweep(30*time.Minute, "from the future", "written again", "new")
	sweep(61*time.Minute, "written again") // by revision, whatever the object says; "new" by its time
	sweep(91 * time.Minute)
}

func TestExpiryShowsDeletionsToWatchersInBoundedTransactions(t *testing.T) {
	engine := &widest{Engine: memory.New()}
	s := storetest.Open(t, store.Config{Engine: engine})
	const n = 1100
	old := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := s.Update(t.Context(), func(tx *store.Tx) error {
		for i := range n {
			key, obj := storetest.ConfigMap("ns", fmt.Sprint(i), "x")
			obj.CreationTimestamp = metav1.NewTime(old)
			if _, err := tx.Create(key, obj); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(storetest.ConfigMaps, "", s.Revision())
	if err != nil {
		t.Fatal(err)
	}
	engine.ops = 0
	e := &store.Expiry{Store: s, Resource: storetest.ConfigMaps, Written: created}
	if err := e.Sweep(t.Context(), old.Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	for seen := 0; seen < n; {
		events, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range events {
			if event.Type != store.Deleted {
				t.Fatalf("event %v, want a deletion", event)
			}
		}
		seen += len(events)
	}
	if engine.ops > 100 {
		t.Errorf("a transaction with %d changes: etcd takes 128", engine.ops)
	}
}

// widest notes the largest transaction.
type widest struct {
	store.Engine
	ops int
}

func (w *widest) Commit(batch []*store.Txn) error {
	for _, txn := range batch {
		w.ops = max(w.ops, len(txn.Ops))
	}
	return w.Engine.Commit(batch)
}

func TestExpiryRunsUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: storetest.Codec{}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		applyAt(t, s, "a", time.Now().Add(-30*time.Minute))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- (&store.Expiry{Store: s, Resource: storetest.ConfigMaps, Written: created}).Run(ctx)
		}()
		time.Sleep(29 * time.Minute)
		synctest.Wait()
		if n := len(storetest.Dump(s.Snapshot())); n != 1 {
			t.Errorf("%d objects before the hour is over, want 1", n)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(storetest.Dump(s.Snapshot())); n != 0 {
			t.Errorf("%d objects after it, want none", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
