package node

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Pressure says which resources of the host run out.
type Pressure struct{ Memory, Disk, PID bool }

// Thresholds below which a resource counts as running out.
const (
	minMemory     = 100 << 20 // bytes
	minDisk       = 10        // percent of the pods' file system
	minInodes     = 5         // percent
	minImageDisk  = 15        // percent of the images' file system
	minPIDPercent = 5
)

// ReadPressure compares what is free with the thresholds. A directory may be
// empty. What cannot be read counts as free.
func ReadPressure(podDir, imageDir string) Pressure {
	var p Pressure
	if mem, err := readMemInfo(); err == nil {
		p.Memory = mem["MemAvailable"] < minMemory
	}
	disk, inodes := freePercent(podDir)
	image, imageInodes := freePercent(imageDir)
	p.Disk = disk < minDisk || inodes < minInodes || image < minImageDisk || imageInodes < minInodes
	p.PID = pidsShort()
	return p
}

func freePercent(dir string) (blocks, inodes uint64) {
	var st unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &st) != nil {
		return 100, 100
	}
	blocks, inodes = 100, 100
	if st.Blocks > 0 {
		blocks = st.Bavail * 100 / st.Blocks
	}
	if st.Files > 0 {
		inodes = st.Ffree * 100 / st.Files
	}
	return blocks, inodes
}

func pidsShort() bool {
	limit, err := strconv.ParseInt(firstLine("/proc/sys/kernel/pid_max"), 10, 64)
	if err != nil {
		return false
	}
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return false
	}
	f := strings.Fields(string(b)) // 0.1 0.2 0.3 running/total lastpid
	if len(f) < 4 {
		return false
	}
	_, total, _ := strings.Cut(f[3], "/")
	used, err := strconv.ParseInt(total, 10, 64)
	return err == nil && (limit-used)*100/limit < minPIDPercent
}
