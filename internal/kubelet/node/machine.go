package node

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Machine is what the host has and what it is.
type Machine struct {
	CPUs                                 int
	Memory, Swap                         int64            // bytes
	Disk                                 int64            // bytes of the file system that holds the pods' directories; 0: not counted
	HugePages                            map[string]int64 // bytes by resource suffix: 2Mi, 1Gi
	MachineID, SystemUUID, BootID        string
	KernelVersion, OSImage, Architecture string
}

// ReadMachine looks at the host. Dir is where the pods' directories lie.
func ReadMachine(dir string) (Machine, error) {
	m := Machine{CPUs: runtime.NumCPU(), Architecture: runtime.GOARCH, HugePages: map[string]int64{}}
	mem, err := readMemInfo()
	if err != nil {
		return m, err
	}
	m.Memory, m.Swap = mem["MemTotal"], mem["SwapTotal"]
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return m, fmt.Errorf("statfs %s: %w", dir, err)
	}
	m.Disk = int64(st.Blocks) * st.Bsize
	if err := m.readHugePages(); err != nil {
		return m, err
	}
	m.MachineID = firstLine("/etc/machine-id", "/var/lib/dbus/machine-id")
	m.BootID = firstLine("/proc/sys/kernel/random/boot_id")
	if m.SystemUUID = strings.ToLower(firstLine("/sys/class/dmi/id/product_uuid")); m.SystemUUID == "" {
		m.SystemUUID = m.MachineID
	}
	m.KernelVersion = firstLine("/proc/sys/kernel/osrelease")
	m.OSImage = osImage()
	return m, nil
}

// firstLine of the first file that can be read; what a host does not tell stays empty.
func firstLine(paths ...string) string {
	for _, p := range paths {
		if b, err := os.ReadFile(p); err == nil {
			line, _, _ := strings.Cut(string(b), "\n")
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func osImage() string {
	for _, p := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(b), "\n") {
			if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				return strings.Trim(v, `"'`)
			}
		}
	}
	return "Linux"
}

// readMemInfo reads /proc/meminfo, in bytes.
func readMemInfo() (map[string]int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]int64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err == nil {
			out[name] = kb << 10
		}
	}
	return out, lines.Err()
}

func (m *Machine) readHugePages() error {
	const dir = "/sys/kernel/mm/hugepages"
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(firstLine(filepath.Join(dir, e.Name(), "nr_hugepages")), 10, 64)
		if err != nil {
			continue
		}
		m.HugePages[resource.NewQuantity(kb<<10, resource.BinarySI).String()] = n * kb << 10
	}
	return nil
}

// HugePageSizes as container runtimes spell them: 2MB, 1GB.
func (m *Machine) HugePageSizes() []string {
	var out []string
	for size := range m.HugePages {
		out = append(out, strings.TrimSuffix(size, "i")+"B")
	}
	return out
}

// Capacity of the machine as resources, with room for maxPods pods.
func (m *Machine) Capacity(maxPods int64) corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(m.CPUs), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(m.Memory, resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(maxPods, resource.DecimalSI),
	}
	if m.Disk > 0 {
		list[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(m.Disk, resource.BinarySI)
	}
	for size, n := range m.HugePages {
		list[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = *resource.NewQuantity(n, resource.BinarySI)
	}
	return list
}

// Allocatable is what capacity leaves to pods: without what is reserved and huge
// pages, which are no memory for anything else.
func Allocatable(capacity corev1.ResourceList, reserved ...corev1.ResourceList) corev1.ResourceList {
	out := Without(capacity, reserved...)
	for name, q := range capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			take(out, corev1.ResourceMemory, q)
		}
	}
	return out
}

// Without is what capacity leaves when what is reserved is taken away, 0 at least.
func Without(capacity corev1.ResourceList, reserved ...corev1.ResourceList) corev1.ResourceList {
	out := capacity.DeepCopy()
	for _, list := range reserved {
		for name, q := range list {
			take(out, name, q)
		}
	}
	return out
}

func take(out corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	left, ok := out[name]
	if !ok {
		return
	}
	left.Sub(q)
	if left.Sign() < 0 {
		left = *resource.NewQuantity(0, left.Format)
	}
	out[name] = left
}
