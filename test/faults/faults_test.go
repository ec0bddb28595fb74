package faults

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

var (
	seed  = flag.Uint64("seed", 0, "play this seed alone")
	seeds = flag.Int("seeds", 2, "how many seeds to play")
)

const (
	troubles = 150             // of a run's writes, and as many of its reads
	patience = 2 * time.Minute // with a run that comes to no rest
)

// What is injected is logged as it would be in earnest: a great deal.
func TestMain(m *testing.M) {
	flag.Parse()
	if *seed == 0 {
		klog.SetLogger(logr.Discard())
		slog.SetDefault(slog.New(slog.DiscardHandler))
	}
	os.Exit(m.Run())
}

func TestFaultsChangeNothingInTheEnd(t *testing.T) {
	calm := start(t, 0, 0)
	play(t, calm)
	want := calm.rest(t)

	chosen := []uint64{*seed}
	if *seed == 0 {
		chosen = chosen[:0]
		for range *seeds {
			chosen = append(chosen, uint64(time.Now().UnixNano()))
		}
	}
	for _, seed := range chosen {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			c := start(t, seed, troubles)
			play(t, c)
			got := c.rest(t)
			if diff := difference(want, got); diff != "" {
				t.Errorf("after %d lives the end is another one (-args -seed %d):\n%s", c.lives.Load(), seed, diff)
			}
			if c.lives.Load() < 3 {
				t.Errorf("nothing was killed in %d lives", c.lives.Load())
			}
		})
	}
}

// await polls until a condition holds.
func (c *cluster) await(t *testing.T, what string, condition func(context.Context, kubernetes.Interface) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := condition(ctx, c.user)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting until %s, in life %d: %v", what, c.lives.Load(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// rest returns the state that no longer changes.
func (c *cluster) rest(t *testing.T) []string {
	t.Helper()
	var last []string
	var since time.Time
	var change string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		now, err := state(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(now, last) {
			change = difference(last, now)
			last, since = now, time.Now()
		}
		if time.Since(since) > 3*time.Second {
			return last
		}
	}
	t.Fatalf("the state did not come to rest in %v; the last change:\n%s", patience, change)
	return nil
}

// difference lists the lines that only one side has.
func difference(want, got []string) string {
	var text strings.Builder
	count := map[string]int{}
	for _, line := range want {
		count[line]++
	}
	for _, line := range got {
		count[line]--
	}
	lines := slices.Concat(want, got)
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) {
		switch n := count[line]; {
		case n > 0:
			fmt.Fprintf(&text, "missing %d: %s\n", n, line)
		case n < 0:
			fmt.Fprintf(&text, "too many %d: %s\n", -n, line)
		}
	}
	return text.String()
}
