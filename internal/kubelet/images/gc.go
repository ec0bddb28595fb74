package images

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sort"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"proa/internal/kubelet/cri"
)

// Collector removes images that no container uses, the least recently used
// first, when the image file system fills up.
type Collector struct {
	Runtime *cri.Runtime
	// Above HighPercent of disk use images are removed until it is below
	// LowPercent. Defaults 85 and 80; HighPercent 100 switches collection off.
	HighPercent, LowPercent int
	MinAge                  time.Duration // an image is kept this long after it was first seen. Default 2 min
	MaxAge                  time.Duration // unused for longer: removed whatever the disk use. 0: never
	Interval                time.Duration // default 5 min
	// Wanted names images in use that no container shows: those of image
	// volumes. Nil: none.
	Wanted   func() []string
	Recorder record.EventRecorder
	Node     *corev1.ObjectReference
	Clock    clock.WithTicker
	Log      *slog.Logger

	mu   sync.Mutex
	seen map[string]*usage // by image id; guarded by mu
}

type usage struct {
	first, last time.Time
	size        uint64
	old         bool // it was there before the collector: nobody knows for how long
}

// Run collects every Interval until ctx ends.
func (g *Collector) Run(ctx context.Context) error {
	if g.Interval == 0 {
		g.Interval = 5 * time.Minute
	}
	g.mu.Lock()
	if _, err := g.detect(ctx); err != nil && ctx.Err() == nil {
		g.Log.Warn("look for images", "err", err)
	}
	g.mu.Unlock()
	tick := g.Clock.NewTicker(g.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
			if err := g.Collect(ctx); err != nil && ctx.Err() == nil {
				g.Log.Warn("collect images", "err", err)
				g.Recorder.Event(g.Node, corev1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
		}
	}
}

// Collect looks once.
func (g *Collector) Collect(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	unused, err := g.detect(ctx)
	if err != nil {
		return err
	}
	now := g.Clock.Now()
	if g.MaxAge > 0 {
		for _, id := range unused {
			if u := g.seen[id]; u != nil && now.Sub(u.last) > g.MaxAge && now.Sub(u.first) > g.MaxAge {
				if err := g.remove(ctx, id); err != nil {
					return err
				}
			}
		}
	}
	used, capacity, err := g.disk(ctx)
	if err != nil {
		return err
	}
	high, low := orDefault(g.HighPercent, 85), orDefault(g.LowPercent, 80)
	if capacity == 0 || high >= 100 || used*100/capacity < uint64(high) {
		return nil
	}
	want := used - capacity*uint64(low)/100
	freed, err := g.free(ctx, unused, want)
	if err != nil {
		return err
	}
	if freed < want {
		msg := fmt.Sprintf("Failed to garbage collect required amount of images. Attempted to free %d bytes, but only found %d bytes eligible to free.", want, freed)
		g.Recorder.Event(g.Node, corev1.EventTypeWarning, "FreeDiskSpaceFailed", msg)
	}
	return nil
}

// RemoveUnused removes all images that nothing uses, but for those that have just come.
func (g *Collector) RemoveUnused(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	unused, err := g.detect(ctx)
	if err != nil {
		return err
	}
	_, err = g.free(ctx, unused, math.MaxUint64)
	return err
}

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

func (g *Collector) free(ctx context.Context, unused []string, want uint64) (freed uint64, err error) {
	now, minAge := g.Clock.Now(), g.MinAge
	if minAge == 0 {
		minAge = 2 * time.Minute
	}
	sort.SliceStable(unused, func(i, j int) bool { return g.seen[unused[i]].last.Before(g.seen[unused[j]].last) })
	for _, id := range unused {
		u := g.seen[id]
		if freed >= want {
			break
		}
		if !u.old && now.Sub(u.first) < minAge {
			continue
		}
		if err := g.remove(ctx, id); err != nil {
			g.Log.Warn("remove image", "image", id, "err", err)
			continue
		}
		freed += u.size
	}
	return freed, ctx.Err()
}

func (g *Collector) remove(ctx context.Context, id string) error {
	if _, err := g.Runtime.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}}); err != nil {
		return fmt.Errorf("remove image %s: %w", id, err)
	}
	return nil
}

// detect updates when each image was last used and returns the ids of those not
// in use and not pinned.
func (g *Collector) detect(ctx context.Context) ([]string, error) {
	list, err := g.Runtime.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	containers, err := g.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	inUse := map[string]bool{}
	for _, c := range containers.Containers {
		inUse[c.ImageRef], inUse[c.ImageId], inUse[c.Image.GetImage()] = true, true, true
	}
	if g.Wanted != nil {
		for _, name := range g.Wanted() {
			if named, err := Normalize(name); err == nil {
				inUse[named.String()] = true
			}
		}
	}
	now, next := g.Clock.Now(), map[string]*usage{}
	var unused []string
	for _, img := range list.Images {
		u := g.seen[img.Id]
		if u == nil {
			u = &usage{first: now, old: g.seen == nil}
		}
		u.size = img.Size
		next[img.Id] = u
		if usedBy(img, inUse) {
			u.last = now
		} else if !img.Pinned {
			unused = append(unused, img.Id)
		}
	}
	g.seen = next
	return unused, nil
}

func usedBy(img *runtimeapi.Image, inUse map[string]bool) bool {
	if inUse[img.Id] {
		return true
	}
	for _, names := range [][]string{img.RepoTags, img.RepoDigests} {
		for _, n := range names {
			if inUse[n] {
				return true
			}
		}
	}
	return false
}

func (g *Collector) disk(ctx context.Context) (used, capacity uint64, err error) {
	info, err := g.Runtime.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return 0, 0, fmt.Errorf("image file system: %w", err)
	}
	if len(info.ImageFilesystems) == 0 {
		return 0, 0, nil
	}
	var st unix.Statfs_t
	dir := info.ImageFilesystems[0].FsId.GetMountpoint()
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	bs := uint64(st.Bsize)
	return (st.Blocks - st.Bavail) * bs, st.Blocks * bs, nil
}
