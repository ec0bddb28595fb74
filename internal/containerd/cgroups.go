package containerd

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// hierarchies returns the mount points of all cgroup hierarchies: one on cgroup v2, one per
// set of controllers on v1. The key is the controllers as /proc/PID/cgroup lists them.
func hierarchies() (map[string]string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	found := map[string]string{}
	for _, mount := range mounts {
		if mount.FSType == "cgroup2" {
			found[""] = mount.Mountpoint
			continue
		}
		found[controllers(mount.VFSOptions)] = mount.Mountpoint
	}
	return found, nil
}

// controllers picks from a v1 mount's options those that name the hierarchy.
func controllers(options string) string {
	var names []string
	for option := range strings.SplitSeq(options, ",") {
		switch {
		case option == "rw", option == "ro", strings.Contains(option, "=") && !strings.HasPrefix(option, "name="), option == "xattr", option == "noprefix", option == "clone_children":
		default:
			names = append(names, option)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// cgroupsAt returns the directories that the cgroup path has in the hierarchies where it exists.
func cgroupsAt(path string) ([]string, error) {
	if path == "" || filepath.Clean("/"+path) == "/" {
		return nil, nil
	}
	mounts, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, mount := range mounts {
		dir := filepath.Join(mount, filepath.Clean("/"+path))
		if _, err := os.Stat(dir); err == nil {
			found = append(found, dir)
		}
	}
	slices.Sort(found)
	return found, nil
}

// containerCgroups returns the directories of the cgroups that a container's process is in:
// those whose last element is the container's ID. A shim is in none.
func containerCgroups(pid int) []string {
	raw, err := os.ReadFile(procPath(pid, "cgroup"))
	if err != nil {
		return nil
	}
	mounts, err := hierarchies()
	if err != nil {
		return nil
	}
	var found []string
	for line := range strings.Lines(string(raw)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || !isContainerID(filepath.Base(parts[2])) {
			continue
		}
		names := strings.Split(parts[1], ",")
		slices.Sort(names)
		if mount, ok := mounts[strings.Join(names, ",")]; ok {
			found = append(found, filepath.Join(mount, filepath.Clean("/"+parts[2])))
		}
	}
	return found
}

func isContainerID(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}

// cgroupMembers lists the processes in the cgroup at dir and below.
func cgroupMembers(dir string) ([]int, error) {
	var members []int
	err := walkCgroup(dir, func(group string) error {
		f, err := os.Open(filepath.Join(group, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if pid, err := strconv.Atoi(lines.Text()); err == nil && pid > 0 {
				members = append(members, pid)
			}
		}
		if err := lines.Err(); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		return nil
	})
	return members, err
}

// thaw lets frozen processes run, so that they can die. It writes where a freezer is.
func thaw(dirs []string) {
	for _, dir := range dirs {
		walkCgroup(dir, func(group string) error { //nolint:errcheck // what stays frozen shows up as a process that does not die
			writeExisting(filepath.Join(group, "freezer.state"), "THAWED")
			writeExisting(filepath.Join(group, "cgroup.freeze"), "0")
			return nil
		})
	}
}

// writeExisting reports whether the file was there and took the value.
func writeExisting(path, value string) bool {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err == nil
}

// removeCgroup removes the cgroup at dir and those below it. A cgroup whose last process has
// just been killed stays busy for a moment.
func removeCgroup(dir string) error {
	var groups []string
	err := walkCgroup(dir, func(group string) error {
		groups = append(groups, group)
		return nil
	})
	if err != nil {
		return err
	}
	slices.Reverse(groups)
	for _, group := range groups {
		if err := removeBusy(group); err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	return nil
}

func removeBusy(dir string) error {
	const tries = 100
	for try := 1; ; try++ {
		err := unix.Rmdir(dir)
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EBUSY) && try < tries, errors.Is(err, unix.EINTR):
			time.Sleep(10 * time.Millisecond)
		default:
			return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
		}
	}
}

// walkCgroup calls visit for dir and every cgroup below it, parents first. Those that vanish
// meanwhile are skipped.
func walkCgroup(dir string, visit func(group string) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		return visit(path)
	})
}
