package pebble

import (
	"bytes"
	"errors"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/store"
	"proa/internal/store/storetest"
)

func TestEngine(t *testing.T) {
	storetest.Run(t, func(t testing.TB) func() store.Engine {
		fs := vfs.NewMem()
		return func() store.Engine { return openEngine(t, Config{Dir: "store", FS: fs}) }
	})
}

// TestEngineThatForgets prunes all it can; what is left is no history.
func TestEngineThatForgets(t *testing.T) {
	storetest.Run(t, func(t testing.TB) func() store.Engine {
		fs := vfs.NewMem()
		return func() store.Engine {
			e := openEngine(t, Config{Dir: "store", FS: fs, History: -1})
			if err := e.Prune(); err != nil {
				t.Fatal(err)
			}
			return struct{ store.Engine }{e}
		}
	})
}

func openEngine(t testing.TB, c Config) *Engine {
	t.Helper()
	e, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func apply(t testing.TB, s *store.Store, name, text string) int64 {
	t.Helper()
	revision, err := storetest.Apply(t.Context(), s, "ns", name, text)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func TestADirectoryHasOneUser(t *testing.T) {
	dir := t.TempDir()
	e := openEngine(t, Config{Dir: dir})
	if _, err := Open(Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("opening it a second time gives %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := openEngine(t, Config{Dir: dir}).Close(); err != nil {
		t.Error(err)
	}
}

func TestANewerFormatIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	e := openEngine(t, Config{Dir: "store", FS: fs})
	if err := e.db.Set(formatKey, strconv.AppendInt(nil, format+1, 10), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: "store", FS: fs}); err == nil || !strings.Contains(err.Error(), "newer version") {
		t.Errorf("opening it gives %v", err)
	}
}

func TestAFullDiskRefusesObjectsAndLetsDeletionsThrough(t *testing.T) {
	fs := vfs.NewMem()
	s := storetest.Open(t, store.Config{Engine: openEngine(t, Config{Dir: "store", FS: fs, Reserve: 100})})
	before := apply(t, s, "a", "1")

	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 99, TotalBytes: 1000})
	if _, err := storetest.Apply(t.Context(), s, "ns", "a", "2"); !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("a write gives %v", err)
	}
	if s.Revision() != before || storetest.Dump(s.Snapshot())["ns/a"] != "1" {
		t.Fatal("a refused write is visible")
	}
	if _, err := storetest.Remove(t.Context(), s, "ns", "a"); err != nil {
		t.Fatal(err)
	}

	fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 100, TotalBytes: 1000})
	apply(t, s, "a", "3")
}

func TestAFailedLogEndsWritingAndPublishesNothing(t *testing.T) {
	mem := vfs.NewMem()
	broken := &errorfs.Toggle{Injector: errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo {
			return errors.New("input/output error")
		}
		return nil
	})}
	e := openEngine(t, Config{Dir: "store", FS: errorfs.Wrap(mem, broken)})
	s := storetest.Open(t, store.Config{Engine: e})
	acknowledged := apply(t, s, "a", "1")

	broken.On()
	for range 2 {
		_, err := storetest.Apply(t.Context(), s, "ns", "a", "2")
		if err == nil || !strings.Contains(err.Error(), "read-only") || !strings.Contains(err.Error(), "input/output") {
			t.Fatalf("a write gives %v", err)
		}
	}
	if s.Revision() != acknowledged || storetest.Dump(s.Snapshot())["ns/a"] != "1" {
		t.Fatal("a failed write is visible")
	}
}

func TestHistoryShowsEveryStateUntilItIsPruned(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0))
	e := openEngine(t, Config{Dir: "store", FS: vfs.NewMem(), History: time.Minute, Clock: clock})
	s := storetest.Open(t, store.Config{Engine: e})
	start := clock.Now()
	states := []map[string]string{{}}
	for i := range 60 { // one a second
		clock.SetTime(start.Add(time.Duration(i+1) * time.Second))
		if i%5 == 4 {
			if _, err := storetest.Remove(t.Context(), s, "ns", strconv.Itoa((i-1)%7)); err != nil {
				t.Fatal(err)
			}
		} else {
			apply(t, s, strconv.Itoa(i%7), strconv.Itoa(i))
		}
		states = append(states, storetest.Dump(s.Snapshot()))
	}
	check := func(from int64) {
		t.Helper()
		for r := max(from, 1); r <= 60; r++ {
			sn, err := s.LoadAt(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if got := storetest.Dump(sn); !maps.Equal(got, states[r]) {
				t.Fatalf("revision %d: %v, want %v", r, got, states[r])
			}
		}
	}
	check(1)
	for seconds, want := range map[float64]int64{0: 0, 0.5: 0, 1: 1, 30.5: 30, 60: 60, 100: 60} {
		got, err := e.RevisionAt(start.Add(time.Duration(seconds * float64(time.Second))))
		if err != nil || got != want {
			t.Errorf("after %v seconds: revision %d, %v, want %d", seconds, got, err, want)
		}
	}

	for _, passed := range []int64{90, 90, 110, 1000} {
		clock.SetTime(start.Add(time.Duration(passed) * time.Second))
		if err := e.Prune(); err != nil {
			t.Fatal(err)
		}
		floor := min(passed-60, 59)
		check(floor)
		if _, err := s.LoadAt(t.Context(), floor-1); !errors.Is(err, store.ErrCompacted) {
			t.Errorf("revision %d: %v", floor-1, err)
		}
	}
	if n := entries(t, e); n != len(states[60])+1 && n != len(states[60])+2 {
		t.Errorf("%d entries are left for %d objects", n, len(states[60]))
	}
}

func entries(t *testing.T, e *Engine) (n int) {
	t.Helper()
	it, err := e.db.NewIter(entryBounds(0, maxRevision))
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	return n
}

func FuzzDecodeEntry(f *testing.F) {
	key, _ := storetest.ConfigMap("ns", "a", "")
	f.Add(appendEntryKey(nil, 7, key), appendEntryHead(nil, entry{millis: 1, prev: 2}))
	f.Add(appendEntryKey(nil, 1<<40, key), append(appendEntryHead(nil, entry{deleted: true, millis: 1 << 40}), "value"...))
	f.Add([]byte{'e', 0, 0, 0, 0, 0, 0, 0, 1, 0xff}, []byte{0, 0x80})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if revision, rest, err := splitEntryKey(key); err == nil {
			var keys keyDecoder
			if k, err := keys.decode(rest); err == nil {
				again := appendEntryKey(nil, revision, k)
				if got, err := keys.decode(again[9:]); err != nil || got != k {
					t.Fatalf("%v decodes again to %v, %v", k, got, err)
				}
			}
		}
		if en, err := decodeEntry(value); err == nil {
			got, err := decodeEntry(append(appendEntryHead(nil, en), en.value...))
			if err != nil || got.deleted != en.deleted || got.millis != en.millis || got.prev != en.prev || !bytes.Equal(got.value, en.value) {
				t.Fatalf("%+v decodes again to %+v, %v", en, got, err)
			}
		}
		if r, err := decodeRevision(value); err == nil && r < 0 {
			t.Fatal("negative revision")
		}
	})
}

func TestKeysKeepTheirOrderAndParts(t *testing.T) {
	var keys keyDecoder
	for _, name := range []string{"", "a", strings.Repeat("long", 100), "nul\x00byte", "slash/name"} {
		key, _ := storetest.ConfigMap("ns", name, "")
		got, err := keys.decode(appendEntryKey(nil, 5, key)[9:])
		if err != nil || got != key {
			t.Errorf("%q decodes to %v, %v", name, got, err)
		}
	}
	if bytes.Compare(revisionKey(255), revisionKey(256)) >= 0 {
		t.Error("revisions are not ordered")
	}
}
