package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/store"
	"proa/internal/store/memory"
	"proa/internal/store/storetest"
)

func apply(t testing.TB, s *store.Store, name, text string) int64 {
	t.Helper()
	revision, err := storetest.Apply(t.Context(), s, "ns", name, text)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func get(t testing.TB, s *store.Store, name string) *store.Item {
	t.Helper()
	key, _ := storetest.ConfigMap("ns", name, "")
	item, err := s.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	return item
}

// faulty fails commits on demand, or holds them back.
type faulty struct {
	*memory.Engine
	fail    atomic.Bool
	entered chan struct{}
	release chan struct{}
}

var errDisk = errors.New("disk on fire")

func (f *faulty) Commit(batch []*store.Txn) error {
	if f.entered != nil {
		f.entered <- struct{}{}
		<-f.release
	}
	if f.fail.Load() {
		return errDisk
	}
	return f.Engine.Commit(batch)
}

func TestAFailedCommitIsReportedAndNotPublished(t *testing.T) {
	e := &faulty{Engine: memory.New()}
	s := storetest.Open(t, store.Config{Engine: e})
	before := apply(t, s, "a", "1")
	w, err := s.Watch(storetest.ConfigMaps, "", before)
	if err != nil {
		t.Fatal(err)
	}

	e.fail.Store(true)
	if _, err := storetest.Apply(t.Context(), s, "ns", "a", "2"); !errors.Is(err, errDisk) {
		t.Fatalf("error %v", err)
	}
	if s.Revision() != before || storetest.Text(get(t, s, "a")) != "1" {
		t.Fatal("a failed write is visible")
	}

	e.fail.Store(false)
	apply(t, s, "a", "3")
	events, err := w.Next(t.Context())
	if err != nil || len(events) != 1 || storetest.Text(events[0].Item) != "3" || storetest.Text(events[0].Prev) != "1" {
		t.Fatalf("events %v, %v", events, err)
	}
}

func TestWaitingTransactionsShareACommitAndCanBeWithdrawn(t *testing.T) {
	e := &faulty{Engine: memory.New(), entered: make(chan struct{}), release: make(chan struct{})}
	s := storetest.Open(t, store.Config{Engine: e})
	results := make(chan error)
	write := func(ctx context.Context, name string) {
		_, err := storetest.Apply(ctx, s, "ns", name, "x")
		results <- err
	}
	go write(t.Context(), "first")
	<-e.entered // the sequencer is busy from here on

	withdrawn, cancel := context.WithCancel(t.Context())
	go write(withdrawn, "withdrawn")
	cancel()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Fatalf("the withdrawn transaction gives %v", err)
	}
	const waiting = 20
	queued := make(chan struct{}, waiting)
	for i := range waiting {
		go func() {
			_, err := s.Update(t.Context(), func(tx *store.Tx) error {
				defer func() { queued <- struct{}{} }()
				return storetest.ApplyIn(tx, "ns", strconv.Itoa(i), "x")
			})
			results <- err
		}()
	}
	for range waiting {
		<-queued
	}
	go func() {
		e.release <- struct{}{}
		for range e.entered {
			e.release <- struct{}{}
		}
	}()
	for range waiting + 1 {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Snapshot().Len(storetest.ConfigMaps, ""); n != waiting+1 {
		t.Errorf("%d objects, want %d", n, waiting+1)
	}
	close(e.entered)
}

func TestAnEncodingIsMadeOnceAndShared(t *testing.T) {
	s := storetest.Open(t, store.Config{Engine: memory.New()})
	apply(t, s, "a", "1")
	item := get(t, s, "a")
	var calls atomic.Int32
	encode := func(obj store.Object) ([]byte, error) {
		calls.Add(1)
		return []byte(obj.GetName()), nil
	}
	var wg sync.WaitGroup
	got := make([][]byte, 16)
	for i := range got {
		wg.Go(func() { got[i], _ = item.Encoding("json", encode) })
	}
	wg.Wait()
	for _, b := range got {
		if &b[0] != &got[0][0] {
			t.Fatal("callers got different bytes")
		}
	}
	before := calls.Load()
	other, _ := item.Encoding("other", encode)
	again, _ := item.Encoding("json", encode)
	if calls.Load() != before+1 || &again[0] != &got[0][0] || !bytes.Equal(other, again) {
		t.Errorf("%d calls after %d", calls.Load(), before)
	}
	if _, err := item.Encoding("broken", func(store.Object) ([]byte, error) { return nil, errDisk }); !errors.Is(err, errDisk) {
		t.Errorf("error %v", err)
	}
}

func TestEncodingsStayWithinTheirBudget(t *testing.T) {
	s := storetest.Open(t, store.Config{Engine: memory.New(), EncodingBytes: 1000})
	calls := 0
	encode := func(store.Object) ([]byte, error) {
		calls++
		return make([]byte, 100), nil
	}
	for i := range 20 {
		name := strconv.Itoa(i)
		apply(t, s, name, "x")
		if _, err := get(t, s, name).Encoding("json", encode); err != nil {
			t.Fatal(err)
		}
	}
	for i := 19; i >= 10; i-- {
		get(t, s, strconv.Itoa(i)).Encoding("json", encode)
	}
	if calls != 20 {
		t.Errorf("the newest were encoded again: %d calls", calls)
	}
	get(t, s, "0").Encoding("json", encode)
	if calls != 21 {
		t.Errorf("the oldest was kept: %d calls", calls)
	}
	loose := store.NewItem(store.Key{}, &corev1.Pod{})
	loose.Encoding("json", encode)
	loose.Encoding("json", encode)
	if calls != 22 || loose.Revision != 0 {
		t.Errorf("an item outside a store: %d calls", calls)
	}
}

func TestHistoryKeepsToItsBudgetOfBytes(t *testing.T) {
	s := storetest.Open(t, store.Config{Engine: memory.New(), EventBytes: 50_000})
	first := apply(t, s, "big", "")
	for i := range 200 {
		apply(t, s, "big", strings.Repeat(strconv.Itoa(i%10), 1000+i))
	}
	if _, err := s.SnapshotAt(first); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("after 200 KB of replaced objects the first state gives %v", err)
	}
	if _, err := s.SnapshotAt(s.Revision() - 10); err != nil {
		t.Error(err)
	}
	if _, err := s.Watch(storetest.Pods, "", first); err != nil {
		t.Errorf("a resource without events lost its history: %v", err)
	}
}

// shared is one truth with several stores on it, as an etcd is: it assigns
// revisions, checks what transactions read, and tells everybody of every change.
type shared struct {
	mu       sync.Mutex
	log      []*store.Txn
	versions map[store.Key]int64
	changed  chan struct{}
}

// member is one store's engine on a shared truth.
type member struct {
	*shared
	applied chan int64 // the newest revision handed over

	hold    chan struct{} // nothing is handed over before somebody syncs; nil: at once
	release sync.Once

	seeing sync.Mutex // guards the rest
	seen   int64      // handed over
	moved  chan struct{}
}

func newMember(truth *shared) *member {
	return &member{shared: truth, applied: make(chan int64, 1), moved: make(chan struct{})}
}

func (m *member) Sync(ctx context.Context) (int64, error) {
	if m.hold != nil {
		m.release.Do(func() { close(m.hold) })
	}
	m.mu.Lock()
	end := int64(len(m.log))
	m.mu.Unlock()
	for {
		m.seeing.Lock()
		seen, moved := m.seen, m.moved
		m.seeing.Unlock()
		if seen >= end {
			return end, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (m *member) see(revision int64) {
	m.seeing.Lock()
	defer m.seeing.Unlock()
	m.seen = revision
	close(m.moved)
	m.moved = make(chan struct{})
}

func (m *member) Load(_ context.Context, _ int64, visit func(store.Record) error) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	newest := map[store.Key]store.Record{}
	for _, t := range m.log {
		for _, op := range t.Ops {
			newest[op.Key] = store.Record{Key: op.Key, Revision: t.Revision, Value: op.Value}
			if op.Delete {
				delete(newest, op.Key)
			}
		}
	}
	for _, r := range newest {
		if err := visit(r); err != nil {
			return 0, err
		}
	}
	return int64(len(m.log)), nil
}

func (m *member) Read(ctx context.Context, place store.Key, revision int64, visit func(store.Record) error) (int64, error) {
	return m.Load(ctx, revision, func(r store.Record) error {
		if r.Key.Resource != place.Resource || place.Namespace != "" && r.Key.Namespace != place.Namespace ||
			place.Name != "" && r.Key.Name != place.Name {
			return nil
		}
		return visit(r)
	})
}

func (m *member) Commit(batch []*store.Txn) error {
	end := m.append(batch)
	for applied := range m.applied {
		if applied >= end {
			break
		}
	}
	return nil
}

func (m *member) append(batch []*store.Txn) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range batch {
		for _, c := range t.Checks {
			if m.versions[c.Key] != c.Revision {
				t.Err = store.ErrConflict
			}
		}
		if t.Err != nil {
			continue
		}
		m.log = append(m.log, t)
		t.Revision = int64(len(m.log))
		for _, op := range t.Ops {
			m.versions[op.Key] = t.Revision
			if op.Delete {
				delete(m.versions, op.Key)
			}
		}
	}
	close(m.changed)
	m.changed = make(chan struct{})
	return int64(len(m.log))
}

func (m *member) Follow(ctx context.Context, after int64, publish func([]*store.Txn) error) error {
	for {
		m.mu.Lock()
		batch, changed := append([]*store.Txn(nil), m.log[after:]...), m.changed
		m.mu.Unlock()
		if len(batch) > 0 {
			if m.hold != nil {
				<-m.hold
			}
			if err := publish(batch); err != nil {
				return err
			}
			after += int64(len(batch))
			m.see(after)
		}
		select {
		case <-m.applied: // nobody took the last one
		default:
		}
		m.applied <- after
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *member) Close() error { return nil }

func TestStoresOnOneTruthSeeEachOthersWritesAndConflicts(t *testing.T) {
	truth := &shared{versions: map[store.Key]int64{}, changed: make(chan struct{})}
	var stores []*store.Store
	for range 3 {
		stores = append(stores, storetest.Open(t, store.Config{Engine: newMember(truth)}))
	}
	apply(t, stores[0], "counter", "0")
	if err := stores[1].WaitFor(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	w, err := stores[1].Watch(storetest.ConfigMaps, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := stores[2].WaitFor(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	const each = 40
	var wg sync.WaitGroup
	for i, s := range stores {
		wg.Go(func() {
			for n := range each {
				_, err := s.Update(t.Context(), func(tx *store.Tx) error {
					key, _ := storetest.ConfigMap("ns", "counter", "")
					item, err := tx.Get(key)
					if err != nil {
						return err
					}
					count, _ := strconv.Atoi(storetest.Text(item))
					return errors.Join(
						storetest.ApplyIn(tx, "ns", "counter", strconv.Itoa(count+1)),
						storetest.ApplyIn(tx, "ns", fmt.Sprintf("%d-%d", i, n), "x"))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	end := int64(1 + len(stores)*each)
	var want map[string]string
	for _, s := range stores {
		if err := s.WaitFor(t.Context(), end); err != nil {
			t.Fatal(err)
		}
		got := storetest.Dump(s.Snapshot())
		if want == nil {
			want = got
		}
		if !maps.Equal(got, want) || got["ns/counter"] != strconv.Itoa(len(stores)*each) {
			t.Errorf("a store shows %v", got)
		}
	}
	for next := int64(2); next <= end; {
		events, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range events {
			if i%2 == 1 && e.Item.Revision != next {
				t.Fatalf("revision %d, want %d", e.Item.Revision, next)
			}
			if i%2 == 1 {
				next++
			}
		}
	}
}

func TestAStoreThatLagsBehindRefusesNothingForThat(t *testing.T) {
	tests := []struct {
		name string
		fn   func(tx *store.Tx) error
		want string
	}{
		{"updates what another store has created", func(tx *store.Tx) error {
			key, obj := storetest.ConfigMap("ns", "a", "2")
			_, err := tx.Put(key, obj)
			return err
		}, "2"},
		{"writes what equals only its own old state", func(tx *store.Tx) error {
			key, obj := storetest.ConfigMap("ns", "a", "0")
			_, err := tx.Put(key, obj)
			return err
		}, "0"},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			truth := &shared{versions: map[store.Key]int64{}, changed: make(chan struct{})}
			first := storetest.Open(t, store.Config{Engine: newMember(truth)})
			if i == 1 { // it is there when the second one opens
				apply(t, first, "a", "0")
			}
			lagging := newMember(truth)
			lagging.hold = make(chan struct{})
			second := storetest.Open(t, store.Config{Engine: lagging})
			apply(t, first, "a", "1")
			if _, err := second.Update(t.Context(), tt.fn); err != nil {
				t.Fatal(err)
			}
			if err := first.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := storetest.Dump(first.Snapshot())["ns/a"]; got != tt.want {
				t.Errorf("the other store shows %q, want %q", got, tt.want)
			}
		})
	}
}

func TestACallerWhoseTimeIsUpDoesNotWaitForAnEngineElsewhere(t *testing.T) {
	truth := &shared{versions: map[store.Key]int64{}, changed: make(chan struct{})}
	lagging := newMember(truth)
	lagging.hold = make(chan struct{})
	s := storetest.Open(t, store.Config{Engine: lagging})
	onItsWay := truth.changed
	ctx, cancel := context.WithCancel(t.Context())
	failed, written := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := s.Update(ctx, func(tx *store.Tx) error {
			tx.Committed(func() { close(written) })
			return storetest.ApplyIn(tx, "ns", "a", "1")
		})
		failed <- err
	}()
	<-onItsWay
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("a transaction in doubt gives %v", err)
	}
	close(lagging.hold)
	<-written
	if got := storetest.Dump(s.Snapshot())["ns/a"]; got != "1" {
		t.Errorf("the store shows %q", got)
	}
}
