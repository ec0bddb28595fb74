// Package datastore drives built binaries on a real etcd: Proa by its flags, etcd
// by its name, and upstream's own storage library beside them.
package datastore

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience is how long a test waits for what has to come.
const patience = time.Minute

func repo(path string) string {
	abs, err := filepath.Abs(filepath.Join("../..", path))
	if err != nil {
		panic(err)
	}
	return abs
}

// built returns a binary, or skips the test in words; where the variable says
// "required", it fails instead.
func built(t *testing.T, path, how, variable string) string {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		if os.Getenv(variable) == "required" {
			t.Fatalf("%s is not built: %s", path, how)
		}
		t.Skipf("%s is not built: %s", path, how)
	}
	return path
}

// proa is the binary under test. One that may be older than the tests is not run
// with the unit tests.
func proa(t *testing.T) string {
	t.Helper()
	if os.Getenv("PROA_E2E") == "" && os.Getenv("PROA_E2E_BINARY") == "" {
		t.Skip("runs the built program: make e2e, or name one with PROA_E2E_BINARY")
	}
	return built(t, cmp.Or(os.Getenv("PROA_E2E_BINARY"), repo("bin/proa")), "make build", "PROA_E2E")
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

// process is a program that runs until the test ends or it is killed.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	log string

	ended  chan struct{} // closed when it has
	killed bool
}

func start(t *testing.T, name, log string, args ...string) *process {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p := &process{t: t, cmd: exec.Command(name, args...), log: log, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	p.t.Helper()
	if p.killed {
		return
	}
	p.killed = true
	if err := p.end(); err != nil {
		p.t.Error(err)
	}
	if p.t.Failed() {
		data, _ := os.ReadFile(p.log)
		p.t.Logf("--- %s\n%s", p.log, data[max(0, len(data)-5000):])
	}
}

// stop ends it as a service manager does.
func (p *process) stop() {
	p.t.Helper()
	p.killed = true
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Errorf("%s does not end when it is told to", filepath.Base(p.cmd.Path))
		_ = p.end()
	}
}

// end kills it; an error says that it had ended before.
func (p *process) end() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %s", filepath.Base(p.cmd.Path), p.cmd.ProcessState)
	default:
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	return nil
}

// etcd is one under its own name, with a place to start again.
type etcd struct {
	*process
	t    *testing.T
	dir  string
	name string
	url  string
	peer string

	flags  []string
	client *http.Client // for its health
}

func startEtcd(t *testing.T) *etcd {
	t.Helper()
	return startEtcdWith(t, "http", http.DefaultClient)
}

func startEtcdWith(t *testing.T, scheme string, client *http.Client, flags ...string) *etcd {
	t.Helper()
	e := newEtcd(t, scheme, client, flags...)
	e.start()
	return e
}

func newEtcd(t *testing.T, scheme string, client *http.Client, flags ...string) *etcd {
	t.Helper()
	e := &etcd{t: t, dir: t.TempDir(), client: client, flags: flags}
	e.name = filepath.Join(e.dir, "etcd")
	program := cmp.Or(os.Getenv("PROA_ETCD"), proa(t)) // an etcd of another version, to test with it
	if err := os.Symlink(program, e.name); err != nil {
		t.Fatal(err)
	}
	e.url = fmt.Sprintf("%s://127.0.0.1:%d", scheme, freePort(t))
	e.peer = fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	return e
}

func (e *etcd) start() {
	e.t.Helper()
	e.launch()
	e.ready()
}

// launch starts it, and does not wait for the other members.
func (e *etcd) launch() {
	e.t.Helper()
	args := append([]string{
		"--data-dir", filepath.Join(e.dir, "data"), "--unsafe-no-fsync",
		"--listen-client-urls", e.url, "--advertise-client-urls", e.url,
		"--listen-peer-urls", e.peer, "--initial-advertise-peer-urls", e.peer, "--initial-cluster", "default=" + e.peer,
	}, e.flags...)
	e.process = start(e.t, e.name, filepath.Join(e.dir, "log"), args...)
}

func (e *etcd) ready() {
	e.t.Helper()
	eventually(e.t, "etcd is healthy", func(ctx context.Context) error { return wellAt(ctx, e.client, e.url+"/health") })
}

// server is a control plane without a node.
type server struct {
	*process
	dir    string
	port   string
	config *rest.Config
	client dynamic.Interface
	http   *http.Client
}

// alone are flags by which a server meets no other on this host.
func alone(t *testing.T) []string {
	return []string{
		"--port", fmt.Sprint(freePort(t)), "--kubelet-port", fmt.Sprint(freePort(t)),
		"--pod-cidr", "10.244.0.0/16", "--service-cidr", "10.96.0.0/16",
	}
}

// startServer starts one; pki is another server's directory whose certificates
// it shares, or empty.
func startServer(t *testing.T, pki string, flags ...string) *server {
	t.Helper()
	return prepareServer(t, pki, flags...).waitReady(t)
}

// prepareServer is startServer that does not wait until it is ready.
func prepareServer(t *testing.T, pki string, flags ...string) *server {
	t.Helper()
	s := &server{dir: t.TempDir()}
	if pki != "" {
		if err := os.CopyFS(filepath.Join(s.dir, "pki"), os.DirFS(filepath.Join(pki, "pki"))); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { // what it leaves outside its directory, once it has ended
		if out, err := exec.Command(proa(t), "down", "--delete", "--data-dir", s.dir).CombinedOutput(); err != nil {
			t.Errorf("proa down --delete: %v\n%s", err, out)
		}
	})
	own := alone(t)
	s.port = own[1]
	args := append([]string{"server", "--no-node", "--data-dir", s.dir}, own...)
	s.process = start(t, proa(t), filepath.Join(s.dir, "out"), append(args, flags...)...)
	return s
}

func (s *server) waitReady(t *testing.T) *server {
	t.Helper()
	eventually(t, "the server is ready", func(ctx context.Context) (err error) {
		if s.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "kubeconfig")); err != nil {
			return err
		}
		s.config.QPS = -1
		if s.http, err = rest.HTTPClientFor(s.config); err != nil {
			return err
		}
		return wellAt(ctx, s.http, s.config.Host+"/readyz")
	})
	var err error
	if s.client, err = dynamic.NewForConfig(s.config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			data, _ := os.ReadFile(filepath.Join(s.dir, "logs", "proa.log"))
			t.Logf("--- proa.log\n%s", data[max(0, len(data)-5000):])
		}
	})
	return s
}

// wellAt returns nil when a URL answers 200.
func wellAt(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, answer.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

// eventually tries until it works.
func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}
