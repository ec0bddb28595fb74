package volumes

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// minUsageAge is how long any measurement serves. It walks the volume: beyond that it
// serves for a hundred times as long as it took, until it is as old as configured.
const minUsageAge = 10 * time.Second

type usage struct {
	until time.Time
	stats []statsapi.VolumeStats
}

// Usage measures a pod's volumes, large ones rarely: what an emptyDir
// holds, and the file system behind a claim.
func (m *Manager) Usage(uid types.UID) []statsapi.VolumeStats {
	pv := m.snapshot()[uid]
	if pv == nil {
		return nil
	}
	pv.mu.Lock()
	pod, last := pv.pod, pv.usage
	claims := make(map[string]*claim, len(pv.claims))
	for name, c := range pv.claims {
		claims[name] = c
	}
	pv.mu.Unlock()
	now := m.clock.Now()
	if pod == nil || m.usageAge < 0 || now.Before(last.until) {
		return last.stats
	}
	var out []statsapi.VolumeStats
	for i := range pod.Spec.Volumes {
		if s := m.measure(pod, &pod.Spec.Volumes[i], claims); s != nil {
			s.Time = metav1.NewTime(now)
			out = append(out, *s)
		}
	}
	pv.mu.Lock()
	defer pv.mu.Unlock()
	age := min(max(100*m.clock.Since(now), minUsageAge), m.usageAge)
	pv.usage = usage{now.Add(age), out}
	return out
}

// OnNode reports whether a volume of a pod takes up the node's own file system: it is an
// emptyDir on disk or a ConfigMap.
func (m *Manager) OnNode(uid types.UID, volume string) bool {
	pv := m.snapshot()[uid]
	if pv == nil {
		return false
	}
	pv.mu.Lock()
	defer pv.mu.Unlock()
	if pv.pod == nil {
		return false
	}
	for i := range pv.pod.Spec.Volumes {
		if v := &pv.pod.Spec.Volumes[i]; v.Name == volume {
			return v.ConfigMap != nil || v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory
		}
	}
	return false
}

// measure returns nil for volumes that cost nothing or cannot be read now.
func (m *Manager) measure(pod *corev1.Pod, v *corev1.Volume, claims map[string]*claim) *statsapi.VolumeStats {
	out := &statsapi.VolumeStats{Name: v.Name}
	path, own := m.volumeDir(pod.UID, kindOf(v), v.Name), true
	switch c := claims[v.Name]; {
	case c != nil && !c.block:
		path, own = c.path, false
		out.PVCRef = &statsapi.PVCReference{Namespace: pod.Namespace, Name: ephemeral.VolumeClaimName(pod, v)}
		if v.PersistentVolumeClaim != nil {
			out.PVCRef.Name = v.PersistentVolumeClaim.ClaimName
		}
	case kindOf(v) == "":
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil
	}
	size := uint64(st.Bsize)
	capacity, available, used := st.Blocks*size, st.Bavail*size, (st.Blocks-st.Bfree)*size
	inodes, free, taken := st.Files, st.Ffree, st.Files-st.Ffree
	mounted, err := isMountPoint(path)
	if err != nil {
		return nil
	}
	if own && !mounted { // a directory of the node's file system: count its own
		if used, taken, err = diskUsage(path); err != nil {
			return nil
		}
	}
	out.FsStats = statsapi.FsStats{
		CapacityBytes: &capacity, AvailableBytes: &available, UsedBytes: &used, Inodes: &inodes, InodesFree: &free, InodesUsed: &taken,
	}
	return out
}

// diskUsage counts what a directory occupies. A file with several names counts
// once, and what vanishes meanwhile not at all.
func diskUsage(dir string) (bytes, inodes uint64, err error) {
	type inode struct{ dev, ino uint64 }
	linked := map[inode]bool{}
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			key := inode{uint64(st.Dev), st.Ino}
			if linked[key] {
				return nil
			}
			linked[key] = true
		}
		bytes += uint64(st.Blocks) * 512
		inodes++
		return nil
	})
	return bytes, inodes, err
}
