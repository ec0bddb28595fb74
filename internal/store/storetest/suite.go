package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"

	"proa/internal/store"
)

// Run runs the suite. newEngine makes the place where one test's data is kept
// and returns how to open an engine on it, which a test may do again after it
// closed the last one.
func Run(t *testing.T, newEngine func(t testing.TB) (open func() store.Engine)) {
	tests := []struct {
		name string
		run  func(t *testing.T, open func() store.Engine)
	}{
		{"a transaction writes all or nothing", testTransactions},
		{"the object of a commit carries its revision", testResourceVersion},
		{"an unchanged object is not written", testNoOp},
		{"concurrent transactions lose no update", testCounter},
		{"every snapshot shows whole transactions", testTransfers},
		{"a snapshot ranges in order from any place", testRange},
		{"a snapshot keeps what it showed", testSnapshot},
		{"a watch resumes after any revision", testWatchResume},
		{"a watch moves on while its resource is idle", testWatchProgress},
		{"a watch that falls behind is told so", testWatchCompacted},
		{"watches see every change once and in order", testWatchConcurrent},
		{"a closed store ends its watches and writes", testClose},
		{"reopening keeps everything", testReopen},
		{"random operations agree with a model", testModel},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(t, newEngine(t))
		})
	}
}

func testTransactions(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open()})
	refusal := errors.New("refused")
	a, _ := ConfigMap("ns", "a", "")
	steps := []struct {
		name string
		fn   func(tx *store.Tx) error
		err  error
		want map[string]string
	}{
		{"creates two", func(tx *store.Tx) error {
			return errors.Join(ApplyIn(tx, "ns", "a", "1"), ApplyIn(tx, "ns", "b", "1"))
		}, nil, map[string]string{"ns/a": "1", "ns/b": "1"}},
		{"refuses a second create", func(tx *store.Tx) error {
			_, err := tx.Create(ConfigMap("ns", "a", "2"))
			return err
		}, store.ErrExists, nil},
		{"refuses to put what is missing", func(tx *store.Tx) error {
			_, err := tx.Put(ConfigMap("ns", "c", "2"))
			return err
		}, store.ErrNotFound, nil},
		{"drops everything when the closure fails", func(tx *store.Tx) error {
			return errors.Join(ApplyIn(tx, "ns", "a", "2"), tx.Delete(a), refusal)
		}, refusal, nil},
		{"reads its own writes", func(tx *store.Tx) error {
			if err := ApplyIn(tx, "ns", "a", "2"); err != nil {
				return err
			}
			item, err := tx.Get(a)
			if err != nil || Text(item) != "2" {
				t.Errorf("read %v, %v", item, err)
			}
			return tx.Delete(a)
		}, nil, map[string]string{"ns/b": "1"}},
		{"finds nothing that it deleted", func(tx *store.Tx) error { return tx.Delete(a) }, store.ErrNotFound, nil},
		{"may delete what it created", func(tx *store.Tx) error {
			return errors.Join(ApplyIn(tx, "ns", "a", "3"), tx.Delete(a), ApplyIn(tx, "ns", "b", "3"))
		}, nil, map[string]string{"ns/b": "3"}},
		{"may create what it deleted", func(tx *store.Tx) error {
			b, obj := ConfigMap("ns", "b", "4")
			err := tx.Delete(b)
			_, err2 := tx.Create(b, obj)
			return errors.Join(err, err2)
		}, nil, map[string]string{"ns/b": "4"}},
	}
	for _, step := range steps {
		before := s.Revision()
		revision, err := s.Update(ctx, step.fn)
		if !errors.Is(err, step.err) || (err != nil) != (step.err != nil) {
			t.Fatalf("%s: error %v, want %v", step.name, err, step.err)
		}
		if step.err != nil {
			if s.Revision() != before {
				t.Fatalf("%s: revision moved from %d to %d", step.name, before, s.Revision())
			}
			continue
		}
		if revision != s.Revision() || revision <= before {
			t.Fatalf("%s: revision %d after %d, store at %d", step.name, revision, before, s.Revision())
		}
		if got := Dump(s.Snapshot()); !maps.Equal(got, step.want) {
			t.Fatalf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}

func testResourceVersion(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open()})
	key, obj := ConfigMap("ns", "a", "1")
	obj.ResourceVersion = "77"
	w := must[*store.Watch](t)(s.Watch(ConfigMaps, "", 0))
	var item *store.Item
	created := must[int64](t)(s.Update(ctx, func(tx *store.Tx) (err error) {
		item, err = tx.Create(key, obj)
		return err
	}))
	checkVersion(t, item, created)
	if got := must[*store.Item](t)(s.Get(key)); got != item {
		t.Error("get returns another item than the transaction")
	}
	deleted := must[int64](t)(Remove(ctx, s, "ns", "a"))
	var events []store.Event
	for len(events) < 2 {
		events = append(events, must[[]store.Event](t)(w.Next(ctx))...)
	}
	checkVersion(t, events[1].Item, deleted)
	checkVersion(t, events[1].Prev, created)
	if events[1].Type != store.Deleted || Text(events[1].Item) != "1" {
		t.Errorf("deletion shows as %s", eventString(events[1]))
	}
	_, err := s.Get(key)
	wantErr(t, err, store.ErrNotFound)
}

func checkVersion(t *testing.T, item *store.Item, want int64) {
	t.Helper()
	if item.Revision != want || item.Object.GetResourceVersion() != strconv.FormatInt(want, 10) {
		t.Errorf("revision %d, resourceVersion %s, want %d", item.Revision, item.Object.GetResourceVersion(), want)
	}
}

func testNoOp(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open()})
	first := must[int64](t)(Apply(ctx, s, "ns", "a", "1"))
	if again := must[int64](t)(Apply(ctx, s, "ns", "a", "1")); again != first || s.Revision() != first {
		t.Errorf("an equal object was committed at %d, store at %d, want %d", again, s.Revision(), first)
	}
	key, obj := ConfigMap("ns", "a", "1")
	var item *store.Item
	must[int64](t)(s.Update(ctx, func(tx *store.Tx) (err error) {
		item, err = tx.Put(key, obj)
		return errors.Join(err, ApplyIn(tx, "ns", "b", "1"))
	}))
	checkVersion(t, item, first)
	if second := must[int64](t)(Apply(ctx, s, "ns", "a", "2")); second != first+2 {
		t.Errorf("a change of equal length was committed at %d", second)
	}
}

func testCounter(t *testing.T, open func() store.Engine) {
	const writers, each = 8, 25
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open()})
	must[int64](t)(Apply(ctx, s, "ns", "counter", "0"))
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				if _, err := s.Update(ctx, increment); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := Dump(s.Snapshot())["ns/counter"]; got != strconv.Itoa(writers*each) {
		t.Errorf("counted to %s, want %d", got, writers*each)
	}
}

func increment(tx *store.Tx) error {
	key, _ := ConfigMap("ns", "counter", "")
	item, err := tx.Get(key)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(Text(item))
	if err != nil {
		return err
	}
	return ApplyIn(tx, "ns", "counter", strconv.Itoa(n+1))
}

// testTransfers moves units between accounts; the sum shows whether a snapshot
// ever has half a transaction.
func testTransfers(t *testing.T, open func() store.Engine) {
	const accounts, moves = 5, 60
	ctx, stop := context.WithCancel(t.Context())
	s := Open(t, store.Config{Engine: open()})
	must[int64](t)(s.Update(ctx, func(tx *store.Tx) (err error) {
		for i := range accounts {
			err = errors.Join(err, ApplyIn(tx, "ns", strconv.Itoa(i), "100"))
		}
		return err
	}))
	var writers, readers sync.WaitGroup
	readers.Go(func() {
		for ctx.Err() == nil {
			sum := 0
			for _, text := range Dump(s.Snapshot()) {
				n, _ := strconv.Atoi(text)
				sum += n
			}
			if sum != accounts*100 {
				t.Errorf("a snapshot sums up to %d", sum)
				return
			}
			if s.WaitFor(ctx, s.Revision()+1) != nil {
				return
			}
		}
	})
	for w := range 4 {
		writers.Go(func() {
			for i := range moves {
				from, to := strconv.Itoa((w+i)%accounts), strconv.Itoa((w+2*i+1)%accounts)
				if from == to {
					continue
				}
				if _, err := s.Update(ctx, move(from, to)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	stop()
	readers.Wait()
}

func move(from, to string) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		for name, change := range map[string]int{from: -1, to: 1} {
			key, _ := ConfigMap("ns", name, "")
			item, err := tx.Get(key)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(Text(item))
			if err != nil {
				return err
			}
			if err := ApplyIn(tx, "ns", name, strconv.Itoa(n+change)); err != nil {
				return err
			}
		}
		return nil
	}
}

func testRange(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open()})
	for _, namespace := range []string{"b", "a", "a-b", "c"} {
		for i := range 30 {
			must[int64](t)(Apply(ctx, s, namespace, fmt.Sprintf("n%02d", i), "x"))
		}
	}
	sn := s.Snapshot()
	all := keys(sn, "", store.Key{})
	if len(all) != 120 || all[0].Namespace != "a" || all[30].Namespace != "a-b" {
		t.Fatalf("%d keys: %v", len(all), all)
	}
	for i, after := range all {
		checkKeys(t, sn, "", after, all[i+1:])
		inA := all[:30]
		checkKeys(t, sn, "a", after, inA[min(i+1, 30):])
	}
	checkKeys(t, sn, "b", store.Key{}, all[60:90])
	checkKeys(t, sn, "none", store.Key{}, nil)
	checkKeys(t, sn, "", store.Key{Namespace: "b", Name: "n15x"}, all[76:])
	if n := sn.Len(Pods, ""); n != 0 {
		t.Errorf("%d pods", n)
	}
}

func keys(sn *store.Snapshot, namespace string, after store.Key) (out []store.Key) {
	sn.Range(ConfigMaps, namespace, after, func(item *store.Item) bool {
		out = append(out, item.Key)
		return true
	})
	return out
}

func checkKeys(t *testing.T, sn *store.Snapshot, namespace string, after store.Key, want []store.Key) {
	t.Helper()
	got := keys(sn, namespace, after)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("range of %q after %v: %v, want %v", namespace, after, got, want)
	}
	if n := sn.LenAfter(ConfigMaps, namespace, after); n != len(want) {
		t.Fatalf("length of %q after %v: %d, want %d", namespace, after, n, len(want))
	}
}

func testSnapshot(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := Open(t, store.Config{Engine: open()})
	var held []*store.Snapshot
	var want []map[string]string
	for i := range 200 {
		if i%3 == 2 {
			must[int64](t)(Remove(ctx, s, "ns", strconv.Itoa(i-1)))
		} else {
			must[int64](t)(Apply(ctx, s, "ns", strconv.Itoa(i), "v"))
		}
		held = append(held, s.Snapshot())
		want = append(want, Dump(s.Snapshot()))
	}
	for i, sn := range held {
		if !maps.Equal(Dump(sn), want[i]) {
			t.Fatalf("snapshot of revision %d changed", sn.Revision())
		}
		past := must[*store.Snapshot](t)(s.SnapshotAt(sn.Revision()))
		if past.Revision() != sn.Revision() || !maps.Equal(Dump(past), want[i]) {
			t.Fatalf("revision %d computed as %v, was %v", sn.Revision(), Dump(past), want[i])
		}
	}
	_, err := s.SnapshotAt(s.Revision() + 1)
	wantErr(t, err, store.ErrFuture)
	if err := s.Compact(ctx, held[100].Revision()); err != nil {
		t.Fatal(err)
	}
	_, err = s.SnapshotAt(held[99].Revision())
	wantErr(t, err, store.ErrCompacted)
	if past := must[*store.Snapshot](t)(s.SnapshotAt(held[100].Revision())); !maps.Equal(Dump(past), want[100]) {
		t.Error("the state at the compacted revision itself is wrong")
	}
	wantErr(t, s.Compact(ctx, held[99].Revision()), store.ErrCompacted)
	wantErr(t, s.Compact(ctx, s.Revision()+1), store.ErrFuture)
}

func testReopen(t *testing.T, open func() store.Engine) {
	ctx := t.Context()
	s := must[*store.Store](t)(store.Open(ctx, store.Config{Engine: open(), Codec: Codec{}}))
	for i := range 50 {
		must[int64](t)(Apply(ctx, s, "ns", strconv.Itoa(i%20), strconv.Itoa(i)))
	}
	must[int64](t)(Remove(ctx, s, "ns", "3"))
	want, revision := Dump(s.Snapshot()), s.Revision()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	engine := open()
	s = Open(t, store.Config{Engine: engine})
	if got := Dump(s.Snapshot()); !maps.Equal(got, want) || s.Revision() != revision {
		t.Fatalf("reopened at %d with %v, want %d with %v", s.Revision(), got, revision, want)
	}
	key, _ := ConfigMap("ns", "4", "")
	item := must[*store.Item](t)(s.Get(key))
	checkVersion(t, item, item.Revision)
	if next := must[int64](t)(Apply(ctx, s, "ns", "new", "x")); next != revision+1 {
		t.Errorf("next revision is %d, want %d", next, revision+1)
	}
	w, err := s.Watch(ConfigMaps, "", 1)
	if _, ok := engine.(store.Historian); !ok {
		wantErr(t, err, store.ErrCompacted)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	read(t, w, 51)
}
