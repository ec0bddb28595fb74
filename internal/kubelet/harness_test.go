package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"proa/internal/apis/builtin"
	apiregistry "proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/kubelet/config"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// The tests of this package run real containers. They need root, a network
// namespace of their own, what `make payload images` builds, and PROA_E2E=required:
//
//	PROA_E2E=required unshare -n sh -c 'ip link set lo up; go test ./internal/kubelet'
var shared *machine

// machine is a container runtime with a registry beside it.
type machine struct {
	dir, socket string
	image       string // busybox
	registry    string
	containerd  *exec.Cmd
}

func TestMain(m *testing.M) {
	code := 0
	if os.Getenv("PROA_E2E") == "required" {
		var err error
		if shared, err = startMachine(built("payload/bin"), built("images/busybox.tar")); err != nil {
			fmt.Fprintln(os.Stderr, "start machine:", err)
			os.Exit(1)
		}
	}
	code = m.Run()
	if shared != nil {
		shared.stop()
	}
	os.Exit(code)
}

func built(path string) string {
	abs, err := filepath.Abs(filepath.Join("../../build", path))
	if err != nil {
		panic(err)
	}
	return abs
}

func startMachine(bin, busybox string) (*machine, error) {
	dir, err := os.MkdirTemp("", "kubelet-test-")
	if err != nil {
		return nil, err
	}
	m := &machine{dir: dir, socket: filepath.Join(dir, "containerd.sock")}
	srv := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, 0))))
	m.registry = strings.TrimPrefix(srv.URL, "http://")
	m.image = m.registry + "/busybox:1"
	unpacked := filepath.Join(dir, "busybox")
	if err := os.Mkdir(unpacked, 0o755); err != nil {
		return nil, err
	}
	if err := push(m.image, busybox, unpacked); err != nil {
		return nil, err
	}
	if err := m.startContainerd(bin); err != nil {
		return nil, err
	}
	return m, nil
}

// push serves the image of an OCI archive under a name. By itself it sleeps, so that
// it is the sandbox image too.
func push(image, archive, dir string) error {
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

func (m *machine) startContainerd(bin string) error {
	cni := filepath.Join(m.dir, "cni")
	if err := os.MkdirAll(cni, 0o755); err != nil {
		return err
	}
	conflist := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"t","plugins":[{"type":"bridge","bridge":"kt0","isGateway":true,
		"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.199.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`, filepath.Join(m.dir, "ipam"))
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
  address = %[8]q
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %[4]q
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [%[5]q]
  conf_dir = %[6]q
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = %[7]q
    SystemdCgroup = false
`, filepath.Join(m.dir, "root"), filepath.Join(m.dir, "state"), m.socket, m.image, bin, cni, filepath.Join(bin, "runc"), m.socket+".ttrpc")
	file := filepath.Join(m.dir, "containerd.toml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(m.dir, "containerd.log"))
	if err != nil {
		return err
	}
	m.containerd = exec.Command(filepath.Join(bin, "containerd"), "-c", file)
	m.containerd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	m.containerd.Stdout, m.containerd.Stderr = log, log
	m.containerd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return m.containerd.Start()
}

func (m *machine) stop() {
	_ = m.containerd.Process.Signal(syscall.SIGTERM)
	_ = m.containerd.Wait()
	if os.Getenv("PROA_TEST_KEEP") == "" {
		_ = os.RemoveAll(m.dir)
	}
}

// world is a node agent over an API server in memory.
type world struct {
	t        testing.TB
	api      client.API
	pods     client.Resource[*corev1.Pod]
	root     string
	manifest string
	change   func(*Config)
	cancel   context.CancelFunc
	done     chan error
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	if shared == nil {
		t.Skip("runs containers: `make e2e` does it in a network namespace")
	}
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: apiregistry.NewCodec(catalogue)})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	r, err := apiregistry.New(apiregistry.Config{Store: s, Catalogue: catalogue})
	must(t, err)
	must(t, r.Bootstrap(t.Context()))
	w := &world{t: t, api: r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}), root: t.TempDir()}
	w.pods = client.Of[*corev1.Pod](w.api)
	w.change = func(c *Config) {
		for _, f := range change {
			f(c)
		}
	}
	w.start()
	t.Cleanup(func() {
		list, err := w.pods.List(context.Background(), "", metav1.ListOptions{})
		if err == nil {
			for _, p := range list {
				_, _ = w.pods.Delete(context.Background(), p.Namespace, p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
			}
		}
		_ = os.RemoveAll(filepath.Join(w.root, "manifests"))
		w.await("all pods gone", func() bool {
			list, err := w.pods.List(context.Background(), "", metav1.ListOptions{})
			left := w.dirs()
			return err == nil && len(list) == 0 && len(left) == 0
		})
		w.stop()
	})
	return w
}

func (w *world) dirs() []os.DirEntry {
	left, _ := os.ReadDir(filepath.Join(w.root, "pods"))
	return left
}

func (w *world) start() {
	conf := &config.Configuration{
		ContainerRuntimeEndpoint: "unix://" + shared.socket, PodLogsDir: filepath.Join(w.root, "logs"), StaticPodPath: filepath.Join(w.root, "manifests"),
		CgroupRoot: "/kubelet-test", ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local",
		HealthzPort: ptr.To[int32](0), FailSwapOn: ptr.To(false), MaxParallelImagePulls: ptr.To[int32](5), RegistryPullQPS: ptr.To[int32](0),
	}
	config.Default(conf)
	c := Config{
		API: w.api, NodeName: "n1", NodeIPs: []string{"127.0.0.1"}, Configuration: conf, RootDir: w.root,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	w.change(&c)
	k, err := New(c)
	must(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.done = cancel, make(chan error, 1)
	go func() { w.done <- k.Run(ctx) }()
	w.await("node ready", func() bool {
		n, err := client.Of[*corev1.Node](w.api).Get(ctx, "", "n1")
		if err != nil {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	})
}

func (w *world) stop() {
	w.cancel()
	must(w.t, <-w.done)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await polls for a state that the agent reaches by itself.
func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	list, _ := w.pods.List(context.Background(), "", metav1.ListOptions{})
	for _, p := range list {
		w.t.Logf("pod %s: %+v", p.Name, p.Status)
	}
	w.t.Fatalf("waited in vain for: %s", what)
}

func (w *world) create(p *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	out, err := w.pods.Create(w.t.Context(), p)
	must(w.t, err)
	return out
}

func (w *world) get(name string) *corev1.Pod {
	p, err := w.pods.Get(w.t.Context(), "default", name)
	if err != nil {
		return &corev1.Pod{}
	}
	return p
}

// until waits for a pod to satisfy ok and returns it.
func (w *world) until(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	var p *corev1.Pod
	w.await(name+": "+what, func() bool { p = w.get(name); return ok(p) })
	return p
}

func phaseIs(phase corev1.PodPhase) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Status.Phase == phase }
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (w *world) logs(p *corev1.Pod, container string, restart int) string {
	b, _ := os.ReadFile(filepath.Join(w.root, "logs", p.Namespace+"_"+p.Name+"_"+string(p.UID), container, fmt.Sprintf("%d.log", restart)))
	var out strings.Builder
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.SplitN(line, " ", 4); len(f) == 4 {
			out.WriteString(f[3] + "\n")
		}
	}
	return out.String()
}

// pod makes a pod bound to the node, of containers running shell scripts.
func pod(name string, change func(*corev1.PodSpec), scripts ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	p.Spec = corev1.PodSpec{NodeName: "n1", TerminationGracePeriodSeconds: ptr.To[int64](2), AutomountServiceAccountToken: ptr.To(false)}
	for i, s := range scripts {
		p.Spec.Containers = append(p.Spec.Containers, shell(fmt.Sprintf("c%d", i), s))
	}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func shell(name, script string) corev1.Container {
	image := ""
	if shared != nil {
		image = shared.image
	}
	return corev1.Container{Name: name, Image: image, Command: []string{"/bin/sh", "-c", script}, ImagePullPolicy: corev1.PullIfNotPresent}
}
