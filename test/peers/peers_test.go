// Package peers runs other people's servers, unmodified, against this program: managers,
// webhooks, monitoring. Each is named as a tool by a Go module of its own below this
// directory, or comes as a Debian package; `make peers` builds them into build/peers,
// and a test whose program is not there is skipped in words.
package peers

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"proa/pkg/proatest"
)

// patience is how long a test waits for what must come; it is a bound, not a measure.
const patience = 2 * time.Minute

func repo(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// built is what `make peers` made.
func built(t *testing.T, name string) string {
	t.Helper()
	file := repo(t, "build/peers/"+name)
	if _, err := os.Stat(file); err != nil {
		if os.Getenv("PROA_PEERS") == "required" {
			t.Fatal(err)
		}
		t.Skip(name + " is not built: make peers")
	}
	return file
}

// proa is the program that is tested, for its kubectl and its nodes.
func proa(t *testing.T) string {
	t.Helper()
	file := cmp.Or(os.Getenv("PROA"), repo(t, "bin/proa"))
	if _, err := os.Stat(file); err != nil {
		t.Skip("bin/proa is not built: make proa")
	}
	return file
}

// published is where the sources of a peer's module are, for the manifests among them.
func published(t *testing.T, peer, module string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = repo(t, "test/peers/"+peer)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return strings.TrimSpace(string(out))
}

// cluster is a server as a stock client sees it.
type cluster struct {
	kubernetes.Interface
	access     *rest.Config
	kubeconfig string
}

// serve starts a cluster in this process: all controllers, the scheduler and simulated nodes.
func serve(t *testing.T, nodes int) *cluster {
	t.Helper()
	access := proatest.Start(t, proatest.Options{Controllers: []string{"*"}, Scheduler: true, Nodes: nodes})
	return reach(t, access, write(t, access))
}

func reach(t *testing.T, access *rest.Config, kubeconfig string) *cluster {
	t.Helper()
	api, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{Interface: api, access: access, kubeconfig: kubeconfig}
}

// write makes a kubeconfig.
func write(t *testing.T, access *rest.Config) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: access.Host, CertificateAuthorityData: access.CAData}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: access.CertData, ClientKeyData: access.KeyData, Token: access.BearerToken}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// token is one of a service account.
func (c *cluster) token(t *testing.T, namespace, account string) string {
	t.Helper()
	r, err := c.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}

// as is how a service account reaches the cluster.
func (c *cluster) as(t *testing.T, namespace, account string) *rest.Config {
	t.Helper()
	access := rest.AnonymousClientConfig(c.access)
	access.BearerToken = c.token(t, namespace, account)
	return access
}

// allow gives a service account of kube-system, which it makes, a role of its own.
func (c *cluster) allow(t *testing.T, account string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: account}
	create := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	create(err)
	_, err = c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	create(err)
	_, err = c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: account}},
	}, metav1.CreateOptions{})
	create(err)
}

// try runs kubectl with stdin and returns all it printed.
func (c *cluster) try(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, proa(t), append([]string{"kubectl", "--kubeconfig", c.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// kubectl runs kubectl, which must succeed.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(t, "", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) apply(t *testing.T, manifest string, args ...string) {
	t.Helper()
	if out, err := c.try(t, manifest, append([]string{"apply", "-f", "-"}, args...)...); err != nil {
		t.Fatalf("kubectl apply: %v\n%s\n%s", err, out, manifest)
	}
}

// refused applies what must not get in.
func (c *cluster) refused(t *testing.T, manifest, want string, args ...string) {
	t.Helper()
	if out, err := c.try(t, manifest, append([]string{"apply", "-f", "-"}, args...)...); err == nil || !strings.Contains(out, want) {
		t.Errorf("kubectl apply: %v\n%s\ndoes not contain %q\n%s", err, out, want, manifest)
	}
}

// until waits until kubectl get says so.
func (c *cluster) until(t *testing.T, want string, args ...string) {
	t.Helper()
	eventually(t, func() error {
		out, err := c.try(t, "", append([]string{"get"}, args...)...)
		if err != nil || out != want {
			return fmt.Errorf("get %v: %q, want %q: %v", args, out, want, err)
		}
		return nil
	})
}

// eventually calls check until it succeeds; its last error fails the test.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", patience, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// complete runs a program to its end, which must be a good one, and returns what it said.
func complete(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(program), args, err, out)
	}
	return string(out)
}

// start runs a program until the test ends.
func start(t *testing.T, program string, args ...string) (log *logged) {
	t.Helper()
	cmd := exec.Command(program, args...)
	log = &logged{file: filepath.Join(t.TempDir(), "log")}
	f, err := os.Create(log.file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		if t.Failed() {
			text := log.text()
			t.Logf("%s:\n%s", filepath.Base(program), text[max(0, len(text)-8000):])
		}
	})
	return log
}

// logged is what a program that runs has said so far.
type logged struct{ file string }

func (l *logged) text() string {
	data, _ := os.ReadFile(l.file)
	return string(bytes.ToValidUTF8(data, nil))
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
