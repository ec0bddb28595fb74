package volumes

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const (
	groupWrite = 0o660
	groupRead  = 0o440
	groupExec  = 0o110
)

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// own gives everything below dir to the pod's fsGroup. New entries inherit the
// group through the set-group-id bit of the directories. With the OnRootMismatch
// policy a volume whose root is right already is left alone.
func own(dir string, pod *corev1.Pod, readOnly bool) error {
	group := fsGroup(pod)
	if group == nil {
		return nil
	}
	root, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	o := owner{group: int(*group), bits: groupWrite}
	if readOnly {
		o.bits = groupRead
	}
	policy := ptr.Deref(pod.Spec.SecurityContext.FSGroupChangePolicy, corev1.FSGroupChangeAlways)
	if policy == corev1.FSGroupChangeOnRootMismatch && o.holds(root) {
		return nil
	}
	return o.tree(root)
}

// prepared says whether dir exists and belongs to the pod's fsGroup, if it has one.
func prepared(dir string, pod *corev1.Pod) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	group := fsGroup(pod)
	return group == nil || owner{group: int(*group), bits: groupWrite}.holds(f)
}

// owner changes a tree by descriptors, never by path: containers may be writing
// to a persistent volume at the same time, and must not be able to direct the
// change elsewhere by swapping an entry for a symbolic link.
type owner struct {
	group int
	bits  uint32
}

// tree changes dir after its contents, so that OnRootMismatch repeats a walk
// that was interrupted.
func (o owner) tree(dir *os.File) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := o.entry(dir, name); err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "set group", Path: name, Err: err}
		}
	}
	return o.set(int(dir.Fd()))
}

func (o owner) entry(dir *os.File, name string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return o.set(fd)
	}
	sub, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(sub), name)
	defer f.Close()
	return o.tree(f)
}

func (o owner) set(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := unix.Fchownat(fd, "", -1, o.group, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	mode := st.Mode&0o7777 | o.bits
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil
	case unix.S_IFDIR:
		mode |= unix.S_ISGID | groupExec
	}
	return unix.Chmod(descriptorPath(fd), mode)
}

func (o owner) holds(dir *os.File) bool {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return false
	}
	want := o.bits | groupExec | unix.S_ISGID
	return int(st.Gid) == o.group && st.Mode&want == want
}

// descriptorPath names the very inode behind a descriptor, whatever happened to
// the path it was opened by.
func descriptorPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
