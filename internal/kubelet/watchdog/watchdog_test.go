package watchdog

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestWhatTheEnvironmentSays(t *testing.T) {
	tests := []struct {
		name, micros, pid string
		every             time.Duration
		err               string
	}{
		{"nothing asks", "", "", 0, ""},
		{"half the period", "30000000", "", 15 * time.Second, ""},
		{"another process is meant", "30000000", "1", 0, ""},
		{"no number", "soon", "", 0, "error converting WATCHDOG_USEC"},
		{"no time", "0", "", 0, "WATCHDOG_USEC must be a positive number"},
		{"no process", "1000", "me", 0, "error converting WATCHDOG_PID"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, err := New(Config{Getenv: func(name string) string {
				return map[string]string{"WATCHDOG_USEC": tt.micros, "WATCHDOG_PID": tt.pid}[name]
			}})
			switch {
			case tt.err != "":
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v", err)
				}
			case err != nil || w.every != tt.every:
				t.Errorf("got %v, %v", w, err)
			}
		})
	}
}

func TestAnAgentThatIsNotWellIsSilent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	clock := clocktesting.NewFakeClock(time.Unix(1, 0))
	var sick atomic.Bool
	asked := make(chan bool)
	w, err := New(Config{
		Clock: clock, Getenv: func(name string) string {
			return map[string]string{"WATCHDOG_USEC": strconv.Itoa(int(time.Minute / time.Microsecond)), "NOTIFY_SOCKET": socket}[name]
		},
		Check: func() error {
			asked <- true
			if sick.Load() {
				return errors.New("sync loop is stuck")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	<-asked
	buffer := make([]byte, 100)
	if n, err := conn.Read(buffer); err != nil || string(buffer[:n]) != "WATCHDOG=1" {
		t.Errorf("told %q, %v", buffer[:n], err)
	}
	sick.Store(true)
	clock.Step(30 * time.Second)
	<-asked
	sick.Store(false)
	clock.Step(30 * time.Second)
	<-asked
	if n, err := conn.Read(buffer); err != nil || string(buffer[:n]) != "WATCHDOG=1" {
		t.Errorf("told %q, %v", buffer[:n], err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(buffer); err == nil {
		t.Errorf("told %q as well", buffer[:n])
	}
}
