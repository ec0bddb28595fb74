package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Check is one thing that this host must have. Problem is empty when it has it;
// Mend says what a person can do about it.
type Check struct {
	Name    string
	Problem string
	Mend    string
}

// minimumFree is the disk space below which nothing is started: images and the
// store need it, and a full disk later costs more than a message now.
const minimumFree = 1 << 30

// Preflight says what this host lacks for the parts that o names, with the given
// settings. It changes nothing.
func Preflight(l Layout, s Settings, o Options) []Check {
	checks := []Check{diskSpace(l.Data)}
	if o.Server {
		checks = append(checks, freePort("API server port", s.Port, "--port"))
	}
	if !o.Node {
		return checks
	}
	return append(checks,
		root(),
		freePort("node agent port", s.KubeletPort, "--kubelet-port"),
		filesystem("overlay"),
		cgroups(),
		nftablesWork(),
		links(),
		seccomp(),
	)
}

// Problems joins the failed checks into one error, nil when there are none.
func Problems(checks []Check) error {
	var errs []error
	for _, c := range checks {
		if c.Problem != "" {
			errs = append(errs, fmt.Errorf("%s: %s\n  %s", c.Name, c.Problem, c.Mend))
		}
	}
	return errors.Join(errs...)
}

func root() Check {
	c := Check{Name: "root"}
	if os.Geteuid() != 0 {
		c.Problem = "a node needs root to make containers and networks"
		c.Mend = "run the same command with sudo, or only a control plane with: proa server --no-node"
	}
	return c
}

func diskSpace(dir string) Check {
	c := Check{Name: "disk space"}
	for { // the directory itself may not exist before the first start
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.ENOENT) && dir != "/" {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			c.Problem, c.Mend = fmt.Sprintf("%s: %v", dir, err), "choose another directory with --data-dir"
			return c
		}
		if free := st.Bavail * uint64(st.Bsize); free < minimumFree {
			c.Problem = fmt.Sprintf("%d MiB free at %s, %d MiB needed", free>>20, dir, minimumFree>>20)
			c.Mend = "free some space, or choose another directory with --data-dir"
		}
		return c
	}
}

func freePort(name string, port int, flag string) Check {
	c := Check{Name: name}
	ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err == nil {
		ln.Close()
		return c
	}
	c.Problem = fmt.Sprintf("cannot listen on %d: %v", port, err)
	if errors.Is(err, syscall.EADDRINUSE) {
		c.Problem = fmt.Sprintf("port %d is taken%s", port, holder(port))
	}
	c.Mend = fmt.Sprintf("stop what uses it, or choose another with %s", flag)
	return c
}

// holder names the process that listens on a TCP port, as far as /proc tells.
func holder(port int) string {
	inode := listenInode(port)
	if inode == "" {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		comm, err := os.ReadFile("/proc/" + pid + "/comm")
		if err == nil {
			return fmt.Sprintf(" by %s (pid %s)", strings.TrimSpace(string(comm)), pid)
		}
	}
	return ""
}

func listenInode(port int) string {
	const listening = "0A"
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[3] != listening {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int(n) == port {
				return fields[9]
			}
		}
	}
	return ""
}

func filesystem(name string) Check {
	c := Check{Name: name + " filesystem"}
	known := func() bool {
		data, err := os.ReadFile("/proc/filesystems")
		return err == nil && strings.Contains(string(data), "\t"+name+"\n")
	}
	if known() {
		return c
	}
	if exec.Command("modprobe", name).Run() == nil && known() {
		return c
	}
	c.Problem = "the kernel has no " + name + " filesystem"
	c.Mend = "load it with: modprobe " + name
	return c
}

func cgroups() Check {
	c := Check{Name: "cgroups", Mend: "mount them with: mount -t cgroup2 none /sys/fs/cgroup"}
	if data, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		for _, controller := range []string{"cpu", "memory", "pids"} {
			if !strings.Contains(" "+string(data), " "+controller) {
				c.Problem = "controller " + controller + " is not available in /sys/fs/cgroup/cgroup.controllers"
				c.Mend = "enable it with the kernel parameter cgroup_enable=" + controller
				return c
			}
		}
		return c
	}
	for _, controller := range []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "devices"} {
		if _, err := os.Stat("/sys/fs/cgroup/" + controller); err != nil {
			c.Problem = "neither cgroup v2 nor the v1 controller " + controller + " is mounted below /sys/fs/cgroup"
			return c
		}
	}
	return c
}

func nftablesWork() Check {
	c := Check{Name: "nftables"}
	conn, err := nftables.New()
	if err == nil {
		_, err = conn.ListTables()
	}
	if err != nil && os.Geteuid() == 0 {
		c.Problem, c.Mend = "the kernel does not answer: "+err.Error(), "load it with: modprobe nf_tables"
	}
	return c
}

func links() Check {
	c := Check{Name: "network links"}
	if os.Geteuid() != 0 {
		return c
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("proapf%d", os.Getpid()%100000)
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		c.Problem, c.Mend = "cannot make a bridge: "+err.Error(), "load it with: modprobe bridge veth"
		return c
	}
	if err := netlink.LinkDel(bridge); err != nil {
		c.Problem, c.Mend = "cannot remove bridge "+attrs.Name+": "+err.Error(), "remove it with: ip link del "+attrs.Name
	}
	return c
}

func seccomp() Check {
	c := Check{Name: "seccomp"}
	if _, err := os.Stat("/proc/sys/kernel/seccomp/actions_avail"); err != nil {
		c.Problem = "the kernel was built without seccomp filters"
		c.Mend = "use a kernel with CONFIG_SECCOMP_FILTER=y"
	}
	return c
}
