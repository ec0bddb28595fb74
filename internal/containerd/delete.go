package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// sweeps bounds how often Delete looks for processes: one that forks while it is being killed
// leaves a child for the next sweep.
const sweeps = 20

// Delete ends containerd, kills its shims and everything in its containers, unmounts what they
// had mounted, and removes their cgroups and directories. Run must have ended. It is
// idempotent, and it removes no directory while anything is still mounted below it.
func (r *Runtime) Delete(ctx context.Context) error {
	if err := r.Stop(ctx); err != nil {
		return err
	}
	groups, err := cgroupsAt(r.config.CgroupRoot)
	if err != nil {
		return err
	}
	containers := map[string]bool{} // cgroups of what was killed
	for sweep := 0; ; sweep++ {
		victims, err := r.leftovers(groups)
		if err != nil {
			return err
		}
		if len(victims) == 0 {
			break
		}
		if sweep == sweeps {
			return fmt.Errorf("processes %v do not die", victims)
		}
		for _, pid := range victims {
			for _, group := range containerCgroups(pid) {
				containers[group] = true
			}
		}
		if err := kill(ctx, victims, groups); err != nil {
			return err
		}
	}
	for _, dir := range []string{r.config.RunDir, r.config.Root} {
		if err := UnmountBelow(dir); err != nil {
			return err
		}
	}
	for group := range containers {
		groups = append(groups, group)
	}
	for _, group := range groups {
		if err := removeCgroup(group); err != nil {
			return err
		}
	}
	for _, dir := range []string{r.config.RunDir, r.config.Root} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// leftovers lists this containerd's shims, all their descendants, and all processes below groups.
func (r *Runtime) leftovers(groups []string) ([]int, error) {
	all, err := pids()
	if err != nil {
		return nil, err
	}
	ours := map[int]bool{}
	for _, pid := range all {
		if r.isShim(pid) {
			ours[pid] = true
		}
	}
	addDescendants(all, ours)
	for _, group := range groups {
		members, err := cgroupMembers(group)
		if err != nil {
			return nil, err
		}
		for _, pid := range members {
			ours[pid] = true
		}
	}
	delete(ours, os.Getpid()) // in case we were started inside the pods' cgroup
	var found []int
	for pid := range ours {
		if state, _ := stat(pid); state != 'Z' && state != 0 {
			found = append(found, pid)
		}
	}
	slices.Sort(found)
	return found, nil
}

// isShim recognises a shim by the address of the containerd it reports to.
func (r *Runtime) isShim(pid int) bool {
	args := commandLine(pid)
	if len(args) == 0 || filepath.Base(args[0]) != filepath.Base(r.config.Bin.Shim) && filepath.Base(args[0]) != "containerd-shim-runc-v2" {
		return false
	}
	at := slices.Index(args, "-address")
	return at >= 0 && at+1 < len(args) && strings.TrimSuffix(args[at+1], ".ttrpc") == r.Socket() && onThisRoot(pid)
}

// addDescendants adds to tree every process whose parent is in it.
func addDescendants(all []int, tree map[int]bool) {
	if len(tree) == 0 {
		return
	}
	parent := make(map[int]int, len(all))
	for _, pid := range all {
		_, parent[pid] = stat(pid)
	}
	for grown := true; grown; {
		grown = false
		for _, pid := range all {
			if !tree[pid] && tree[parent[pid]] {
				tree[pid], grown = true, true
			}
		}
	}
}

// stat returns a process's state letter and parent, zero when it has ended.
func stat(pid int) (state byte, parent int) {
	raw, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return 0, 0
	}
	// The command in parentheses may hold anything; the fields after its last one are plain.
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(fields) < 2 {
		return 0, 0
	}
	parent, err = strconv.Atoi(fields[1])
	if err != nil {
		return 0, 0
	}
	return fields[0][0], parent
}

// kill ends the processes and waits for their end. A frozen one dies once it is thawed.
func kill(ctx context.Context, victims []int, groups []string) error {
	for _, pid := range victims {
		if err := signal(pid, unix.SIGKILL); err != nil {
			return err
		}
	}
	thaw(groups)
	for _, pid := range victims {
		if err := waitExit(ctx, pid); err != nil {
			return fmt.Errorf("wait for killed process %d: %w", pid, err)
		}
	}
	return nil
}

// UnmountBelow detaches every mount at or below dir, the latest first.
func UnmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	slices.Reverse(mounts)
	for _, mount := range mounts {
		if err := unix.Unmount(mount.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", mount.Mountpoint, err)
		}
	}
	left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	if len(left) > 0 {
		return fmt.Errorf("%s is still mounted", left[0].Mountpoint)
	}
	return nil
}
