package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"syscall"
	"time"
)

// Start says how the start of a server is measured.
type Start struct {
	Command []string  // starts the server in the foreground
	URL     string    // answers 200 when it is ready; its certificate is not verified
	Repeat  int       // default 3
	Output  io.Writer // of the server; nil: nowhere
}

// Run starts the server, asks until it is ready, notes its memory and ends it,
// several times.
func (b Start) Run(ctx context.Context, report Report) error {
	if len(b.Command) == 0 {
		return errors.New("start needs a command")
	}
	if b.Repeat <= 0 {
		b.Repeat = 3
	}
	var s sample
	var cpu time.Duration
	var memory int64
	began := time.Now()
	for range b.Repeat {
		took, used, err := b.once(ctx)
		if err != nil {
			return err
		}
		s.add(took)
		cpu, memory = cpu+used.cpu, used.resident
	}
	f := s.figure("start to ready", b.URL, time.Since(began), cpu)
	f.Memory, f.PerSecond = memory, 0
	report(f)
	return nil
}

func (b Start) once(ctx context.Context) (took time.Duration, used usage, err error) {
	cmd := exec.CommandContext(ctx, b.Command[0], b.Command[1:]...)
	cmd.Stdout, cmd.Stderr = b.Output, b.Output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, used, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := b.ready(ctx, ended); err != nil {
		if ctx.Err() != nil {
			<-ended
		}
		return 0, used, err
	}
	took = time.Since(began)
	used, err = Process{PID: cmd.Process.Pid}.usage()
	if err := errors.Join(err, cmd.Process.Signal(syscall.SIGTERM)); err != nil {
		return 0, used, err
	}
	<-ended // by a signal: no error of ours
	return took, used, nil
}

// ready asks until the answer is 200 or the server has ended.
func (b Start) ready(ctx context.Context, ended chan error) error {
	const pause = 2 * time.Millisecond
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // only asked whether it is up
	defer transport.CloseIdleConnections()
	asker := http.Client{Transport: transport, Timeout: time.Second}
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL, nil)
		if err != nil {
			return err
		}
		if resp, err := asker.Do(r); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("the server ended before it was ready: %v", err)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
