package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// removeTree removes path and what is below it. It works by descriptors, so a
// symbolic link is removed and never followed, and it stops with an error at a
// mount point instead of deleting what is mounted there.
func removeTree(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	id, err := mountID(int(parent.Fd()))
	if err != nil {
		return err
	}
	if err := removeEntry(parent, filepath.Base(path), id); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

func removeEntry(dir *os.File, name string, mount uint64) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	id, err := mountID(fd)
	if err != nil {
		return err
	}
	if id != mount {
		return fmt.Errorf("%s is a mount point", name)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return ignoreMissing(unix.Unlinkat(int(dir.Fd()), name, 0))
	}
	if err := removeContents(fd, name, mount); err != nil {
		return err
	}
	return ignoreMissing(unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR))
}

func removeContents(pathFD int, name string, mount uint64) error {
	fd, err := unix.Openat(pathFD, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	var errs []error
	for _, child := range names {
		if err := removeEntry(dir, child, mount); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", child, err))
		}
	}
	return errors.Join(errs...)
}

func mountID(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, errors.New("the kernel does not report mount ids")
	}
	return st.Mnt_id, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
