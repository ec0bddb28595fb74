package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/store"
)

// model is the store as plain maps: every state there ever was, by revision.
type model struct {
	states   []map[string]string // of revision first+i
	first    int64
	events   []string // the event strings since the start
	revision []int64  // of each event
	versions map[string]int64
}

func (m *model) current() map[string]string { return m.states[len(m.states)-1] }
func (m *model) newest() int64              { return m.first + int64(len(m.states)) - 1 }

// commit is what a transaction of puts and deletions (empty text) must lead to.
func (m *model) commit(changes map[string]string, order []string) {
	next := maps.Clone(m.current())
	revision := m.newest() + 1
	for _, name := range order {
		text, before := changes[name], m.current()[name]
		was, kind := "nothing", "created"
		if before != "" {
			was, kind = fmt.Sprintf("%q@%d", before, m.versions[name]), "updated"
		}
		next[name], m.versions[name] = text, revision
		if text == "" {
			kind, text = "deleted", before
			delete(next, name)
			delete(m.versions, name)
		}
		m.events = append(m.events, fmt.Sprintf("%s ns/%s %q@%d was %s", kind, name, text, revision, was))
		m.revision = append(m.revision, revision)
	}
	m.states = append(m.states, next)
}

// Seed returns a seed for a random test and prints it, so that a failure can be
// run again.
func Seed(t testing.TB) uint64 {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return seed
}

func testModel(t *testing.T, open func() store.Engine) {
	rng := rand.New(rand.NewPCG(Seed(t), 1))
	config := func() store.Config { return store.Config{Engine: open(), Codec: Codec{}, Indexes: byLetter} }
	s := must[*store.Store](t)(store.Open(t.Context(), config()))
	defer func() { s.Close() }()
	m := &model{states: []map[string]string{{}}, first: s.Revision(), versions: map[string]int64{}}
	oldest := s.Revision() // that watches can start from
	for range 600 {
		switch rng.IntN(12) {
		case 0:
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			c := config()
			s = must[*store.Store](t)(store.Open(t.Context(), c))
			if _, ok := c.Engine.(store.Historian); !ok {
				oldest = s.Revision()
			}
		case 1:
			to := oldest + rng.Int64N(s.Revision()-oldest+1)
			if err := s.Compact(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			oldest = to
		case 2:
			m.checkWatch(t, s, oldest+rng.Int64N(s.Revision()-oldest+1))
		case 3:
			m.checkState(t, s, oldest+rng.Int64N(s.Revision()-oldest+1))
		default:
			m.write(t, s, rng)
		}
	}
	m.checkState(t, s, s.Revision())
}

// write commits a random transaction of one to four keys to both.
func (m *model) write(t *testing.T, s *store.Store, rng *rand.Rand) {
	changes := map[string]string{}
	var order []string
	revision, err := s.Update(t.Context(), func(tx *store.Tx) error {
		for range 1 + rng.IntN(4) {
			name := strconv.Itoa(rng.IntN(12))
			if _, done := changes[name]; done {
				continue
			}
			if m.current()[name] != "" && rng.IntN(3) == 0 {
				key, _ := ConfigMap("ns", name, "")
				if err := tx.Delete(key); err != nil {
					return err
				}
				changes[name] = ""
			} else {
				changes[name] = fmt.Sprintf("%c%d-%d", letters[rng.IntN(len(letters))], m.newest(), rng.IntN(1000))
				if err := ApplyIn(tx, "ns", name, changes[name]); err != nil {
					return err
				}
			}
			order = append(order, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m.commit(changes, order)
	if revision != m.newest() {
		t.Fatalf("committed at %d, want %d", revision, m.newest())
	}
}

func (m *model) checkState(t *testing.T, s *store.Store, revision int64) {
	t.Helper()
	sn := must[*store.Snapshot](t)(s.SnapshotAt(revision))
	got, want := dumpNames(sn), m.states[revision-m.first]
	if !maps.Equal(got, want) {
		t.Fatalf("at %d: %v, want %v", revision, got, want)
	}
	found := map[string]string{}
	for _, letter := range letters {
		last := ""
		sn.RangeField(ConfigMaps, letterField, string(letter), "ns", store.Key{}, func(item *store.Item) bool {
			if item.Key.Name <= last {
				t.Fatalf("at %d, letter %c: %q comes after %q", revision, letter, item.Key.Name, last)
			}
			last = item.Key.Name
			if text := Text(item); text[0] == byte(letter) {
				found[item.Key.Name] = text
			}
			return true
		})
	}
	if !maps.Equal(found, want) {
		t.Fatalf("at %d by letter: %v, want %v", revision, found, want)
	}
}

// letters are what the texts of a model begin with, by which they are indexed.
const (
	letters     = "abc"
	letterField = "letter"
)

var byLetter = []store.Index{{Resource: ConfigMaps, Field: letterField, Value: func(obj store.Object) string {
	return obj.(*corev1.ConfigMap).Data["text"][:1]
}}}

func dumpNames(sn *store.Snapshot) map[string]string {
	out := map[string]string{}
	sn.Range(ConfigMaps, "ns", store.Key{}, func(item *store.Item) bool {
		out[item.Key.Name] = Text(item)
		return true
	})
	return out
}

func (m *model) checkWatch(t *testing.T, s *store.Store, from int64) {
	t.Helper()
	if from == 0 {
		return // means from now
	}
	first, _ := slices.BinarySearch(m.revision, from+1)
	want := slices.Clone(m.events[first:])
	w := must[*store.Watch](t)(s.Watch(ConfigMaps, "", from))
	defer w.Stop()
	sameEvents(t, from, read(t, w, len(want)), want)
	for _, letter := range letters {
		mine := slices.DeleteFunc(slices.Clone(want), func(e string) bool { return !strings.Contains(e, `"`+string(letter)) })
		w := must[*store.Watch](t)(s.WatchField(ConfigMaps, letterField, string(letter), "ns", from))
		sameEvents(t, from, read(t, w, len(mine)), mine)
		if w.Revision() != s.Revision() {
			t.Fatalf("having read all of letter %c, the watch is at %d of %d", letter, w.Revision(), s.Revision())
		}
		w.Stop()
	}
}

// sameEvents compares events in the order of their revisions. Those of one
// revision have no order that outlives a restart.
func sameEvents(t *testing.T, from int64, got, want []string) {
	t.Helper()
	revision := func(e string) int { // "... @5 was ..."
		before, _, _ := strings.Cut(e, " was ")
		n, err := strconv.Atoi(before[strings.LastIndexByte(before, '@')+1:])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if !slices.IsSortedFunc(got, func(a, b string) int { return revision(a) - revision(b) }) {
		t.Fatalf("events after %d are out of order: %v", from, got)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("events after %d: %v, want %v", from, got, want)
	}
}
