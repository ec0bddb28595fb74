package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a containerd of this Runtime, a child of ours or found in /proc.
type process struct {
	pid        int
	executable string // as /proc shows it: " (deleted)" follows when it was replaced
	settings   string // path of its configuration
	child      *exec.Cmd
}

// environment keeps containerd and its shims, which inherit it, small: they allocate little
// and live long. The limit is soft; beyond it the collector only works harder.
var environment = []string{"GOGC=40", "GOMEMLIMIT=256MiB"}

// spawn starts containerd in a session of its own, so that no signal or death of ours ends it.
func (r *Runtime) spawn(settings string) (*process, error) {
	log, err := os.OpenFile(r.config.LogFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command := exec.Command(r.config.Bin.Containerd, "--config", settings)
	command.Dir = r.config.Root
	command.Env = append(os.Environ(), environment...)
	command.Env = append(command.Env, "PATH="+r.config.Bin.Dir+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	return &process{pid: command.Process.Pid, executable: r.config.Bin.Containerd, settings: settings, child: command}, nil
}

// daemons finds the containerds that run for this root.
func (r *Runtime) daemons() ([]*process, error) {
	pids, err := pids()
	if err != nil {
		return nil, err
	}
	var found []*process
	for _, pid := range pids {
		args := commandLine(pid)
		if len(args) != 3 || args[1] != "--config" || filepath.Dir(args[2]) != r.config.Root || !strings.HasPrefix(filepath.Base(args[2]), settingsPrefix) {
			continue
		}
		executable, err := os.Readlink(procPath(pid, "exe"))
		if err != nil || !onThisRoot(pid) {
			continue
		}
		found = append(found, &process{pid: pid, executable: executable, settings: args[2]})
	}
	return found, nil
}

// wait returns nil when the process has ended, or ctx's error.
func (p *process) wait(ctx context.Context) error { return waitExit(ctx, p.pid) }

// reap collects a child that ended. A child that still runs is collected when it ends.
func (p *process) reap() {
	if p.child != nil {
		child := p.child
		p.child = nil
		go child.Wait() //nolint:errcheck // its exit status tells nothing its log does not
	}
}

// terminate asks the process to end, insists after grace, and waits until it has.
func (p *process) terminate(ctx context.Context, grace time.Duration) error {
	if err := signal(p.pid, unix.SIGTERM); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := p.wait(patient); err == nil || ctx.Err() != nil {
		return err
	}
	if err := signal(p.pid, unix.SIGKILL); err != nil {
		return err
	}
	return p.wait(ctx)
}

// waitExit waits for any process, related or not, through a descriptor of it.
func waitExit(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) }) //nolint:errcheck // a pidfd takes deadlines
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func signal(pid int, s unix.Signal) error {
	if err := unix.Kill(pid, s); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

func procPath(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// pids lists the processes of this machine in ascending order.
func pids() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// commandLine returns a process's arguments, none for one that has ended.
func commandLine(pid int) []string {
	raw, err := os.ReadFile(procPath(pid, "cmdline"))
	if err != nil || len(raw) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
}

// onThisRoot reports whether a process sees the same root directory as we do: one in a
// container may bear any command line.
func onThisRoot(pid int) bool {
	theirs, err := os.Stat(procPath(pid, "root"))
	if err != nil {
		return false
	}
	ours, err := os.Stat("/")
	return err == nil && os.SameFile(theirs, ours)
}
