package containerd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/images"
	"proa/internal/payload"
)

// node is a Runtime over the real payload, with CRI clients. The test is skipped where the
// payload or the rights to run it are missing.
type node struct {
	*Runtime
	pods   runtimeapi.RuntimeServiceClient
	images *images.Store
	cancel context.CancelFunc
	ended  chan error
}

func testConfig(t *testing.T) Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("running containers needs root")
	}
	if os.Getenv(payload.Environment) == "" {
		t.Setenv(payload.Environment, "../../build/payload")
	}
	bin, err := payload.Unpack(t.Context(), "")
	if err != nil {
		t.Skipf("no payload: run `make payload` first: %v", err)
	}
	root, err := os.MkdirTemp("", "proa-containerd-")
	if err != nil {
		t.Fatal(err)
	}
	id := strconv.Itoa(os.Getpid()) + filepath.Base(root)[len("proa-containerd-"):]
	config := Config{
		Bin:        bin,
		Root:       root,
		CgroupRoot: "/proa-test-" + id,
		Log:        slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	t.Cleanup(func() { remove(t, config) })
	return config
}

// remove deletes the node and checks that nothing of it is left.
func remove(t *testing.T, config Config) {
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if t.Failed() {
		log, _ := os.ReadFile(r.config.LogFile)
		t.Logf("containerd's log:\n%s", log)
	}
	if err := r.Delete(ctx); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := r.Delete(ctx); err != nil {
		t.Errorf("second delete: %v", err)
	}
	left, err := pids()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range left {
		if line := strings.Join(commandLine(pid), " "); strings.Contains(line, r.config.Root) || strings.Contains(line, r.config.RunDir) {
			t.Errorf("process %d is left: %s", pid, line)
		}
	}
	for _, dir := range []string{r.config.Root, r.config.RunDir} {
		if mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir)); err != nil || len(mounts) > 0 {
			t.Errorf("mounts left below %s: %v (%v)", dir, mounts, err)
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left", dir)
		}
	}
	if groups, err := cgroupsAt(config.CgroupRoot); err != nil || len(groups) > 0 {
		t.Errorf("cgroups left: %v (%v)", groups, err)
	}
}

// up runs containerd until the returned node is released.
func up(t *testing.T, config Config) *node {
	t.Helper()
	r, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{Runtime: r, cancel: cancel, ended: make(chan error, 1)}
	go func() { n.ended <- r.Run(ctx) }()
	limit, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := r.Ready(limit); err != nil {
		cancel()
		<-n.ended
		log, _ := os.ReadFile(r.config.LogFile)
		t.Fatalf("%v\n%s", err, log)
	}
	n.pods = runtimeapi.NewRuntimeServiceClient(n.dial(t))
	if n.images, err = images.Dial(r.Endpoint()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.images.Close()
		n.release()
	})
	return n
}

func (n *node) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(n.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// release ends supervision as the end of the process would, and leaves containerd running.
func (n *node) release() {
	if n.cancel == nil {
		return
	}
	n.cancel()
	<-n.ended
	n.cancel = nil
}

func (n *node) load(t *testing.T, name string) {
	t.Helper()
	archive, err := os.Open(filepath.Join("../../build/images", name+".tar"))
	if err != nil {
		t.Skipf("no image: run `make images` first: %v", err)
	}
	defer archive.Close()
	if _, err := n.images.Load(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
}

// sandbox runs a pod sandbox on a network of its own that reaches nothing.
func (n *node) sandbox(t *testing.T, name string) (string, *runtimeapi.PodSandboxConfig) {
	t.Helper()
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "test", Uid: name},
		LogDirectory: filepath.Join(n.config.Root, "logs", name),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: n.config.CgroupRoot + "/pod" + name,
		},
	}
	if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
		t.Fatal(err)
	}
	reply, err := n.pods.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	return reply.PodSandboxId, config
}

// network configures pods with a bridge in the host's namespace that has no address there and
// is not connected to anything.
func network(t *testing.T, n *node) {
	t.Helper()
	bridge := fmt.Sprintf("pt%d", os.Getpid()%1e9)
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"bridge","bridge":%q,"isGateway":false,
		"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.213.0.0/24"}]]}}]}`, bridge, filepath.Join(n.config.Root, "ipam"))
	if err := os.WriteFile(filepath.Join(n.CNIConfDir(), "10-test.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteLink(t, bridge) })
	for range 1000 {
		status, err := n.pods.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range status.Status.Conditions {
			if c.Type == runtimeapi.NetworkReady && c.Status {
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("the network does not become ready")
}

func (n *node) container(t *testing.T, sandbox string, pod *runtimeapi.PodSandboxConfig, config *runtimeapi.ContainerConfig) string {
	t.Helper()
	config.LogPath = config.Metadata.Name + ".log"
	if config.Linux == nil {
		config.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}}
	}
	created, err := n.pods.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: pod})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.pods.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return created.ContainerId
}

func named(name, image string, args ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: image},
		Args:     args,
	}
}

func (n *node) exec(t *testing.T, container string, command ...string) (string, int32) {
	t.Helper()
	reply, err := n.pods.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: command, Timeout: 120})
	if err != nil {
		t.Fatalf("exec %v: %v", command, err)
	}
	return string(reply.Stdout) + string(reply.Stderr), reply.ExitCode
}

func (n *node) state(t *testing.T, container string) runtimeapi.ContainerState {
	t.Helper()
	reply, err := n.pods.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: container}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return reply.Status.State
}

func (n *node) daemon(t *testing.T) *process {
	t.Helper()
	running, err := n.daemons()
	if err != nil || len(running) != 1 {
		t.Fatalf("%d containerds run (%v), want one", len(running), err)
	}
	return running[0]
}

func TestContainersOutliveTheAgentAndContainerd(t *testing.T) {
	config := testConfig(t)
	n := up(t, config)
	n.load(t, "busybox")
	network(t, n)
	sandbox, pod := n.sandbox(t, "survivor")
	container := n.container(t, sandbox, pod, named("shell", "busybox:1.35", "sh", "-c", "echo started; exec sleep 3600"))
	if out, code := n.exec(t, container, "cat", "/proc/1/cmdline"); code != 0 || !strings.Contains(out, "sleep") {
		t.Fatalf("process 1 is %q (%d)", out, code)
	}

	first := n.daemon(t)
	n.release()
	again := up(t, config)
	if p := again.daemon(t); p.pid != first.pid {
		t.Errorf("containerd %d was replaced by %d, want it adopted", first.pid, p.pid)
	}

	if err := signal(first.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := waitExit(t.Context(), first.pid); err != nil {
		t.Fatal(err)
	}
	if state := again.state(t, container); state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container is %v after containerd was killed, want running", state)
	}
	if p := again.daemon(t); p.pid == first.pid {
		t.Error("containerd was not started again")
	}
	if out, code := again.exec(t, container, "echo", "alive"); code != 0 || out != "alive\n" {
		t.Errorf("exec after restart gives %q (%d)", out, code)
	}
}

func TestNewSettingsReplaceContainerdAndKeepContainers(t *testing.T) {
	config := testConfig(t)
	n := up(t, config)
	n.load(t, "busybox")
	network(t, n)
	sandbox, pod := n.sandbox(t, "kept")
	container := n.container(t, sandbox, pod, named("shell", "busybox:1.35", "sleep", "3600"))
	old := n.daemon(t)
	n.release()

	programs := filepath.Join(config.Root, "programs") // the same programs by another path
	if err := os.Symlink(config.Bin.Dir, programs); err != nil {
		t.Fatal(err)
	}
	config.Bin.Dir = programs
	again := up(t, config)
	if p := again.daemon(t); p.pid == old.pid {
		t.Error("containerd with old settings still runs")
	}
	if state := again.state(t, container); state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container is %v, want running", state)
	}
}

func TestStopPodsLeavesNoSandbox(t *testing.T) {
	n := up(t, testConfig(t))
	n.load(t, "busybox")
	network(t, n)
	for _, name := range []string{"one", "two"} {
		sandbox, pod := n.sandbox(t, name)
		container := n.container(t, sandbox, pod, named("shell", "busybox:1.35", "sh", "-c", "trap 'exit 0' TERM; touch /ready; while :; do sleep 0.05; done"))
		n.exec(t, container, "sh", "-c", "until [ -e /ready ]; do sleep 0.01; done")
	}
	if err := n.StopPods(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	left, err := n.pods.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("%d sandboxes are left (%v)", len(left.GetItems()), err)
	}
}

func TestPauseReapsOrphansOfASharedProcessNamespace(t *testing.T) {
	n := up(t, testConfig(t))
	n.load(t, "busybox")
	network(t, n)
	sandbox, pod := n.sandbox(t, "shared")
	config := named("shell", "busybox:1.35", "sleep", "3600")
	config.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD},
	}}
	container := n.container(t, sandbox, pod, config)
	out, _ := n.exec(t, container, "sh", "-c", `(sh -c 'exit 3' & exec sleep 0.2) & sleep 0.5; grep -l 'State:.Z' /proc/[0-9]*/status; cat /proc/1/comm`)
	if out != "pause\n" {
		t.Errorf("zombies and process 1: %q, want none and pause", out)
	}
}

func TestDeleteKillsFrozenContainers(t *testing.T) {
	n := up(t, testConfig(t))
	n.load(t, "busybox")
	network(t, n)
	sandbox, pod := n.sandbox(t, "frozen")
	n.container(t, sandbox, pod, named("shell", "busybox:1.35", "sleep", "3600"))
	groups, err := cgroupsAt(n.config.CgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	frozen := 0
	for _, group := range groups {
		err := walkCgroup(group, func(dir string) error {
			if writeExisting(filepath.Join(dir, "freezer.state"), "FROZEN") || writeExisting(filepath.Join(dir, "cgroup.freeze"), "1") {
				frozen++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if frozen == 0 {
		t.Skip("this machine has no freezer")
	}
	// The clean-up that follows every test finds out whether they die.
}

// TestImages runs each server image with its default command and asks it something.
func TestImages(t *testing.T) {
	if testing.Short() {
		t.Skip("starting a database takes seconds")
	}
	n := up(t, testConfig(t))
	network(t, n)
	tests := []struct {
		image string
		env   map[string]string
		ask   []string
		want  string
	}{
		{image: "nginx:1.22", ask: []string{"wget", "-qO-", "http://127.0.0.1/"}, want: "Welcome to nginx!"},
		{image: "redis:7.0", ask: []string{"sh", "-c", "redis-cli set boat proa && redis-cli get boat"}, want: "OK\nproa\n"},
		{
			image: "postgres:15",
			env:   map[string]string{"POSTGRES_PASSWORD": "se'cret", "POSTGRES_USER": "app", "POSTGRES_DB": "guest-book"},
			ask:   []string{"sh", "-c", `PGPASSWORD="$POSTGRES_PASSWORD" psql -h "$(hostname -i)" -U app -d guest-book -Atc "select 6*7, current_database(), current_setting('server_encoding')"`},
			want:  "42|guest-book|UTF8\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.image, func(t *testing.T) {
			name, _, _ := strings.Cut(tt.image, ":")
			n.load(t, name)
			sandbox, pod := n.sandbox(t, name)
			config := named(name, tt.image)
			for key, value := range tt.env {
				config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: key, Value: []byte(value)})
			}
			container := n.container(t, sandbox, pod, config)
			out := ""
			for range 1200 {
				if n.state(t, container) != runtimeapi.ContainerState_CONTAINER_RUNNING {
					log, _ := os.ReadFile(filepath.Join(pod.LogDirectory, config.LogPath))
					t.Fatalf("the container ended:\n%s", log)
				}
				reply, err := n.pods.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: tt.ask, Timeout: 30})
				out = string(reply.GetStdout()) + string(reply.GetStderr())
				if err == nil && reply.ExitCode == 0 {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			if !strings.Contains(out, tt.want) {
				log, _ := os.ReadFile(filepath.Join(pod.LogDirectory, config.LogPath))
				t.Errorf("the answer is %q, want %q\n%s", out, tt.want, log)
			}
			if _, err := n.pods.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: container, Timeout: 20}); err != nil {
				t.Error(err)
			}
			status, err := n.pods.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: container})
			if err != nil || status.Status.ExitCode != 0 {
				t.Errorf("stopped with exit code %d (%v), want 0", status.GetStatus().GetExitCode(), err)
			}
		})
	}
}

// TestGuestbook runs the example's API with its database and cache in one pod, and signs the
// book.
func TestGuestbook(t *testing.T) {
	if testing.Short() {
		t.Skip("starting a database takes seconds")
	}
	n := up(t, testConfig(t))
	network(t, n)
	for _, name := range []string{"redis", "postgres", "guestbook-api"} {
		n.load(t, name)
	}
	sandbox, pod := n.sandbox(t, "guestbook")
	run := func(name, image string, env ...string) string {
		config := named(name, image)
		for _, variable := range env {
			key, value, _ := strings.Cut(variable, "=")
			config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: key, Value: []byte(value)})
		}
		return n.container(t, sandbox, pod, config)
	}
	run("postgres", "postgres:15", "POSTGRES_PASSWORD=secret", "POSTGRES_DB=guestbook")
	shell := run("redis", "redis:7.0")
	run("api", "proa.dev/guestbook-api:1", "DATABASE_URL=postgres://postgres:secret@127.0.0.1:5432/guestbook?sslmode=disable", "REDIS_ADDRESS=127.0.0.1:6379")

	const url = "http://127.0.0.1:8080"
	if out, code := n.exec(t, shell, "timeout", "110", "sh", "-c", "until wget -qO- "+url+"/readyz; do sleep 0.1; done"); code != 0 {
		log, _ := os.ReadFile(filepath.Join(pod.LogDirectory, "api.log"))
		t.Fatalf("the API does not become ready: %s\n%s", out, log)
	}
	steps := []struct {
		name, data, path string
		want             string
	}{
		{"the book begins empty", "", "/api/entries", `"entries":[]`},
		{"an empty list is cached", "", "/api/entries", `"cached":true`},
		{"a visitor signs", `{"author":"Ana","text":"ahoy"}`, "/api/entries", `"author":"Ana"`},
		{"the entry shows at once", "", "/api/entries", `"text":"ahoy"`},
		{"the longer list is cached", "", "/api/entries", `"cached":true`},
		{"an entry needs an author", `{"text":"ahoy"}`, "/api/entries", "422"},
		{"visits are counted", "", "/api/info", `"visits":1`},
	}
	for _, step := range steps {
		command := []string{"wget", "-qO-", url + step.path}
		if step.data != "" {
			command = append(command, "--post-data", step.data)
		}
		if out, _ := n.exec(t, shell, command...); !strings.Contains(out, step.want) {
			t.Errorf("%s: the answer is %q, want %s", step.name, out, step.want)
		}
	}
}

func deleteLink(t *testing.T, name string) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return // no pod made it
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Errorf("delete bridge: %v", err)
	}
}

func TestNewRefusesRunDirectoriesTooLongForSockets(t *testing.T) {
	_, err := New(Config{Root: "/x", RunDir: "/" + strings.Repeat("r", 60)})
	if err == nil || !strings.Contains(err.Error(), "too long for Unix sockets") {
		t.Errorf("error is %v", err)
	}
	if _, err := New(Config{Root: "/" + strings.Repeat("r", 200)}); err != nil {
		t.Errorf("a long root is refused: %v", err)
	}
}

func TestTrimLogKeepsTheFileAndItsContentBeside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		limit     int64
		log, kept string
	}{{10, "0123456789", ""}, {9, "", "0123456789"}} {
		if err := trimLog(path, step.limit); err != nil {
			t.Fatal(err)
		}
		log, _ := os.ReadFile(path)
		kept, _ := os.ReadFile(path + ".1")
		if string(log) != step.log || string(kept) != step.kept {
			t.Errorf("limit %d: log %q and kept %q, want %q and %q", step.limit, log, kept, step.log, step.kept)
		}
	}
}
