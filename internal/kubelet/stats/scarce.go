package stats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// disks are directories on the runtime's file systems.
type disks struct{ images, containers string }

// runtimeDisks asks the runtime once where it keeps images and writable layers.
func (p *Provider) runtimeDisks(ctx context.Context) (disks, error) {
	p.mu.Lock()
	known := p.disks
	p.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	resp, err := p.c.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return disks{}, fmt.Errorf("image file system: %w", err)
	}
	var d disks
	if list := resp.GetImageFilesystems(); len(list) > 0 {
		d.images = list[0].GetFsId().GetMountpoint()
	}
	d.containers = d.images
	if list := resp.GetContainerFilesystems(); len(list) > 0 {
		d.containers = list[0].GetFsId().GetMountpoint()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disks = &d
	return d, nil
}

// Dedicated reports whether images lie on another file system than the node's
// directories, and writable layers on another than images.
func (p *Provider) Dedicated(ctx context.Context) (images, containers bool, err error) {
	d, err := p.runtimeDisks(ctx)
	if err != nil || d.images == "" {
		return false, false, err
	}
	var on [3]uint64
	for i, dir := range []string{p.c.RootDir, d.images, d.containers} {
		info, err := os.Stat(dir)
		if err != nil {
			return false, false, err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return false, false, fmt.Errorf("stat %s: no device", dir)
		}
		on[i] = uint64(st.Dev)
	}
	return on[0] != on[1], on[1] != on[2], nil
}

// Scarce measures what a node can run out of: memory, file systems and process ids.
// It costs some small reads of /proc and a statfs for each file system.
func (p *Provider) Scarce(ctx context.Context) (*statsapi.NodeStats, error) {
	now := p.c.Clock.Now()
	out := &statsapi.NodeStats{NodeName: p.c.NodeName}
	var err error
	if out.Memory, _, err = p.nodeMemory(now); err != nil {
		return nil, err
	}
	if out.Fs, err = FileSystem(now, p.c.RootDir); err != nil {
		return nil, err
	}
	if out.Rlimit, err = p.rlimit(now); err != nil {
		return nil, err
	}
	if err := p.systemContainers(out); err != nil {
		return nil, err
	}
	d, err := p.runtimeDisks(ctx)
	if err != nil || d.images == "" {
		return out, err
	}
	out.Runtime = &statsapi.RuntimeStats{}
	if out.Runtime.ImageFs, err = FileSystem(now, d.images); err != nil {
		return nil, err
	}
	out.Runtime.ContainerFs, err = FileSystem(now, d.containers)
	return out, err
}

// containerLogs measures the log files of a container, rotated ones included.
func (p *Provider) containerLogs(pod *statsapi.PodReference, name string) *statsapi.FsStats {
	dir := filepath.Join(p.c.LogDir, pod.Namespace+"_"+pod.Name+"_"+pod.UID, name)
	var bytes, inodes uint64
	entries, err := os.ReadDir(dir)
	if err != nil {
		entries = nil // a container that has written nothing yet
	}
	for _, e := range entries {
		if !e.IsDir() {
			b, n := occupied(filepath.Join(dir, e.Name()))
			bytes, inodes = bytes+b, inodes+n
		}
	}
	return &statsapi.FsStats{UsedBytes: &bytes, InodesUsed: &inodes}
}

// occupied is what a file takes up on its disk: nothing once it is gone.
func occupied(path string) (bytes, inodes uint64) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, 0
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0
	}
	return uint64(st.Blocks) * 512, 1
}
