// Package e2e drives the built binary as a user does: proa, kubectl, a real
// kubeconfig and real containers. `make test` builds what it needs first.
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cluster is one running proa with a data directory of its own.
type cluster struct {
	dir         string
	port        int
	kubeletPort int
}

// shared is the cluster that tests use which leave no trace outside a namespace.
var shared *cluster

var (
	binary = cmp.Or(os.Getenv("PROA_E2E_BINARY"), repo("bin/proa"))
	images = []string{"busybox", "nginx", "redis", "postgres", "testserver", "guestbook-api"}
)

func repo(path string) string {
	abs, err := filepath.Abs(filepath.Join("../..", path))
	if err != nil {
		panic(err)
	}
	return abs
}

// TestMain starts the shared cluster once. What keeps it from starting is said
// in words, and fails the run when PROA_E2E=required, as `make test` sets.
func TestMain(m *testing.M) {
	if reason := cannotRun(); reason != "" {
		fmt.Println("end-to-end tests not run:", reason)
		if os.Getenv("PROA_E2E") == "required" {
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Tests mostly wait for containers: more of them at a time than cores.
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(runShared(m))
}

func cannotRun() string {
	if os.Geteuid() != 0 {
		return "a node needs root"
	}
	if _, err := os.Stat(binary); err != nil {
		return "bin/proa is not built: make build images"
	}
	for _, name := range images {
		if _, err := os.Stat(imageFile(name)); err != nil {
			return "image " + name + " is not built: make images"
		}
	}
	return ""
}

func imageFile(name string) string { return repo("build/images/" + name + ".tar") }

// roomyNode keeps the tests from depending on how full this machine's disk is.
const roomyNode = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: 100Mi, nodefs.available: 1Gi, imagefs.available: 1Gi}
`

func runShared(m *testing.M) int {
	dir, err := os.MkdirTemp("", "proa-e2e-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	shared = &cluster{dir: filepath.Join(dir, "data")}
	defer os.RemoveAll(dir)
	node := filepath.Join(dir, "kubelet.yaml")
	if err := os.WriteFile(node, []byte(roomyNode), 0o644); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := shared.start("--kubelet-config", node); err != nil {
		fmt.Println("start the shared cluster:", err)
		shared.printLog()
		return 1
	}
	code := m.Run()
	if log := shared.log(); strings.Contains(log, "\ngoroutine ") {
		fmt.Println("the server crashed")
		shared.printLog()
	}
	if out, err := shared.proa("down", "--delete"); err != nil {
		fmt.Printf("proa down --delete: %v\n%s", err, out)
		return 1
	}
	return code
}

// start brings the cluster up, on free ports, and loads every test image.
func (c *cluster) start(flags ...string) error {
	if c.port == 0 {
		c.port, c.kubeletPort = freePort(), freePort()
	}
	args := append([]string{"up", "--detach", "--port", fmt.Sprint(c.port), "--kubelet-port", fmt.Sprint(c.kubeletPort)}, flags...)
	if out, err := c.proa(args...); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	for _, name := range images {
		if out, err := c.proa("image", "load", imageFile(name)); err != nil {
			return fmt.Errorf("load image %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

func (c *cluster) log() string {
	data, _ := os.ReadFile(filepath.Join(c.dir, "logs", "proa.log"))
	return string(data)
}

func (c *cluster) printLog() {
	log := c.log()
	fmt.Printf("--- the end of proa.log\n%s\n", log[max(0, len(log)-30000):])
}

// logAbout returns the last lines of the server's log that name a namespace.
func (c *cluster) logAbout(namespace string) string {
	const last = 40
	var about []string
	for line := range strings.Lines(c.log()) {
		if strings.Contains(line, namespace) {
			about = append(about, line)
		}
	}
	return strings.Join(about[max(0, len(about)-last):], "")
}

// freePort returns a port that nothing listens on.
func freePort() int {
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		panic(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// command is a proa command on this cluster. The user's own kubeconfig is kept
// out of it.
func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	if args[0] != "kubectl" {
		args = append(args[:len(args):len(args)], "--data-dir", c.dir)
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig(), "HOME="+c.dir)
	if args[0] != "kubectl" {
		cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "user-kubeconfig"))
	}
	return cmd
}

const commandTimeout = 3 * time.Minute

// proa runs a proa command and returns what it printed.
func (c *cluster) proa(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	out, err := c.command(ctx, args...).CombinedOutput()
	return string(out), err
}

// kubectl runs kubectl, which must succeed, and returns its standard output.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, stderr, err := c.tryKubectl("", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr)
	}
	return out
}

// tryKubectl runs kubectl with stdin and returns its output and exit error.
func (c *cluster) tryKubectl(stdin string, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := c.command(ctx, append([]string{"kubectl"}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// apply creates or changes what a manifest says.
func (c *cluster) apply(t *testing.T, manifest string, flags ...string) {
	t.Helper()
	out, stderr, err := c.tryKubectl(manifest, append([]string{"apply", "-f", "-"}, flags...)...)
	if err != nil {
		t.Fatalf("kubectl apply: %v\n%s%s\n%s", err, out, stderr, manifest)
	}
}

// namespace makes a namespace for one test and deletes it afterwards.
func (c *cluster) namespace(t *testing.T) string {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	c.kubectl(t, "create", "namespace", name)
	t.Cleanup(func() {
		if t.Failed() {
			out, _, _ := c.tryKubectl("", "get", "all,events", "-n", name, "-o", "wide")
			t.Logf("state of namespace %s:\n%s\nproa.log:\n%s", name, out, c.logAbout(name))
		}
		c.tryKubectl("", "delete", "namespace", name, "--wait=false")
	})
	return name
}

// eventually calls check until it succeeds; its last error fails the test.
func eventually(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", within, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
