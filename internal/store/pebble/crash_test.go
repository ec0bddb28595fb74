package pebble

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"proa/internal/store"
	"proa/internal/store/storetest"
)

// Each writer of a crash test rewrites a pair of config maps of its own with
// the same ascending number in one transaction. After a crash both must hold the
// same number, at least the last one that was acknowledged, at most the last one
// that was begun.

func writePair(s *store.Store, t testing.TB, writer, n int) (int64, error) {
	return s.Update(t.Context(), func(tx *store.Tx) error {
		for _, half := range []string{"left", "right"} {
			if err := storetest.ApplyIn(tx, "ns", fmt.Sprintf("%s-%d", half, writer), strconv.Itoa(n)); err != nil {
				return err
			}
		}
		return nil
	})
}

// ack is what a writer knows at the moment of a crash.
type ack struct {
	Writer, N int
	Revision  int64
}

func checkPairs(t *testing.T, s *store.Store, acked map[int]ack) {
	t.Helper()
	state := storetest.Dump(s.Snapshot())
	for writer, a := range acked {
		left, right := state[fmt.Sprintf("ns/left-%d", writer)], state[fmt.Sprintf("ns/right-%d", writer)]
		if left != right {
			t.Errorf("writer %d: half a transaction: %q and %q", writer, left, right)
		}
		if n, _ := strconv.Atoi(left); n < a.N || n > a.N+1 {
			t.Errorf("writer %d: acknowledged %d, found %d", writer, a.N, n)
		}
		if s.Revision() < a.Revision {
			t.Errorf("writer %d: acknowledged revision %d, the store is at %d", writer, a.Revision, s.Revision())
		}
	}
}

// TestALostPowerLosesNoAcknowledgedWrite takes the disk as it may be after a
// power failure at random moments: what was synced, and a random part of what
// was not.
func TestALostPowerLosesNoAcknowledgedWrite(t *testing.T) {
	const writers, each, crashes = 4, 60, 30
	seed := storetest.Seed(t)
	fs := vfs.NewCrashableMem()
	e := openEngine(t, Config{Dir: "store", FS: fs, History: -1})
	s := storetest.Open(t, store.Config{Engine: e})

	var mu sync.Mutex
	acked := map[int]ack{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := 1; n <= each; n++ {
				revision, err := writePair(s, t, w, n)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acked[w] = ack{w, n, revision}
				mu.Unlock()
			}
		})
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	for range crashes {
		if err := s.WaitFor(t.Context(), min(s.Revision()+rng.Int64N(10), writers*each)); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		known := maps.Clone(acked)
		mu.Unlock()
		if err := e.Prune(); err != nil {
			t.Fatal(err)
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		checkCrashed(t, crashed, known)
	}
	wg.Wait()
}

// checkCrashed allows any number of later writes: they go on while the disk is copied.
func checkCrashed(t *testing.T, fs vfs.FS, known map[int]ack) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Engine: openEngine(t, Config{Dir: "store", FS: fs}), Codec: storetest.Codec{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	state := storetest.Dump(s.Snapshot())
	for w, a := range known {
		left, right := state[fmt.Sprintf("ns/left-%d", w)], state[fmt.Sprintf("ns/right-%d", w)]
		if n, _ := strconv.Atoi(left); left != right || n < a.N {
			t.Errorf("writer %d: acknowledged %d, found %q and %q", w, a.N, left, right)
		}
		if s.Revision() < a.Revision {
			t.Errorf("acknowledged revision %d, the store is at %d", a.Revision, s.Revision())
		}
	}
	if _, err := writePair(s, t, 0, 1000); err != nil {
		t.Errorf("write after the crash: %v", err)
	}
}

const crashDirVar = "PROA_STORE_CRASH_DIR"

// TestAKilledProcessLosesNoAcknowledgedWrite runs this test binary as a writer,
// kills it in the middle, and looks at what it left, round after round.
func TestAKilledProcessLosesNoAcknowledgedWrite(t *testing.T) {
	if dir := os.Getenv(crashDirVar); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	const rounds = 12
	rng := rand.New(rand.NewPCG(storetest.Seed(t), 3))
	dir := t.TempDir()
	acked := map[int]ack{}
	for range rounds {
		killAfter(t, dir, 50+rng.IntN(300), acked)
		s, err := store.Open(t.Context(), store.Config{Engine: openEngine(t, Config{Dir: dir}), Codec: storetest.Codec{}})
		if err != nil {
			t.Fatal(err)
		}
		checkPairs(t, s, acked)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killAfter kills a writing process after a number of acknowledgements, and
// takes note of all it still sent.
func killAfter(t *testing.T, dir string, acks int, acked map[int]ack) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKilledProcessLosesNoAcknowledgedWrite$")
	cmd.Env = append(os.Environ(), crashDirVar+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for seen := 0; ; seen++ {
		if seen == acks {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		line, err := lines.ReadBytes('\n')
		if err != nil { // the last line may be cut short
			break
		}
		var a ack
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatalf("writer says %q", line)
		}
		acked[a.Writer] = a
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the writer ended by itself")
	}
}

// writeUntilKilled goes on from the numbers that it finds.
func writeUntilKilled(t *testing.T, dir string) {
	const writers = 16
	s, err := store.Open(t.Context(), store.Config{Engine: openEngine(t, Config{Dir: dir, History: -1}), Codec: storetest.Codec{}})
	if err != nil {
		t.Fatal(err)
	}
	state := storetest.Dump(s.Snapshot())
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range writers {
		n, _ := strconv.Atoi(state[fmt.Sprintf("ns/left-%d", w)])
		wg.Go(func() {
			for {
				n++
				revision, err := writePair(s, t, w, n)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				err = json.NewEncoder(os.Stdout).Encode(ack{w, n, revision})
				mu.Unlock()
				if err != nil && err != io.ErrClosedPipe {
					return
				}
			}
		})
	}
	wg.Wait()
}
