package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server is the processes that are measured: an API server, and its store if
// that is a process of its own. Without processes CPU and memory are reported as 0.
type Server struct{ Processes []Process }

// Process is one of them.
type Process struct {
	PID  int
	Name string
}

// FindServer returns the processes with the given ids and all those whose
// program has one of the names.
func FindServer(pids []int, names []string) (Server, error) {
	var s Server
	for _, pid := range pids {
		name, err := programName(pid)
		if err != nil {
			return s, fmt.Errorf("process %d: %w", pid, err)
		}
		s.Processes = append(s.Processes, Process{pid, name})
	}
	for _, name := range names {
		found, err := named(name)
		if err != nil {
			return s, err
		}
		if len(found) == 0 {
			return s, fmt.Errorf("no process runs a program named %s", name)
		}
		s.Processes = append(s.Processes, found...)
	}
	return s, nil
}

// named lists the processes of a program, this one left out.
func named(name string) ([]Process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if n, err := programName(pid); err == nil && n == name {
			found = append(found, Process{pid, name})
		}
	}
	return found, nil
}

func programName(pid int) (string, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "", err
	}
	program, _, _ := strings.Cut(string(line), "\x00")
	return filepath.Base(program), nil
}

// usage is what a process used so far, and what it has.
type usage struct {
	cpu      time.Duration
	resident int64 // bytes
}

func (p Process) usage() (usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil {
		return usage{}, err
	}
	return parseStat(string(stat))
}

// parseStat reads /proc/PID/stat. The program's name in it may hold anything, so
// fields are counted from the last parenthesis.
func parseStat(stat string) (usage, error) {
	const (
		tick     = 10 * time.Millisecond // USER_HZ is 100 on every Linux
		userTime = 14 - 3                // as numbered in proc(5), the first one after the name being 3
		sysTime  = 15 - 3
		resident = 24 - 3
	)
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= resident {
		return usage{}, errors.New("stat is too short")
	}
	var n [3]int64
	for i, at := range []int{userTime, sysTime, resident} {
		var err error
		if n[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
			return usage{}, fmt.Errorf("stat: %w", err)
		}
	}
	return usage{cpu: time.Duration(n[0]+n[1]) * tick, resident: n[2] * int64(os.Getpagesize())}, nil
}

// usage is the sum of all processes. One that ended counts as nothing.
func (s Server) usage() (sum usage) {
	for _, p := range s.Processes {
		u, err := p.usage()
		if err != nil {
			continue
		}
		sum.cpu += u.cpu
		sum.resident += u.resident
	}
	return sum
}

// meter measures the server from its start to its stop.
type meter struct {
	server  Server
	began   time.Time
	before  usage
	stopped context.CancelFunc
	looker  sync.WaitGroup
	most    int64
}

// reading is what a meter shows.
type reading struct {
	took   time.Duration
	cpu    time.Duration
	memory int64 // the most resident bytes above those at the start
}

// look is how often the memory of the server is looked at.
const look = 5 * time.Millisecond

func (s Server) start(ctx context.Context) *meter {
	m := &meter{server: s, before: s.usage(), began: time.Now()}
	m.most = m.before.resident
	ctx, m.stopped = context.WithCancel(ctx)
	if len(s.Processes) > 0 {
		m.looker.Go(func() {
			ticker := time.NewTicker(look)
			defer ticker.Stop()
			for {
				select {
				case <-ticker.C:
					m.most = max(m.most, s.usage().resident)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return m
}

func (m *meter) stop() reading {
	took := time.Since(m.began)
	after := m.server.usage()
	m.stopped()
	m.looker.Wait()
	return reading{took: took, cpu: after.cpu - m.before.cpu, memory: max(m.most, after.resident) - m.before.resident}
}
