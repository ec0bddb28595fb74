package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// daemon is the program under one of upstream's names. It reaches the shared
// cluster through a proxy, which notes when it asks for its Lease.
type daemon struct {
	cmd *exec.Cmd
	log bytes.Buffer

	mu    sync.Mutex
	asked []time.Time
}

func startDaemon(t *testing.T, name string, flags ...string) *daemon {
	t.Helper()
	d := &daemon{}
	dir := t.TempDir()
	program := filepath.Join(dir, name)
	if err := os.Symlink(binary, program); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	config := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}", d.proxy(t, name))
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d.cmd = exec.Command(program, append(flags, "--kubeconfig="+kubeconfig, "--secure-port=0")...)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.cmd.ProcessState == nil {
			_ = d.cmd.Process.Kill()
			_ = d.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("%s:\n%s", name, d.log.String())
		}
	})
	return d
}

// proxy passes requests on as the cluster's admin.
func (d *daemon) proxy(t *testing.T, lease string) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", shared.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, FlushInterval: -1}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/namespaces/kube-system/leases/"+lease) {
			d.mu.Lock()
			d.asked = append(d.asked, time.Now())
			d.mu.Unlock()
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// attempts are the times at which it asked for its Lease.
func (d *daemon) attempts() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]time.Time(nil), d.asked...)
}

// TestControllerManagersElectALeader has two kube-controller-managers of which
// one is killed, with upstream's times.
func TestControllerManagersElectALeader(t *testing.T) {
	t.Parallel()
	const name = "kube-controller-manager"
	const duration, retry, jitter = 15 * time.Second, 2 * time.Second, 1.2
	api, err := kubernetes.NewForConfig(adminConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	lease := func() coordinationv1.LeaseSpec {
		l, err := api.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return coordinationv1.LeaseSpec{}
		}
		return l.Spec
	}
	holder := func() string {
		if id := lease().HolderIdentity; id != nil {
			return *id
		}
		return ""
	}
	flags := []string{"--controllers=token-cleaner-controller"} // one that the cluster does not miss
	first := startDaemon(t, name, flags...)
	eventually(t, time.Minute, func() error {
		if holder() == "" {
			return fmt.Errorf("nobody leads")
		}
		return nil
	})
	leader := lease()
	host, _ := os.Hostname()
	if !strings.HasPrefix(*leader.HolderIdentity, host+"_") || *leader.LeaseDurationSeconds != int32(duration/time.Second) || *leader.LeaseTransitions != 0 ||
		leader.AcquireTime == nil || leader.RenewTime == nil {
		t.Errorf("the lease of the first: %+v", leader)
	}

	second := startDaemon(t, name, flags...)
	eventually(t, time.Minute, func() error {
		if n := len(second.attempts()); n < 4 {
			return fmt.Errorf("the second asked %d times", n)
		}
		return nil
	})
	if got := holder(); got != *leader.HolderIdentity {
		t.Errorf("%s leads besides %s", got, *leader.HolderIdentity)
	}
	// A standby waits for one period and up to its jitter more; what a busy machine adds is not its fault.
	const busy = 5 * time.Second
	asked := second.attempts()
	for i := 1; i < len(asked); i++ {
		if gap := asked[i].Sub(asked[i-1]); gap < retry*9/10 || gap > time.Duration(float64(retry)*(1+jitter))+busy {
			t.Errorf("the standby asked again after %s", gap)
		}
	}

	if err := first.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait()
	eventually(t, duration+time.Minute, func() error {
		if got := holder(); got == *leader.HolderIdentity {
			return fmt.Errorf("%s leads still", got)
		}
		return nil
	})
	if got := lease(); *got.LeaseTransitions != 1 || got.AcquireTime.Before(leader.AcquireTime) {
		t.Errorf("the lease of the second: %+v", got)
	}
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.cmd.Wait(); err != nil {
		t.Errorf("the second ended: %v", err)
	}
	if got := holder(); got != "" {
		t.Errorf("%s holds the lease after its end", got)
	}
	if out := shared.kubectl(t, "get", "endpoints,configmaps", "-n", "kube-system", "-o", "yaml"); strings.Contains(out, "control-plane.alpha.kubernetes.io/leader") {
		t.Errorf("a lock that is no Lease:\n%s", out)
	}
}

func adminConfig(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", shared.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestLocksThatAreNoLeasesAreRefused(t *testing.T) {
	t.Parallel()
	for _, lock := range []string{"endpoints", "configmaps", "endpointsleases", "configmapsleases"} {
		for name, want := range map[string]string{
			"kube-controller-manager": "error creating lock: " + lock + " lock is removed, migrate",
			"kube-scheduler":          `leaderElection.resourceLock: Invalid value: "` + lock + `": resourceLock value must be "leases"`,
		} {
			d := startDaemon(t, name, "--leader-elect-resource-lock="+lock)
			if err := d.cmd.Wait(); err == nil || !strings.Contains(d.log.String(), want) {
				t.Errorf("%s with %s: %v\n%s", name, lock, err, d.log.String())
			}
			if n := len(d.attempts()); n != 0 {
				t.Errorf("%s with %s asked for a lease %d times", name, lock, n)
			}
		}
	}
}
