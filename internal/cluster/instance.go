package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Instance is the running proa of one data directory: it holds a lock that the
// kernel releases however the process ends, and its pid for `proa down`.
type Instance struct{ lock *os.File }

// ErrRunning is returned when another process serves the data directory.
var ErrRunning = errors.New("already running")

// Acquire makes this process the instance of l.
func Acquire(l Layout) (*Instance, error) {
	lock, err := os.OpenFile(l.LockFile(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrRunning
		}
		return nil, fmt.Errorf("lock %s: %w", l.LockFile(), err)
	}
	if err := os.WriteFile(l.PIDFile(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		lock.Close()
		return nil, err
	}
	return &Instance{lock: lock}, nil
}

// Release gives the data directory up.
func (i *Instance) Release(l Layout) {
	os.Remove(l.PIDFile())
	i.lock.Close()
}

// Running returns the pid of the instance of l, 0 when there is none. The lock
// decides, not the pid file, which may be left over.
func Running(l Layout) (int, error) { return running(l, time.Second) }

func running(l Layout, patience time.Duration) (int, error) {
	lock, err := os.Open(l.LockFile())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return 0, fmt.Errorf("the cluster in %s is another user's; run the same command with sudo: %w", l.Data, err)
	}
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0, nil
	}
	data, err := os.ReadFile(l.PIDFile())
	if errors.Is(err, fs.ErrNotExist) {
		// The instance is about to write the file, or removed it as its last act.
		const moment = 20 * time.Millisecond
		if patience <= 0 {
			return 0, fmt.Errorf("%s is locked but names no process: %w", l.LockFile(), err)
		}
		lock.Close()
		time.Sleep(moment)
		return running(l, patience-moment)
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// Terminate asks the instance of l to end and waits until it has, killing it
// after grace. It reports whether one was running.
func Terminate(l Layout, grace time.Duration) (bool, error) {
	pid, err := Running(l)
	if err != nil || pid == 0 {
		return false, err
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return true, fmt.Errorf("stop process %d: %w", pid, err)
	}
	const poll = 20 * time.Millisecond
	for waited := time.Duration(0); ; waited += poll {
		now, err := Running(l)
		if err != nil || now == 0 {
			return true, err
		}
		if waited == grace.Round(poll) {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				return true, fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		time.Sleep(poll)
	}
}
