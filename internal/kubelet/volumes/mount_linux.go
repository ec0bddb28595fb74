package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// isMountPoint says whether something is mounted on path itself.
func isMountPoint(path string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// mountIn mounts a file system on an empty directory, once.
func mountIn(dir, fstype, options string) error {
	mounted, err := isMountPoint(dir)
	if err != nil || mounted {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RELATIME
	if err := unix.Mount(fstype, dir, fstype, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s with options %q: %w", fstype, dir, options, err)
	}
	return nil
}

func swapOn() bool {
	swaps, err := os.ReadFile("/proc/swaps")
	return err == nil && strings.Count(string(swaps), "\n") > 1
}

// mountsBelow lists mount points at and below dir, deepest first.
func mountsBelow(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	paths := make([]string, 0, len(infos))
	for _, info := range infos {
		paths = append(paths, info.Mountpoint)
	}
	// Of mounts stacked on one path each appears once: as many unmounts are needed.
	slices.SortStableFunc(paths, func(a, b string) int {
		return strings.Count(b, string(filepath.Separator)) - strings.Count(a, string(filepath.Separator))
	})
	return paths, nil
}

// unmountBelow unmounts everything at and below dir. A mount that is still used
// by a process outside any container is detached: nothing can open it anew.
func unmountBelow(dir string) error {
	paths, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, unmount(path))
	}
	return errors.Join(errs...)
}

func unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return nil
}
