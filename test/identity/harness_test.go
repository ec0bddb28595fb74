// Package identity drives the built binary as whoever secures a cluster does: who
// is asking, what may they, and what lies on the disk. A control plane alone is
// enough for it; no test needs a node.
package identity

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
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

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var binary = cmp.Or(os.Getenv("PROA_E2E_BINARY"), "../../bin/proa")

func TestMain(m *testing.M) {
	if _, err := os.Stat(binary); err != nil {
		fmt.Println("identity tests not run: bin/proa is not built: make build")
		if os.Getenv("PROA_E2E") == "required" {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// server is a control plane without a node.
type server struct {
	dir  string
	port int
	cmd  *exec.Cmd
	out  bytes.Buffer
	gone chan error
}

// start runs a server with flags on a free port until the test ends.
func start(t *testing.T, flags ...string) *server {
	t.Helper()
	s := &server{dir: filepath.Join(t.TempDir(), "data"), port: freePort(t)}
	t.Cleanup(func() { s.stop(t) })
	s.run(t, flags...)
	return s
}

// run starts the process and waits until it is ready.
func (s *server) run(t *testing.T, flags ...string) {
	t.Helper()
	if err := s.begin(flags...); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		select {
		case err := <-s.gone:
			s.gone <- err
			t.Fatalf("the server ended: %v\n%s", err, s.out.String())
		default:
		}
		c, err := s.client("", "")
		if err != nil {
			return err
		}
		_, err = c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err
	})
}

func (s *server) begin(flags ...string) error {
	args := append([]string{"server", "--no-node", "--data-dir", s.dir, "--port", fmt.Sprint(s.port), "--bind-address", "127.0.0.1"}, flags...)
	s.cmd = exec.Command(binary, args...)
	s.out.Reset()
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := s.cmd.Start(); err != nil {
		return err
	}
	cmd, gone := s.cmd, make(chan error, 1)
	s.gone = gone
	go func() { gone <- cmd.Wait() }()
	return nil
}

// refused runs a server that must not start, and returns what it said.
func refused(t *testing.T, flags ...string) string {
	t.Helper()
	s := &server{dir: filepath.Join(t.TempDir(), "data"), port: freePort(t)}
	if err := s.begin(flags...); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.gone:
		if err == nil {
			t.Error("the server ended without an error")
		}
	case <-time.After(30 * time.Second):
		s.cmd.Process.Kill()
		<-s.gone
		t.Fatalf("the server started with %v", flags)
	}
	return s.out.String()
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-s.gone:
		s.gone <- err
	case <-time.After(30 * time.Second):
		s.cmd.Process.Kill()
		t.Error("the server did not end in time")
	}
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(s.dir, "logs", "proa.log"))
		t.Logf("proa.log:\n%s", log[max(0, len(log)-8000):])
	}
}

// config is how the administrator reaches the server; with a token, how its
// bearer does.
func (s *server) config(token, as string) (*rest.Config, error) {
	admin, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	admin.QPS = -1
	if token != "" {
		admin = rest.AnonymousClientConfig(admin)
		admin.BearerToken, admin.QPS = token, -1
	}
	admin.Impersonate.UserName = as
	return admin, nil
}

func (s *server) client(token, as string) (*kubernetes.Clientset, error) {
	config, err := s.config(token, as)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// admin is the administrator's client.
func (s *server) admin(t *testing.T) *kubernetes.Clientset { return s.bearer(t, "") }

// bearer is the client of whoever has a token.
func (s *server) bearer(t *testing.T, token string) *kubernetes.Clientset {
	t.Helper()
	c, err := s.client(token, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// status is the code of a plain GET with a token, or with none.
func (s *server) status(t *testing.T, path, token string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", s.port, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// metrics returns the lines of /metrics with a prefix.
func (s *server) metrics(t *testing.T, prefix string) string {
	t.Helper()
	all, err := s.admin(t).Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(all)) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// eventually calls check until it succeeds; its last error fails the test.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not in time: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
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

// file writes a file of the test.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	replace(t, path, text)
	return path
}

// replace puts a new file in the place of another, as editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}
