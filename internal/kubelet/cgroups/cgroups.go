// Package cgroups keeps the control groups above the containers: the root of
// all pods, one level per QoS class below it, and one group per pod. Containers'
// own groups belong to the runtime. It works on cgroup v1 and v2, with cgroupfs
// or systemd as driver.
package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/util/qos"

	"proa/internal/kubelet/criconfig"
)

// Config makes a Tree.
type Config struct {
	// Root is the group under which kubepods is made, "/" by default. Two
	// clusters on one host have different roots.
	Root string
	// Systemd selects the systemd driver: groups are slices.
	Systemd bool
	// PodPids limits the processes of a pod; 0 leaves them unlimited.
	PodPids int64
}

// Tree is the pods' part of the cgroup hierarchy.
type Tree struct {
	c  Config
	mu sync.Mutex // serializes changes: the library's parents are made on the way
	// root is where the memory of all pods is accounted; guarded by mu, empty before Init.
	root string
}

// New makes a Tree; nothing is created before Init.
func New(c Config) *Tree {
	if c.Root == "" {
		c.Root = "/"
	}
	return &Tree{c: c}
}

// Version of the host's cgroup hierarchy, 1 or 2.
func Version() int {
	if cgroups.IsCgroup2UnifiedMode() {
		return 2
	}
	return 1
}

// Init makes the root of all pods, limited to CPU and memory that they may have
// together, and the groups of the QoS classes.
func (t *Tree) Init(limit corev1.ResourceList) error {
	root := &cgroups.Resources{
		CpuShares: uint64(criconfig.Shares(limit.Cpu().MilliValue())),
		Memory:    limit.Memory().Value(),
	}
	if err := t.apply(t.names(), root); err != nil {
		return err
	}
	m, err := t.manager(t.names(), &cgroups.Resources{})
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.root = m.Path("memory")
	t.mu.Unlock()
	if err := t.apply(t.names("besteffort"), &cgroups.Resources{CpuShares: uint64(criconfig.Shares(0))}); err != nil {
		return err
	}
	return t.apply(t.names("burstable"), &cgroups.Resources{CpuShares: uint64(criconfig.Shares(0))})
}

// SetBurstable gives the Burstable class the CPU its pods ask for together.
func (t *Tree) SetBurstable(milli int64) error {
	return t.apply(t.names("burstable"), &cgroups.Resources{CpuShares: uint64(criconfig.Shares(milli))})
}

// Ensure makes the pod's group and sets its limits.
func (t *Tree) Ensure(pod *corev1.Pod) error {
	return t.apply(t.pod(pod), t.limits(pod))
}

func (t *Tree) limits(pod *corev1.Pod) *cgroups.Resources {
	req, lim := criconfig.PodTotals(pod)
	r := &cgroups.Resources{
		CpuShares: uint64(criconfig.Shares(req.Cpu().MilliValue())),
		CpuPeriod: criconfig.CPUPeriod,
		CpuQuota:  -1,
		Memory:    -1,
	}
	if q := criconfig.Quota(lim.Cpu().MilliValue()); q > 0 {
		r.CpuQuota = q
	}
	if m := lim.Memory().Value(); m > 0 {
		r.Memory = m
	}
	if t.c.PodPids > 0 {
		r.PidsLimit = &t.c.PodPids
	}
	for name, q := range req {
		if size, ok := criconfig.PageSize(name); ok {
			r.HugetlbLimit = append(r.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: size, Limit: uint64(q.Value())})
		}
	}
	if qos.GetPodQOS(pod) == corev1.PodQOSBestEffort {
		r.CpuShares = uint64(criconfig.Shares(0))
	}
	return r
}

// Remove kills what is left in the group of a pod, whatever its class, and
// removes the group. A missing group is no error.
func (t *Tree) Remove(uid types.UID) error {
	var errs []error
	for _, class := range []string{"", "burstable", "besteffort"} {
		names := t.names(class, "pod"+string(uid))
		m, err := t.manager(names, &cgroups.Resources{})
		if err != nil {
			return err
		}
		if !exists(m) {
			continue
		}
		errs = append(errs, remove(m))
	}
	return errors.Join(errs...)
}

func exists(m cgroups.Manager) bool {
	for _, p := range m.GetPaths() {
		if _, err := os.Stat(p); err == nil {
			return true
		}
	}
	return false
}

func remove(m cgroups.Manager) error {
	pids, err := m.GetAllPids()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("processes of cgroup: %w", err)
	}
	for _, pid := range pids {
		// A process that ended meanwhile is what is wanted.
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for _, p := range m.GetPaths() {
		removeChildren(p)
	}
	return m.Destroy()
}

// removeChildren removes empty groups below dir, deepest first. A group that is
// busy stays, and makes the removal of its parent fail.
func removeChildren(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			child := filepath.Join(dir, e.Name())
			removeChildren(child)
			_ = unix.Rmdir(child)
		}
	}
}

// Pods lists the pods that have a group.
func (t *Tree) Pods() ([]types.UID, error) {
	var uids []types.UID
	for _, class := range []string{"", "burstable", "besteffort"} {
		m, err := t.manager(t.names(class), &cgroups.Resources{})
		if err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(m.Path("cpu"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list pod cgroups: %w", err)
		}
		for _, e := range entries {
			if uid, ok := t.uidOf(e.Name()); ok {
				uids = append(uids, uid)
			}
		}
	}
	return uids, nil
}

func (t *Tree) uidOf(dir string) (types.UID, bool) {
	if t.c.Systemd {
		dir = strings.TrimSuffix(dir[strings.LastIndex(dir, "-")+1:], ".slice")
		dir = strings.ReplaceAll(dir, "_", "-")
	}
	uid, ok := strings.CutPrefix(dir, "pod")
	return types.UID(uid), ok
}

// Path is the pod's group below the cgroup file systems' roots.
func (t *Tree) Path(pod *corev1.Pod) string {
	if t.c.Systemd {
		return t.slicePath(t.pod(pod))
	}
	return t.fsPath(t.pod(pod))
}

// Parent is the pod's group as runtimes take it: a path, or a slice's name.
func (t *Tree) Parent(pod *corev1.Pod) string {
	if t.c.Systemd {
		return path.Base(t.slicePath(t.pod(pod)))
	}
	return t.fsPath(t.pod(pod))
}

func (t *Tree) pod(pod *corev1.Pod) []string {
	class := ""
	switch qos.GetPodQOS(pod) {
	case corev1.PodQOSBurstable:
		class = "burstable"
	case corev1.PodQOSBestEffort:
		class = "besteffort"
	}
	return t.names(class, "pod"+string(pod.UID))
}

// names is the path of a group in parts, from kubepods down.
func (t *Tree) names(parts ...string) []string {
	out := []string{"kubepods"}
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return out
}

func (t *Tree) fsPath(names []string) string {
	return path.Join("/", t.c.Root, path.Join(names...))
}

// slicePath nests slices as systemd does: each name repeats its parents'.
func (t *Tree) slicePath(names []string) string {
	p, prefix := path.Join("/", t.c.Root), ""
	for _, n := range names {
		prefix += strings.ReplaceAll(n, "-", "_")
		p = path.Join(p, prefix+".slice")
		prefix += "-"
	}
	return p
}

func (t *Tree) apply(names []string, r *cgroups.Resources) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, err := t.manager(names, r)
	if err != nil {
		return err
	}
	if err := m.Apply(-1); err != nil {
		return fmt.Errorf("create cgroup %s: %w", path.Join(names...), err)
	}
	if err := m.Set(r); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", path.Join(names...), err)
	}
	return nil
}

func (t *Tree) manager(names []string, r *cgroups.Resources) (cgroups.Manager, error) {
	r.SkipDevices, r.SkipFreezeOnSet = true, true
	if Version() == 2 && r.CpuShares != 0 {
		r.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(r.CpuShares)
	}
	cfg := &cgroups.Cgroup{Resources: r, Systemd: t.c.Systemd}
	if t.c.Systemd {
		p := t.slicePath(names)
		cfg.Name, cfg.Parent = path.Base(p), path.Base(path.Dir(p))
		if cfg.Parent == "/" || cfg.Parent == "." {
			cfg.Parent = "-.slice"
		}
	} else {
		cfg.Path = t.fsPath(names)
	}
	m, err := manager.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", path.Join(names...), err)
	}
	return m, nil
}
