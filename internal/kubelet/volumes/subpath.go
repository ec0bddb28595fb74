package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// resolve opens path below root, which is a volume that containers may be
// changing right now. Symbolic links, absolute ones too, and .. cannot lead out
// of root: the kernel resolves them as if root were /.
func resolve(root int, path string, flags uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(root, path, &how)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue // a rename happened on the way
		}
		return fd, err
	}
}

func openRoot(volume string) (int, error) {
	fd, err := unix.Open(volume, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open volume", Path: volume, Err: err}
	}
	return fd, nil
}

// openSubPath returns an O_PATH descriptor of subPath in a volume. Missing
// directories are made, with the volume's own mode, unless readOnly.
func openSubPath(volume, subPath string, readOnly bool) (int, error) {
	root, err := openRoot(volume)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	fd, err := resolve(root, subPath, unix.O_PATH)
	if err == nil || readOnly || !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := makeDirs(root, subPath); err != nil {
		return -1, err
	}
	return resolve(root, subPath, unix.O_PATH)
}

func makeDirs(root int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return err
	}
	mode := st.Mode & 0o7777
	at := ""
	for _, name := range strings.Split(filepath.Clean(path), "/") {
		parent, err := resolve(root, "./"+at, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		err = makeDir(parent, name, mode)
		unix.Close(parent)
		if err != nil {
			return err
		}
		at = filepath.Join(at, name)
	}
	return nil
}

// makeDir makes one directory. Its mode is set through its descriptor: the umask
// applies to mkdir, and the name may have been swapped since.
func makeDir(parent int, name string, mode uint32) error {
	err := unix.Mkdirat(parent, name, mode&0o777)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return err
	}
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod(descriptorPath(fd), mode)
}

// bindSubPath bind-mounts what subPath in volume is now onto target, a path that
// no container can reach, and so pins it: what the container runtime mounts
// later is this very inode.
func bindSubPath(volume, subPath, target string, readOnly bool) error {
	fd, err := openSubPath(volume, subPath, readOnly)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return fmt.Errorf("subpath %q is a symbolic link that cannot be resolved", subPath)
	case unix.S_IFDIR:
		err = ensureTarget(target, true)
	default:
		err = ensureTarget(target, false)
	}
	if err != nil {
		return err
	}
	if done, err := bound(target, &st); err != nil || done {
		return err
	}
	if err := unix.Mount(descriptorPath(fd), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind subpath %q: %w", subPath, err)
	}
	return nil
}

// ensureTarget makes target a file or directory to mount on. One of the other
// kind, from an earlier start of the container, is replaced.
func ensureTarget(target string, dir bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	info, err := os.Lstat(target)
	if err == nil && info.IsDir() == dir {
		return nil // not opened: what is mounted there may be a FIFO
	}
	if err == nil {
		if err := unmountBelow(target); err != nil {
			return err
		}
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	if dir {
		return os.Mkdir(target, 0o750)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// bound says whether target already shows the inode want, and unmounts it when
// it shows another.
func bound(target string, want *unix.Stat_t) (bool, error) {
	mounted, err := isMountPoint(target)
	if err != nil || !mounted {
		return false, err
	}
	var have unix.Stat_t
	if err := unix.Lstat(target, &have); err != nil {
		return false, err
	}
	if have.Dev == want.Dev && have.Ino == want.Ino {
		return true, nil
	}
	return false, unmountBelow(target)
}

// readIn reads a regular file of at most limit bytes below a volume.
func readIn(volume, path string, limit int64) ([]byte, error) {
	root, err := openRoot(volume)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := resolve(root, path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	data := make([]byte, info.Size())
	n, err := f.ReadAt(data, 0)
	if n == len(data) {
		err = nil
	}
	return data[:n], err
}
