// Package containerd runs a node's container runtime: it configures containerd, starts it,
// restarts it when it dies, and removes every trace of it when the node is deleted.
//
// containerd outlives the process that started it, in a session of its own, and containers
// outlive containerd: a node agent that is killed and started again finds both as they were.
// Nothing records which process is the right one; its command line names the configuration
// file, and that file's name is a digest of its content, so one look at /proc tells whether
// a containerd runs for this directory and whether it runs with the wanted settings.
package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"proa/internal/payload"
)

// Config says what to run and where.
type Config struct {
	// Bin is the unpacked payload.
	Bin payload.Bin
	// Root is the directory for images, containers and configuration, such as
	// /var/lib/proa/containerd. Delete removes it.
	Root string
	// RunDir holds sockets and the state of running containers; it should be on a file
	// system that a reboot empties. The default is short, as socket paths have to be, and
	// derived from Root: /run/proa/<digest>.
	RunDir string
	// CNIConfDir is where the pod network puts its CNI configuration. The default is cni in
	// Root; another directory is not removed by Delete.
	CNIConfDir string
	// LogFile receives containerd's log. The default is containerd.log in Root.
	LogFile string
	// CgroupRoot is the cgroup below which all pods of this node live, such as /proa/1f2e.
	// Delete kills what is left in it and removes it. Empty means that there is none.
	CgroupRoot string
	// Snapshotter is overlayfs or native. By default it is overlayfs where Root allows it.
	Snapshotter string

	Log   *slog.Logger
	Clock clock.Clock
}

// Runtime is one containerd and what it runs.
type Runtime struct {
	config Config

	readyOnce sync.Once
	ready     chan struct{} // closed when containerd first served with the pause image present
}

// maxSocketPath is the longest path the kernel takes for a Unix socket, less its final zero.
const maxSocketPath = 107

// New checks the configuration; it starts nothing.
func New(config Config) (*Runtime, error) {
	if config.Root == "" {
		return nil, errors.New("containerd needs a root directory")
	}
	root, err := filepath.Abs(config.Root)
	if err != nil {
		return nil, err
	}
	config.Root = root
	if config.RunDir == "" {
		config.RunDir = defaultRunDir(root)
	}
	if config.CNIConfDir == "" {
		config.CNIConfDir = filepath.Join(root, "cni")
	}
	if config.LogFile == "" {
		config.LogFile = filepath.Join(root, "containerd.log")
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	r := &Runtime{config: config, ready: make(chan struct{})}
	// A shim's socket is the longest name: a directory, s/, and a SHA-256 in hexadecimal.
	if longest := filepath.Join(r.shimSockets(), hex.EncodeToString(make([]byte, sha256.Size))); len(longest) > maxSocketPath {
		return nil, fmt.Errorf("run directory %s is too long for Unix sockets: %d bytes above the limit of %d", config.RunDir, len(longest)-maxSocketPath, maxSocketPath)
	}
	return r, nil
}

func defaultRunDir(root string) string {
	sum := sha256.Sum256([]byte(root))
	return filepath.Join("/run/proa", hex.EncodeToString(sum[:6]))
}

// Socket is the path of the Unix socket that serves CRI and containerd's own API.
func (r *Runtime) Socket() string { return filepath.Join(r.config.RunDir, "containerd.sock") }

// Endpoint is Socket as a URL.
func (r *Runtime) Endpoint() string { return "unix://" + r.Socket() }

// CNIConfDir is where the pod network puts its CNI configuration.
func (r *Runtime) CNIConfDir() string { return r.config.CNIConfDir }

// RegistryDir holds a hosts.toml per registry: mirrors, credentials, certificate authorities.
func (r *Runtime) RegistryDir() string { return filepath.Join(r.config.Root, "certs.d") }

func (r *Runtime) state() string       { return filepath.Join(r.config.RunDir, "state") }
func (r *Runtime) shimSockets() string { return filepath.Join(r.config.RunDir, "s") }

// Ready waits until containerd serves and has the pause image.
func (r *Runtime) Ready(ctx context.Context) error {
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for containerd: %w", ctx.Err())
	}
}

const (
	firstDelay = 100 * time.Millisecond // before the first restart
	lastDelay  = 10 * time.Second       // between restarts that keep failing
	stable     = 30 * time.Second       // a life this long forgets earlier failures
)

// Run keeps containerd running until ctx ends, adopting one that runs already. It leaves
// containerd and the containers running: Stop ends the one, Delete both.
func (r *Runtime) Run(ctx context.Context) error {
	delay := firstDelay
	for {
		began := r.config.Clock.Now()
		err := r.live(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if r.config.Clock.Since(began) > stable {
			delay = firstDelay
		}
		r.config.Log.Error("containerd ended; starting it again", "error", err, "after", delay, "log", r.config.LogFile)
		select {
		case <-ctx.Done():
			return nil
		case <-r.config.Clock.After(delay):
		}
		delay = min(2*delay, lastDelay)
	}
}

// live takes containerd through one life: start or adopt, prepare, wait for its death.
func (r *Runtime) live(ctx context.Context) error {
	p, err := r.start(ctx)
	if err != nil {
		return err
	}
	life, end := context.WithCancel(ctx)
	defer end()
	prepared := make(chan error, 1)
	go func() { prepared <- r.prepare(life) }()
	died := make(chan error, 1)
	go func() { died <- p.wait(life) }()
	for {
		select {
		case err := <-prepared:
			if err != nil {
				end()
				<-died
				p.reap()
				return err
			}
			r.readyOnce.Do(func() { close(r.ready) })
			prepared = nil
		case err := <-died:
			end()
			if prepared != nil {
				<-prepared
			}
			p.reap()
			if err != nil {
				return err
			}
			return errors.New("process exited")
		case <-r.config.Clock.After(time.Minute):
			if err := trimLog(r.config.LogFile, maxLog); err != nil {
				r.config.Log.Warn("cannot trim containerd's log", "error", err)
			}
		}
	}
}

// start returns the containerd that runs with the wanted configuration. One that runs with
// another configuration or an executable since replaced is ended first; its containers stay.
func (r *Runtime) start(ctx context.Context) (*process, error) {
	settings, err := r.settings()
	if err != nil {
		return nil, err
	}
	file, err := r.writeSettings(settings)
	if err != nil {
		return nil, err
	}
	running, err := r.daemons()
	if err != nil {
		return nil, err
	}
	for _, p := range running {
		if p.settings == file && p.executable == r.config.Bin.Containerd {
			r.config.Log.Info("adopted running containerd", "pid", p.pid)
			return p, nil
		}
		if err := p.terminate(ctx, stopGrace); err != nil {
			return nil, fmt.Errorf("end containerd with old settings: %w", err)
		}
	}
	if err := trimLog(r.config.LogFile, maxLog); err != nil {
		return nil, err
	}
	return r.spawn(file)
}

// stopGrace is how long containerd may take to end by itself.
const stopGrace = 10 * time.Second

// Stop ends containerd and leaves the containers running. Run must have ended, or it would
// start containerd again.
func (r *Runtime) Stop(ctx context.Context) error {
	running, err := r.daemons()
	if err != nil {
		return err
	}
	for _, p := range running {
		if err := p.terminate(ctx, stopGrace); err != nil {
			return fmt.Errorf("stop containerd: %w", err)
		}
	}
	return nil
}

// maxLog is the size in bytes at which containerd's log is turned over.
const maxLog = 16 << 20

// trimLog keeps the log at path as path.1 and empties it when it is larger than limit.
// containerd goes on appending to the same file.
func trimLog(path string, limit int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() <= limit {
		return nil
	}
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".1", content, 0o600); err != nil {
		return err
	}
	return os.Truncate(path, 0)
}
