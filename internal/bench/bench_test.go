package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestQuantile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	tests := []struct {
		name  string
		times []time.Duration
		part  float64
		want  time.Duration
	}{
		{"of nothing is nothing", nil, 0.5, 0},
		{"of one is that one", []time.Duration{7}, 0.99, 7},
		{"the median of two is the lower one", []time.Duration{1, 2}, 0.5, 1},
		{"the 99th of a hundred", hundred, 0.99, 99},
		{"all of them", hundred, 1, 100},
		{"none of them is the least", hundred, 0, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := quantile(tt.times, tt.part); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestAFigureSumsUpASample(t *testing.T) {
	var s sample
	s.merge([]time.Duration{3 * time.Millisecond, time.Millisecond})
	s.add(2 * time.Millisecond)
	s.fail(errors.New("no"))
	got := s.figure("get", "1 client", 2*time.Second, 6*time.Millisecond)
	want := Figure{Task: "get", How: "1 client", Count: 3, Failed: 1, Seconds: 2, PerSecond: 1.5, P50: 2, P99: 3, CPU: 2}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if empty := new(sample).figure("get", "", time.Second, 0); empty.PerSecond != 0 || empty.CPU != 0 {
		t.Errorf("nothing was measured, yet %+v", empty)
	}
}

func TestTogetherReturnsTheFirstErrorAndEndsTheOthers(t *testing.T) {
	failure := errors.New("failure")
	err := together(t.Context(), 3, func(ctx context.Context, i int) error {
		if i == 1 {
			return failure
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	if err := together(t.Context(), 3, func(context.Context, int) error { return nil }); err != nil {
		t.Errorf("nothing failed, yet %v", err)
	}
}

func TestStatOfAProcess(t *testing.T) {
	const stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 9 0 100 1000000 25 18446744073709551615 1 1"
	u, err := parseStat(stat)
	if err != nil {
		t.Fatal(err)
	}
	if want := (usage{cpu: 2 * time.Second, resident: 25 * int64(os.Getpagesize())}); u != want {
		t.Errorf("got %+v, want %+v", u, want)
	}
	for _, bad := range []string{"", "1 (a) S 1", strings.Replace(stat, "150", "x", 1)} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestThisProcessIsMeasured(t *testing.T) {
	s, err := FindServer([]int{os.Getpid()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if u := s.usage(); u.resident == 0 {
		t.Errorf("a running process has no memory: %+v", u)
	}
	if _, err := FindServer(nil, []string{"no-such-program-runs"}); err == nil {
		t.Error("a program that does not run was found")
	}
}

// event is a watch event of a pod as a server sends it.
func event(t *testing.T, media string, pod []byte) []byte {
	t.Helper()
	if media == mediaJSON {
		return fmt.Appendf(nil, `{"type":"MODIFIED","object":%s}`+"\n", pod)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b", sentAnnotation: stamp(time.Unix(9, 9))}}}
	raw, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	frame, err := (&metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: raw}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)
}

func TestEventsAreReadHoweverTheyArrive(t *testing.T) {
	pod := podBody("ns", "a")
	setStamp(pod, time.Unix(9, 9))
	for _, media := range []string{mediaJSON, mediaProtobuf} {
		t.Run(media, func(t *testing.T) {
			const count = 40
			stream := bytes.Repeat(event(t, media, pod), count)
			for _, from := range []io.Reader{bytes.NewReader(stream), &trickle{stream}} {
				times, err := readEvents(from, media, count)
				if err != nil || len(times) != count {
					t.Fatalf("%d events, %v", len(times), err)
				}
				if age := time.Since(time.Unix(9, 9)); times[0] > age || times[0] < age-time.Hour {
					t.Errorf("an event of 1970 took %v", times[0])
				}
			}
			if _, err := readEvents(bytes.NewReader(stream), media, count+1); err == nil {
				t.Error("an event was read that is not there")
			}
		})
	}
}

// trickle gives a few bytes at a time.
type trickle struct{ left []byte }

func (r *trickle) Read(p []byte) (int, error) {
	if len(r.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1000)], r.left)
	r.left = r.left[n:]
	return n, nil
}

func TestTheContinueTokenOfAPage(t *testing.T) {
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "to\"ken="}, Items: make([]corev1.Pod, 2)}
	raw, err := list.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	page, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Raw: raw}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, media string
		page        []byte
		want        string
		bad         bool
	}{
		{"in protobuf", mediaProtobuf, append([]byte("k8s\x00"), page...), `to"ken=`, false},
		{"in JSON", mediaJSON, []byte(`{"metadata":{"continue":"to\"ken=","resourceVersion":"7"}}`), `to"ken=`, false},
		{"of the last page in JSON", mediaJSON, []byte(`{"metadata":{"resourceVersion":"7"}}`), "", false},
		{"of no protobuf", mediaProtobuf, []byte(`{}`), "", true},
		{"of cut protobuf", mediaProtobuf, append([]byte("k8s\x00"), page[:9]...), "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := continueOf(tt.page, tt.media)
			if got != tt.want || (err != nil) != tt.bad {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestAMarkIsFoundAcrossReads(t *testing.T) {
	text := strings.Repeat("x", 990) + string(initialEnd) + "rest"
	if _, err := readUntil(&trickle{[]byte(text)}, initialEnd); err != nil {
		t.Error(err)
	}
	if _, err := readUntil(&trickle{[]byte(text[:1005])}, initialEnd); err == nil {
		t.Error("half a mark was taken for one")
	}
}

func TestATableLeavesOutWhatIsNotThere(t *testing.T) {
	var b strings.Builder
	report := Table(&b)
	report(Figure{Task: "get", How: "1 client", Count: 2, Failed: 1, Seconds: 1.5, PerSecond: 1.33, P50: 0.25, P99: 10, CPU: 0.0801})
	report(Figure{Task: "list", How: "json", Count: 1, Bytes: 300 << 20, Memory: 5 << 10})
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), b.String())
	}
	if got := strings.Join(strings.Fields(lines[1]), " "); got != "get 1 client 2(-1) 1.50 1 0.25ms 10.00ms 0.080ms - -" {
		t.Error(got)
	}
	if got := strings.Join(strings.Fields(lines[2]), " "); got != "list json 1 - - - - - 300MiB 5120B" {
		t.Error(got)
	}
}
