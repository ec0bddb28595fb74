package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"k8s.io/client-go/tools/clientcmd"
)

func (c *cluster) pid(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/run/proa/*/cluster.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(data), fmt.Sprintf(`"port": %d`, c.port)) {
			continue
		}
		var pid int
		text, err := os.ReadFile(filepath.Join(filepath.Dir(file), "proa.pid"))
		if err == nil {
			_, err = fmt.Sscan(string(text), &pid)
		}
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatalf("no process serves port %d", c.port)
	return 0
}

// kill ends proa the hard way and waits until it is gone.
func (c *cluster) kill(t *testing.T) {
	t.Helper()
	pid := c.pid(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() error {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(state), ") Z ") {
			return fmt.Errorf("process %d is still there", pid)
		}
		return nil
	})
}

// withoutUser writes the cluster's kubeconfig with no credentials.
func withoutUser(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(shared.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.ClientCertificateData, user.ClientKeyData = nil, nil
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// withoutCA writes the cluster's kubeconfig with no authority to trust.
func withoutCA(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(shared.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range config.Clusters {
		cluster.CertificateAuthorityData = nil
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// host is what a cluster makes outside its directories, a line each.
func host(t *testing.T, needles ...string) []string {
	t.Helper()
	var found []string
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		found = append(found, "link "+link.Attrs().Name)
	}
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		found = append(found, "nft table "+table.Name)
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		found = append(found, "mount "+m.Mountpoint)
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/proa-*")
	unified, _ := filepath.Glob("/sys/fs/cgroup/proa-*")
	for _, group := range append(groups, unified...) {
		found = append(found, "cgroup "+group)
	}
	found = append(found, processes(needles)...)
	sort.Strings(found)
	return found
}

func processes(needles []string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		line := strings.ReplaceAll(string(data), "\x00", " ")
		for _, needle := range needles {
			if strings.Contains(line, needle) {
				found = append(found, "process "+line)
			}
		}
	}
	return found
}

// A second cluster on the same host comes and goes, and leaves the host as it was.
func TestDownDeleteLeavesNothing(t *testing.T) {
	c := &cluster{dir: filepath.Join(t.TempDir(), "second")}
	before := host(t, c.dir)
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	c.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - {name: c, image: "busybox:1.35", command: [sleep, "3600"], volumeMounts: [{name: m, mountPath: /m}]}
  volumes: [{name: m, emptyDir: {medium: Memory}}]
`)
	c.kubectl(t, "wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
	if out, err := c.proa("status"); err != nil {
		t.Errorf("proa status: %v\n%s", err, out)
	}
	t.Run("up again is idempotent", func(t *testing.T) {
		out, err := c.proa("up", "--detach")
		if err != nil || !strings.Contains(out, "Already running") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("down --keep-pods keeps them", func(t *testing.T) {
		id := c.kubectl(t, "get", "pod", "p", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
		if out, err := c.proa("down", "--keep-pods"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if len(processes([]string{strings.TrimPrefix(id, "containerd://")})) == 0 && len(processes([]string{"containerd-shim-runc-v2"})) == 0 {
			t.Error("no shim is left")
		}
		if err := c.start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, 30*time.Second, func() error {
			if now := c.kubectl(t, "get", "pod", "p", "-o", "jsonpath={.status.containerStatuses[0].containerID}"); now != id {
				return fmt.Errorf("container %s became %s", id, now)
			}
			return nil
		})
	})
	if out, err := c.proa("down", "--delete"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	after := host(t, c.dir)
	if b, a := strings.Join(before, "\n"), strings.Join(after, "\n"); b != a {
		t.Errorf("host before:\n%s\n\nafter:\n%s", b, a)
	}
	if _, err := os.Stat(c.dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", c.dir, err)
	}
}

// What this host lacks ends the start with its mend, before anything is started.
func TestUpSaysWhatIsWrong(t *testing.T) {
	up := func(t *testing.T, change ...string) *exec.Cmd {
		args := append([]string{
			"up", "--detach", "--data-dir", filepath.Join(t.TempDir(), "d"),
			"--port", fmt.Sprint(freePort()), "--kubelet-port", fmt.Sprint(freePort()),
		}, change...)
		return exec.Command(binary, args...)
	}
	for name, c := range map[string]struct {
		command func(t *testing.T) *exec.Cmd
		want    []string
	}{
		"a taken port": {func(t *testing.T) *exec.Cmd { return up(t, "--port", fmt.Sprint(shared.port)) },
			[]string{fmt.Sprintf("port %d is taken by proa", shared.port), "choose another with --port"}},
		"the node agent's port taken": {func(t *testing.T) *exec.Cmd { return up(t, "--kubelet-port", fmt.Sprint(shared.kubeletPort)) },
			[]string{fmt.Sprintf("port %d is taken by proa", shared.kubeletPort), "choose another with --kubelet-port"}},
		"not root": {func(t *testing.T) *exec.Cmd {
			cmd := up(t)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			return cmd
		}, []string{"root", "sudo"}},
		"a full disk": {func(t *testing.T) *exec.Cmd {
			disk := t.TempDir()
			if err := syscall.Mount("small", disk, "tmpfs", 0, "size=16m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { syscall.Unmount(disk, 0) })
			return up(t, "--data-dir", filepath.Join(disk, "d"))
		}, []string{"16 MiB free", "1024 MiB needed", "--data-dir"}},
		"a kernel without overlayfs": {func(t *testing.T) *exec.Cmd {
			cmd := up(t)
			hidden := filepath.Join(t.TempDir(), "filesystems")
			if err := os.WriteFile(hidden, []byte("nodev\tproc\n\text4\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			script := fmt.Sprintf("mount --bind %s /proc/filesystems && exec %s", hidden, strings.Join(cmd.Args, " "))
			return exec.Command("unshare", "--mount", "sh", "-c", script)
		}, []string{"the kernel has no overlay filesystem", "modprobe overlay"}},
		"an address that nobody else reaches": {func(t *testing.T) *exec.Cmd { return up(t, "--node-ip", "127.0.0.1") },
			[]string{"--node-ip 127.0.0.1", "want an IPv4 address"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := c.command(t)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("ended with %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%q is not in\n%s", want, out)
				}
			}
			dir := regexp.MustCompile(`--data-dir (\S+)`).FindAllStringSubmatch(strings.Join(cmd.Args, " "), -1)
			data := dir[len(dir)-1][1]
			if running, _ := exec.Command("pgrep", "-af", data).Output(); len(running) > 0 {
				t.Errorf("left running:\n%s", running)
			}
			if _, err := os.Stat(filepath.Join(data, "store")); !os.IsNotExist(err) {
				t.Errorf("a store was made: %v", err)
			}
		})
	}
}
