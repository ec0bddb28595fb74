package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

const (
	rotateInterval  = 10 * time.Second
	rotatedFormat   = "20060102-150405"
	compressedName  = ".gz"
	unfinishedName  = ".tmp"
	defaultMaxSize  = 10 << 20
	defaultMaxFiles = 5
)

// Runtime is what rotation needs of a CRI runtime.
type Runtime interface {
	ListContainers(ctx context.Context, in *runtimeapi.ListContainersRequest, opts ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error)
	ContainerStatus(ctx context.Context, in *runtimeapi.ContainerStatusRequest, opts ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error)
	ReopenContainerLog(ctx context.Context, in *runtimeapi.ReopenContainerLogRequest, opts ...grpc.CallOption) (*runtimeapi.ReopenContainerLogResponse, error)
}

// RotatorConfig configures a Rotator. Runtime is required.
type RotatorConfig struct {
	Runtime  Runtime
	MaxSize  int64            // bytes; default 10 MiB (containerLogMaxSize)
	MaxFiles int              // per container, the current one included; default 5 (containerLogMaxFiles)
	Workers  int              // logs rotated at a time; default 1 (containerLogMaxWorkers)
	Interval time.Duration    // default 10 s (containerLogMonitorInterval)
	Clock    clock.WithTicker // default: the wall clock
}

// Rotator keeps the logs of running containers small. A rotated file has the
// time of rotation after its name; all but the newest of them are compressed.
type Rotator struct {
	c     RotatorConfig
	paths map[string]string // container id -> log path
}

// NewRotator returns a Rotator.
func NewRotator(c RotatorConfig) *Rotator {
	if c.MaxSize == 0 {
		c.MaxSize = defaultMaxSize
	}
	if c.MaxFiles < 2 {
		c.MaxFiles = defaultMaxFiles
	}
	if c.Workers < 1 {
		c.Workers = 1
	}
	if c.Interval == 0 {
		c.Interval = rotateInterval
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return &Rotator{c: c, paths: map[string]string{}}
}

// Run rotates until the context ends.
func (r *Rotator) Run(ctx context.Context) error {
	tick := r.c.Clock.NewTicker(r.c.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
			if err := r.pass(ctx); err != nil && ctx.Err() == nil {
				slog.Warn("rotate container logs", "err", err)
			}
		}
	}
}

func (r *Rotator) pass(ctx context.Context) error {
	running, err := r.c.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return err
	}
	paths := make(map[string]string, len(running.GetContainers()))
	var errs []error
	var failed sync.Mutex // guards errs while workers run
	var workers errgroup.Group
	workers.SetLimit(r.c.Workers)
	for _, c := range running.GetContainers() {
		path, err := r.path(ctx, c.Id)
		if err != nil {
			failed.Lock()
			errs = append(errs, err)
			failed.Unlock()
			continue
		}
		paths[c.Id] = path
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil || info.Size() < r.c.MaxSize {
			continue // a missing file is one that the container never wrote
		}
		workers.Go(func() error {
			if err := r.rotate(ctx, c.Id, path); err != nil {
				failed.Lock()
				defer failed.Unlock()
				errs = append(errs, fmt.Errorf("rotate log of container %s: %w", c.Id, err))
			}
			return nil
		})
	}
	_ = workers.Wait() // they keep their errors in errs
	r.paths = paths
	return errors.Join(errs...)
}

func (r *Rotator) path(ctx context.Context, id string) (string, error) {
	if path, ok := r.paths[id]; ok {
		return path, nil
	}
	status, err := r.c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return "", err
	}
	return status.GetStatus().GetLogPath(), nil
}

func (r *Rotator) rotate(ctx context.Context, id, path string) error {
	old, err := Rotated(path)
	if err != nil {
		return err
	}
	// With the current file and the one made below there are MaxFiles.
	if excess := len(old) - (r.c.MaxFiles - 2); excess > 0 {
		for _, name := range old[:excess] {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		old = old[excess:]
	}
	for _, name := range old {
		if err := compress(name); err != nil {
			return err
		}
	}
	target := path + "." + r.c.Clock.Now().Format(rotatedFormat)
	if err := os.Rename(path, target); err != nil {
		return err
	}
	if _, err := r.c.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		// The runtime goes on writing to the old file: give it its name back.
		return errors.Join(err, os.Rename(target, path))
	}
	return nil
}

// Rotated lists the rotated files of a log, oldest first, and removes what an
// interrupted compression left.
func Rotated(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	prefix := filepath.Base(path) + "."
	var out []string
	for _, e := range entries {
		suffix, ok := strings.CutPrefix(e.Name(), prefix)
		if !ok {
			continue
		}
		full := filepath.Join(filepath.Dir(path), e.Name())
		if strings.HasSuffix(suffix, unfinishedName) {
			if err := os.Remove(full); err != nil {
				return nil, err
			}
			continue
		}
		if _, err := time.Parse(rotatedFormat, strings.TrimSuffix(suffix, compressedName)); err == nil {
			out = append(out, full)
		}
	}
	slices.Sort(out) // the time is in the name
	return out, nil
}

// Remove deletes a container's log and its rotated files.
func Remove(path string) error {
	old, err := Rotated(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, name := range append(old, path) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func compress(name string) error {
	if strings.HasSuffix(name, compressedName) {
		return nil
	}
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := name + unfinishedName
	if err := writeGzip(tmp, in); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, name+compressedName); err != nil {
		return err
	}
	return os.Remove(name)
}

func writeGzip(name string, in io.Reader) error {
	out, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	return errors.Join(err, z.Close(), out.Close())
}
