// Package watchdog tells systemd that the node agent is well, so that systemd starts
// it anew when it is not. The unit asks for it with WatchdogSec.
package watchdog

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"k8s.io/utils/clock"
)

// Config of a Watchdog. Check is required.
type Config struct {
	Check  func() error // whether the agent is well
	Getenv func(string) string
	Clock  clock.WithTicker // default: the wall clock
	Log    *slog.Logger
}

// Watchdog of one process.
type Watchdog struct {
	c      Config
	socket string
	every  time.Duration // 0: nobody asked
}

// New reads what systemd has set in the environment: WATCHDOG_USEC, the time within
// which it wants to hear, WATCHDOG_PID, of whom, and NOTIFY_SOCKET, where.
func New(c Config) (*Watchdog, error) {
	if c.Getenv == nil {
		c.Getenv = os.Getenv
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	w := &Watchdog{c: c, socket: c.Getenv("NOTIFY_SOCKET")}
	text := c.Getenv("WATCHDOG_USEC")
	if text == "" {
		return w, nil
	}
	micros, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("configure watchdog: error converting WATCHDOG_USEC: %w", err)
	}
	if micros <= 0 {
		return nil, fmt.Errorf("configure watchdog: error WATCHDOG_USEC must be a positive number")
	}
	if text := c.Getenv("WATCHDOG_PID"); text != "" {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("configure watchdog: error converting WATCHDOG_PID: %w", err)
		}
		if pid != os.Getpid() {
			return w, nil // another process of the unit
		}
	}
	w.every = time.Duration(micros) * time.Microsecond / 2
	return w, nil
}

// Run tells twice in each period, as long as the agent is well, until ctx ends.
func (w *Watchdog) Run(ctx context.Context) error {
	if w.every == 0 || w.socket == "" {
		w.c.Log.Debug("the systemd watchdog is not enabled")
		<-ctx.Done()
		return ctx.Err()
	}
	tick := w.c.Clock.NewTicker(w.every)
	defer tick.Stop()
	for {
		if err := w.tell(); err != nil {
			w.c.Log.Error("the systemd watchdog is not told", "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
		}
	}
}

func (w *Watchdog) tell() error {
	if err := w.c.Check(); err != nil {
		return fmt.Errorf("the agent is not well: %w", err)
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: w.socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("WATCHDOG=1"))
	return err
}
