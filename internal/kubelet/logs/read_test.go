package logs

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

const sample = `2026-01-01T00:00:01Z stdout F one
2026-01-01T00:00:02.5Z stderr F two
2026-01-01T00:00:03Z stdout P thr
2026-01-01T00:00:04Z stdout F ee
not a log line
2026-01-01T00:00:05.123456789Z stdout F:tag four
`

func TestRead(t *testing.T) {
	tests := []struct {
		name string
		opts Options
		want string
	}{
		{"everything", Options{}, "one\ntwo\nthree\nfour\n"},
		{"one stream", Options{Stream: Stderr}, "two\n"},
		{"the last line", Options{Tail: ptr.To[int64](1)}, "four\n"},
		{"a tail counts parts of a line once", Options{Tail: ptr.To[int64](3)}, "three\nfour\n"},
		{"a tail longer than the log", Options{Tail: ptr.To[int64](100)}, "one\ntwo\nthree\nfour\n"},
		{"no lines", Options{Tail: ptr.To[int64](0)}, ""},
		{"since a time", Options{Since: time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)}, "three\nfour\n"},
		{"one byte", Options{LimitBytes: ptr.To[int64](1)}, "o"},
		{"limit counts timestamps", Options{LimitBytes: ptr.To[int64](32), Timestamps: true}, "2026-01-01T00:00:01.000000000Z o"},
		{"timestamps once per line", Options{Timestamps: true, Since: time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)},
			"2026-01-01T00:00:03.000000000Z three\n2026-01-01T00:00:05.123456789Z four\n"},
	}
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := NewReader(nil).Read(t.Context(), Request{Path: path, Options: tt.opts}, &out); err != nil {
				t.Fatal(err)
			}
			if out.String() != tt.want {
				t.Errorf("got  %q\nwant %q", out.String(), tt.want)
			}
		})
	}
}

func TestTailOfALongLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	var b strings.Builder
	for range 5000 {
		b.WriteString("2026-01-01T00:00:01Z stdout F " + strings.Repeat("x", 40) + "\n")
	}
	b.WriteString("2026-01-01T00:00:01Z stdout F last\n")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := NewReader(nil)
	for _, n := range []int64{1, 2, 1500, 5000, 5001, 5002} {
		var out bytes.Buffer
		if err := r.Read(t.Context(), Request{Path: path, Options: Options{Tail: &n}}, &out); err != nil {
			t.Fatal(err)
		}
		if got := int64(strings.Count(out.String(), "\n")); got != min(n, 5001) {
			t.Errorf("tail %d gave %d lines", n, got)
		}
	}
	if got, err := r.Tail(t.Context(), path, 2, 8); err != nil || got != "xx\nlast\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTailOfALineWithoutAnEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	add(t, path, "2026-01-01T00:00:01Z stdout F a\n2026-01-01T00:00:02Z stdout P b\n2026-01-01T00:00:03Z stdout P c\n")
	var out bytes.Buffer
	if err := NewReader(nil).Read(t.Context(), Request{Path: path, Options: Options{Tail: ptr.To[int64](1)}}, &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != "bc" {
		t.Errorf("got %q", out.String())
	}
}

// lines collects output and lets a test wait for it.
type lines struct {
	mu   sync.Mutex
	cond *sync.Cond
	text string
}

func newLines() *lines { l := &lines{}; l.cond = sync.NewCond(&l.mu); return l }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(p)
	l.cond.Broadcast()
	return len(p), nil
}

func (l *lines) await(want string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.text != want {
		l.cond.Wait()
	}
}

func add(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestFollowAcrossRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	clk := clocktesting.NewFakeClock(time.Time{})
	r := NewReader(clk)
	out := newLines()
	var mu sync.Mutex
	running := true
	done := make(chan error, 1)
	go func() {
		done <- r.Read(t.Context(), Request{Path: path, Options: Options{Follow: true}, Running: func(context.Context) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return running, nil
		}}, out)
	}()
	add(t, path, "2026-01-01T00:00:01Z stdout F a\n2026-01-01T00:0")
	out.await("a\n")
	add(t, path, "0:02Z stdout F b\n")
	out.await("a\nb\n")
	if err := os.Rename(path, path+".20260101-000000"); err != nil {
		t.Fatal(err)
	}
	add(t, path+".20260101-000000", "2026-01-01T00:00:03Z stdout F late\n")
	add(t, path, "2026-01-01T00:00:04Z stdout F new\n")
	out.await("a\nb\nlate\nnew\n")
	mu.Lock()
	running = false
	mu.Unlock()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			if r.notify.watcher != nil {
				t.Error("the inotify instance is still held")
			}
			return
		default:
			clk.Step(checkPeriod)
		}
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	add(t, path, sample)
	ctx, cancel := context.WithCancel(t.Context())
	out := newLines()
	done := make(chan error, 1)
	go func() {
		done <- NewReader(nil).Read(ctx, Request{Path: path, Options: Options{Follow: true, Tail: ptr.To[int64](1)},
			Running: func(context.Context) (bool, error) { return true, nil }}, out)
	}()
	out.await("four\n")
	cancel()
	if err := <-done; err != context.Canceled {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for line := range strings.Lines(sample) {
		f.Add([]byte(line))
	}
	f.Add([]byte("2026-01-01T00:00:01Z stdout F"))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := Parse(line)
		if err != nil {
			return
		}
		if e.Stream != Stdout && e.Stream != Stderr {
			t.Errorf("stream %q", e.Stream)
		}
		if !bytes.HasSuffix(bytes.TrimSuffix(line, []byte("\n")), e.Content) {
			t.Errorf("content %q is not the end of %q", e.Content, line)
		}
	})
}

// Reading backwards for a tail finds the same lines as reading forwards.
func FuzzTail(f *testing.F) {
	f.Add(sample, int64(2))
	f.Add(strings.Repeat("2026-01-01T00:00:01Z stdout P x\n", 3), int64(1))
	f.Fuzz(func(t *testing.T, text string, n int64) {
		if n < 0 || n > 1000 {
			return
		}
		offset, err := tailOffset(strings.NewReader(text), int64(len(text)), n)
		if err != nil {
			t.Fatal(err)
		}
		if offset < 0 || offset > int64(len(text)) {
			t.Fatalf("offset %d of %d", offset, len(text))
		}
		ends := int64(0)
		for line := range strings.Lines(text[offset:]) {
			if full([]byte(line)) {
				ends++
			}
		}
		if ends > n {
			t.Errorf("%d lines after offset %d, want at most %d", ends, offset, n)
		}
	})
}
