package stats

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// tick is the unit of /proc/stat: USER_HZ is 100 on every Linux architecture
// that Go supports.
const tick = 10 * time.Millisecond

// cpuReading is one reading of the node's CPU time.
type cpuReading struct {
	at   time.Time
	used time.Duration
	rate uint64 // nanocores, over the time before
}

// Node returns the statistics of the machine.
func (p *Provider) Node(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.NodeStats, error) {
	now := p.c.Clock.Now()
	out := &statsapi.NodeStats{NodeName: p.c.NodeName}
	stat, err := readFile(p.c.Proc, "stat")
	if err != nil {
		return nil, err
	}
	used, boot, err := parseStat(stat)
	if err != nil {
		return nil, err
	}
	out.StartTime = metav1.NewTime(boot)
	out.CPU = p.nodeCPU(now, used)
	if out.Memory, out.Swap, err = p.nodeMemory(now); err != nil {
		return nil, err
	}
	if onlyCPUAndMemory {
		return out, nil
	}
	if out.Fs, err = FileSystem(now, p.c.RootDir); err != nil {
		return nil, err
	}
	if out.Runtime, err = p.imageFs(ctx); err != nil {
		return nil, err
	}
	if out.Network, err = p.nodeNetwork(now); err != nil {
		return nil, err
	}
	if out.Rlimit, err = p.rlimit(now); err != nil {
		return nil, err
	}
	return out, p.systemContainers(out)
}

// systemContainers adds what all pods take together.
func (p *Provider) systemContainers(n *statsapi.NodeStats) error {
	if p.c.PodsMemory == nil {
		return nil
	}
	m, err := p.c.PodsMemory()
	if err != nil {
		return err
	}
	n.SystemContainers = append(n.SystemContainers, statsapi.ContainerStats{Name: statsapi.SystemContainerPods, Memory: m})
	return nil
}

// nodeCPU turns used time into a rate over at least a second.
func (p *Provider) nodeCPU(now time.Time, used time.Duration) *statsapi.CPUStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	if elapsed := now.Sub(p.last.at); elapsed >= time.Second {
		rate := uint64(0)
		if !p.last.at.IsZero() && used > p.last.used {
			rate = uint64(float64(used-p.last.used) / float64(elapsed) * float64(time.Second))
		}
		p.last = cpuReading{now, used, rate}
	}
	rate, total := p.last.rate, uint64(used)
	return &statsapi.CPUStats{Time: metav1.NewTime(now), UsageNanoCores: &rate, UsageCoreNanoSeconds: &total}
}

func parseStat(s string) (used time.Duration, boot time.Time, err error) {
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 9 && f[0] == "cpu":
			// user nice system idle iowait irq softirq steal
			for i, text := range f[1:9] {
				n, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					return 0, boot, fmt.Errorf("parse /proc/stat: %w", err)
				}
				if i != 3 && i != 4 {
					used += time.Duration(n) * tick
				}
			}
		case len(f) == 2 && f[0] == "btime":
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, boot, fmt.Errorf("parse /proc/stat: %w", err)
			}
			boot = time.Unix(n, 0)
		}
	}
	return used, boot, nil
}

// nodeMemory computes a working set as the root cgroup would: all memory in use
// but for file pages that have not been touched lately.
func (p *Provider) nodeMemory(now time.Time) (*statsapi.MemoryStats, *statsapi.SwapStats, error) {
	info, err := readFile(p.c.Proc, "meminfo")
	if err != nil {
		return nil, nil, err
	}
	m := parseTable(info, 1024)
	vm, err := readFile(p.c.Proc, "vmstat")
	if err != nil {
		return nil, nil, err
	}
	faults := parseTable(vm, 1)
	usage := m["MemTotal"] - m["MemFree"]
	working := usage - min(usage, m["Inactive(file)"])
	available := m["MemTotal"] - working
	rss, major := m["AnonPages"], faults["pgmajfault"]
	minor := faults["pgfault"] - min(major, faults["pgfault"])
	at := metav1.NewTime(now)
	swapUsed, swapFree := m["SwapTotal"]-m["SwapFree"], m["SwapFree"]
	return &statsapi.MemoryStats{
		Time: at, AvailableBytes: &available, UsageBytes: &usage, WorkingSetBytes: &working,
		RSSBytes: &rss, PageFaults: &minor, MajorPageFaults: &major,
	}, &statsapi.SwapStats{Time: at, SwapUsageBytes: &swapUsed, SwapAvailableBytes: &swapFree}, nil
}

// parseTable reads lines of "name: number unit" or "name number".
func parseTable(s string, unit uint64) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
			out[strings.TrimSuffix(f[0], ":")] = n * unit
		}
	}
	return out
}

// FileSystem describes the file system that a path is on.
func FileSystem(now time.Time, path string) (*statsapi.FsStats, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", path, err)
	}
	size := uint64(st.Bsize)
	capacity, available, used := st.Blocks*size, st.Bavail*size, (st.Blocks-st.Bfree)*size
	inodes, inodesFree, inodesUsed := st.Files, st.Ffree, st.Files-st.Ffree
	return &statsapi.FsStats{
		Time: metav1.NewTime(now), CapacityBytes: &capacity, AvailableBytes: &available, UsedBytes: &used,
		Inodes: &inodes, InodesFree: &inodesFree, InodesUsed: &inodesUsed,
	}, nil
}

func (p *Provider) imageFs(ctx context.Context) (*statsapi.RuntimeStats, error) {
	resp, err := p.c.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("image file system: %w", err)
	}
	of := func(list []*runtimeapi.FilesystemUsage) (*statsapi.FsStats, error) {
		if len(list) == 0 {
			return nil, nil
		}
		fs, err := FileSystem(p.c.Clock.Now(), list[0].GetFsId().GetMountpoint())
		if err != nil {
			return nil, err
		}
		fs.UsedBytes, fs.InodesUsed = value(list[0].GetUsedBytes()), value(list[0].GetInodesUsed())
		return fs, nil
	}
	out := &statsapi.RuntimeStats{}
	if out.ImageFs, err = of(resp.GetImageFilesystems()); err != nil {
		return nil, err
	}
	if out.ContainerFs, err = of(resp.GetContainerFilesystems()); err != nil {
		return nil, err
	}
	if out.ContainerFs == nil {
		out.ContainerFs = out.ImageFs
	}
	return out, nil
}

// nodeNetwork reads the counters of the machine's interfaces; the one with the
// default route stands for the node.
func (p *Provider) nodeNetwork(now time.Time) (*statsapi.NetworkStats, error) {
	text, err := readFile(p.c.Proc, "net/dev")
	if err != nil {
		return nil, err
	}
	routes, err := readFile(p.c.Proc, "net/route")
	if err != nil {
		return nil, err
	}
	out := &statsapi.NetworkStats{Time: metav1.NewTime(now)}
	main := defaultInterface(routes)
	for _, i := range parseInterfaces(text) {
		out.Interfaces = append(out.Interfaces, i)
		if i.Name == main {
			out.InterfaceStats = i
		}
	}
	return out, nil
}

func defaultInterface(routes string) string {
	for line := range strings.Lines(routes) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "00000000" {
			return f[0]
		}
	}
	return ""
}

func parseInterfaces(s string) []statsapi.InterfaceStats {
	var out []statsapi.InterfaceStats
	for line := range strings.Lines(s) {
		name, counters, ok := strings.Cut(line, ":")
		f := strings.Fields(counters)
		if name = strings.TrimSpace(name); !ok || len(f) < 16 || name == "lo" {
			continue
		}
		number := func(i int) *uint64 {
			n, err := strconv.ParseUint(f[i], 10, 64)
			if err != nil {
				return nil
			}
			return &n
		}
		out = append(out, statsapi.InterfaceStats{
			Name: name, RxBytes: number(0), RxErrors: number(2), TxBytes: number(8), TxErrors: number(10),
		})
	}
	return out
}

func (p *Provider) rlimit(now time.Time) (*statsapi.RlimitStats, error) {
	limit := int64(0)
	for _, name := range []string{"sys/kernel/pid_max", "sys/kernel/threads-max"} {
		text, err := readFile(p.c.Proc, name)
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", filepath.Join("/proc", name), err)
		}
		if limit == 0 || n < limit {
			limit = n
		}
	}
	text, err := readFile(p.c.Proc, "loadavg")
	if err != nil {
		return nil, err
	}
	f := strings.Fields(text)
	if len(f) < 4 {
		return nil, fmt.Errorf("parse /proc/loadavg: %q", text)
	}
	_, all, _ := strings.Cut(f[3], "/") // runnable/existing
	running, err := strconv.ParseInt(all, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("parse /proc/loadavg: %w", err)
	}
	return &statsapi.RlimitStats{Time: metav1.NewTime(now), MaxPID: &limit, NumOfRunningProcesses: &running}, nil
}
