// Package node drives `kubelet` by name as whoever runs nodes does: beside an API
// server that is there and a container runtime that is there, with upstream's flags
// and files. It needs root and what `make build payload images` makes.
package node

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"proa/internal/auth/pki"
)

const bridge = "proanode0"

var (
	binary  = cmp.Or(os.Getenv("PROA_E2E_BINARY"), built("bin/proa"))
	payload = built("build/payload/bin")
	busybox = built("build/images/busybox.tar")
	shared  *site
)

func built(path string) string {
	abs, err := filepath.Abs(filepath.Join("../..", path))
	if err != nil {
		panic(err)
	}
	return abs
}

// TestMain starts an API server and a container runtime once.
func TestMain(m *testing.M) {
	if reason := cannotRun(); reason != "" {
		fmt.Println("tests of the kubelet by name not run:", reason)
		if os.Getenv("PROA_E2E") == "required" {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(runShared(m))
}

func runShared(m *testing.M) int {
	dir, err := os.MkdirTemp("", "proa-node-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	shared = &site{dir: dir}
	defer shared.stop()
	if err := shared.start(); err != nil {
		fmt.Println("start server and runtime:", err)
		return 1
	}
	return m.Run()
}

func cannotRun() string {
	if os.Geteuid() != 0 {
		return "a node needs root"
	}
	for _, file := range []string{binary, filepath.Join(payload, "containerd"), busybox} {
		if _, err := os.Stat(file); err != nil {
			return file + " is not built: make build payload images"
		}
	}
	return ""
}

// site is what a kubelet finds: an API server and a container runtime.
type site struct {
	dir      string
	port     int
	server   *process
	runtime  *process
	registry *httptest.Server
	image    string // busybox
	address  string // of this host
}

func (s *site) socket() string   { return filepath.Join(s.dir, "containerd.sock") }
func (s *site) endpoint() string { return "unix://" + s.socket() }

func (s *site) start() (err error) {
	s.port = freePort()
	data := filepath.Join(s.dir, "data")
	s.server, err = run(filepath.Join(s.dir, "server.log"), binary, "server", "--no-node", "--data-dir", data, "--port", fmt.Sprint(s.port))
	if err != nil {
		return err
	}
	s.registry = httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0))))
	s.image = strings.TrimPrefix(s.registry.URL, "http://") + "/busybox:1"
	if err := push(s.image, busybox, filepath.Join(s.dir, "busybox")); err != nil {
		return err
	}
	if err := s.startRuntime(); err != nil {
		return err
	}
	if s.address, err = hostAddress(); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		api, err := s.api()
		if err == nil {
			_, err = api.CoreV1().ServiceAccounts("default").Get(context.Background(), "default", metav1.GetOptions{})
		}
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w\n%s", err, s.server.log())
		}
	}
}

func (s *site) stop() {
	for _, p := range []*process{s.server, s.runtime} {
		if p != nil {
			p.end()
		}
	}
	if s.registry != nil {
		s.registry.Close()
	}
	if link, err := netlink.LinkByName(bridge); err == nil {
		_ = netlink.LinkDel(link)
	}
}

func (s *site) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "data", "kubeconfig"))
	if err == nil {
		config.QPS = -1
	}
	return config, err
}

func (s *site) api() (*kubernetes.Clientset, error) {
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// push serves the image of an OCI archive under a name. By itself it sleeps, so that
// it is the sandbox image too.
func push(image, archive, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if out, err := exec.Command("tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w: %s", archive, err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config.Config.Cmd = []string{"sleep", "1000000"}
	if img, err = mutate.Config(img, config.Config); err != nil {
		return err
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		return err
	}
	return remote.Write(ref, img)
}

// startRuntime runs containerd as an administrator configures it: runc, and crun
// where the host has it.
func (s *site) startRuntime() error {
	cni := filepath.Join(s.dir, "cni")
	if err := os.MkdirAll(cni, 0o755); err != nil {
		return err
	}
	conflist := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"t","plugins":[{"type":"bridge","bridge":%q,"isGateway":true,
		"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.197.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`, bridge, filepath.Join(s.dir, "ipam"))
	if err := os.WriteFile(filepath.Join(cni, "10-t.conflist"), []byte(conflist), 0o644); err != nil {
		return err
	}
	config := fmt.Sprintf(`version = 4
root = %[1]q
state = %[2]q
disabled_plugins = ["io.containerd.nri.v1.nri"]
[plugins.'io.containerd.server.v1.grpc']
  address = %[3]q
[plugins.'io.containerd.server.v1.ttrpc']
  address = %[4]q
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %[5]q
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [%[6]q]
  conf_dir = %[7]q
`, filepath.Join(s.dir, "root"), filepath.Join(s.dir, "state"), s.socket(), s.socket()+".ttrpc", s.image, payload, cni)
	for _, handler := range handlers() {
		config += fmt.Sprintf(`[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s.options]
    BinaryName = %q
    SystemdCgroup = false
`, handler.name, handler.name, handler.program)
	}
	file := filepath.Join(s.dir, "containerd.toml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	var err error
	s.runtime, err = run(filepath.Join(s.dir, "containerd.log"), filepath.Join(payload, "containerd"), "-c", file)
	if err != nil {
		return err
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("unix", s.socket()); err == nil {
			return conn.Close()
		}
	}
	return fmt.Errorf("containerd does not listen\n%s", s.runtime.log())
}

type handler struct{ name, program string }

// handlers are the low-level runtimes of this host. PROA_CRUN names one.
func handlers() []handler {
	all := []handler{{"runc", filepath.Join(payload, "runc")}}
	crun := os.Getenv("PROA_CRUN")
	if crun == "" {
		crun, _ = exec.LookPath("crun") // most hosts have none
	}
	if crun != "" {
		all = append(all, handler{"crun", crun})
	}
	return all
}

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// hostAddress is one that the API server reaches nodes at.
func hostAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String(), nil
		}
	}
	return "", fmt.Errorf("this host has no address but loopback")
}

// process is a program that runs until it is ended.
type process struct {
	cmd  *exec.Cmd
	out  string
	gone chan struct{}
	err  error // once gone
}

func run(out, program string, args ...string) (*process, error) {
	file, err := os.Create(out)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p := &process{cmd: exec.Command(program, args...), out: out, gone: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.Env = append(os.Environ(), "PATH="+payload+":"+os.Getenv("PATH"))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.gone)
	}()
	return p, nil
}

func (p *process) log() string {
	data, err := os.ReadFile(p.out)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-6000):])
}

func (p *process) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.gone
	}
}

// refused runs a kubelet that must not start, and returns what it said.
func refused(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append([]string{"kubelet"}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err == nil || ctx.Err() != nil {
		t.Errorf("kubelet %v: ended with %v", args, err)
	}
	return out.String()
}

// agent is a running kubelet.
type agent struct {
	*testing.T
	*process
	name   string
	port   int
	root   string
	api    *kubernetes.Clientset
	ca     *pki.Authority
	config *rest.Config
}

var authority = sync.OnceValues(func() (*pki.Authority, error) {
	return pki.Open(pki.Config{Dir: filepath.Join(shared.dir, "data", "pki"), Clock: clock.RealClock{}})
})

// runtime is for one kubelet at a time: each stops the pods in it that it does not know.
var runtime sync.Mutex

// prepare gives a node its identity: files as an installer writes them.
func prepare(t *testing.T) *agent {
	t.Helper()
	runtime.Lock()
	t.Cleanup(runtime.Unlock)
	config, err := shared.config()
	must(t, err)
	api, err := shared.api()
	must(t, err)
	ca, err := authority()
	must(t, err)
	a := &agent{T: t, name: strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")), port: freePort(), root: t.TempDir(), api: api, ca: ca, config: config}
	cert, key, err := ca.Client("system:node:"+a.name, "system:nodes")
	must(t, err)
	file, err := pki.Kubeconfig(config.Host, ca.CAPEM(), cert, key, "node")
	must(t, err)
	a.write("kubeconfig", string(file))
	a.write("ca.crt", string(ca.CAPEM()))
	cert, key, err = ca.NodeServer(a.name, []string{a.name}, []net.IP{net.ParseIP(shared.address)})
	must(t, err)
	a.write("server.crt", string(cert))
	a.write("server.key", string(key))
	return a
}

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// file is a configuration file with what every node of these tests needs.
func (a *agent) file(more string) string {
	return a.write("config.yaml", fmt.Sprintf(header+`port: %d
healthzPort: 0
failCgroupV1: false
failSwapOn: false
cgroupRoot: /proa-node-%d
tlsCertFile: server.crt
tlsPrivateKeyFile: server.key
authentication: {x509: {clientCAFile: ca.crt}}
evictionHard: {memory.available: 1Mi}
clusterDomain: cluster.local
oomScoreAdj: 0
`, a.port, a.port)+more)
}

func (a *agent) write(name, text string) string {
	a.Helper()
	path := filepath.Join(a.root, name)
	must(a.T, os.MkdirAll(filepath.Dir(path), 0o755))
	must(a.T, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// flags are those that say which node this is.
func (a *agent) flags() []string {
	return []string{"--kubeconfig", filepath.Join(a.root, "kubeconfig"), "--hostname-override", a.name, "--node-ip", shared.address, "--root-dir", filepath.Join(a.root, "kubelet"), "--cert-dir", a.root}
}

// start runs the kubelet until the test ends, and waits until its node is Ready.
func (a *agent) start(args ...string) {
	a.Helper()
	p, err := run(filepath.Join(a.root, "kubelet.log"), binary, append(append([]string{"kubelet"}, a.flags()...), args...)...)
	must(a.T, err)
	a.process = p
	a.Cleanup(func() {
		a.clear()
		p.end()
		if a.Failed() {
			a.Logf("kubelet:\n%s", p.log())
		}
		removeCgroups(fmt.Sprintf("proa-node-%d", a.port))
	})
	a.await("node Ready", func() bool {
		n, err := a.api.CoreV1().Nodes().Get(context.Background(), a.name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

// clear deletes the node's pods and waits until they are gone, then the node.
func (a *agent) clear() {
	own := metav1.ListOptions{FieldSelector: "spec.nodeName=" + a.name}
	now := int64(1)
	_ = a.api.CoreV1().Pods("default").DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: &now}, own)
	a.await("pods gone", func() bool {
		list, err := a.api.CoreV1().Pods("default").List(context.Background(), own)
		return err == nil && len(list.Items) == 0
	})
	_ = a.api.CoreV1().Nodes().Delete(context.Background(), a.name, metav1.DeleteOptions{})
}

// removeCgroups takes away the empty groups that pods were in.
func removeCgroups(name string) {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, top := range append(tops, "/sys/fs/cgroup/"+name) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = syscall.Rmdir(dirs[i])
		}
	}
}

func (a *agent) await(what string, ok func() bool) {
	a.Helper()
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
		select {
		case <-a.gone:
			a.Fatalf("the kubelet ended: %v\n%s", a.err, a.log())
		default:
		}
	}
	a.Errorf("waited in vain for: %s", what)
	a.FailNow()
}

// pod creates a pod on the node and waits for a phase.
func (a *agent) pod(name string, change func(*corev1.Pod), phase corev1.PodPhase) *corev1.Pod {
	a.Helper()
	grace := int64(1)
	no := false
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: a.name + "-" + name, Namespace: "default"}}
	p.Spec = corev1.PodSpec{NodeName: a.name, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: shared.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/bin/sh", "-c", "trap 'exit 0' TERM; echo hello; sleep 1000 & wait"}}}
	if change != nil {
		change(p)
	}
	p, err := a.api.CoreV1().Pods("default").Create(a.Context(), p, metav1.CreateOptions{})
	must(a.T, err)
	a.await(p.Name+" "+string(phase), func() bool {
		got, err := a.api.CoreV1().Pods("default").Get(a.Context(), p.Name, metav1.GetOptions{})
		if err == nil {
			p = got
		}
		return err == nil && p.Status.Phase == phase
	})
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
