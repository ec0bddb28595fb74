package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// machine is another host, as far as the network goes: a namespace with one link
// to this host. Its processes see the same files.
type machine struct {
	handle  netns.NsHandle
	address string
}

// newMachine makes one that reaches this host at its address, host.
func newMachine(t *testing.T, host string) *machine {
	t.Helper()
	m := &machine{address: "198.51.100.7"}
	const outer, inner = "proae2e0", "eth0"
	m.inside(t, func() (err error) {
		m.handle, err = netns.New()
		return err
	})
	t.Cleanup(func() { m.handle.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = outer
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: inner, PeerNamespace: netlink.NsFd(m.handle)}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(veth) })
	// connect brings a link up and routes what is for peer to it.
	connect := func(name, peer string) (netlink.Link, error) {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return nil, err
		}
		if err := netlink.LinkSetUp(l); err != nil || peer == "" {
			return l, err
		}
		return l, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: single(peer)})
	}
	if _, err := connect(outer, m.address); err != nil {
		t.Fatal(err)
	}
	m.inside(t, func() error {
		if _, err := connect("lo", ""); err != nil {
			return err
		}
		l, err := netlink.LinkByName(inner)
		if err == nil {
			err = netlink.AddrAdd(l, &netlink.Addr{IPNet: single(m.address)})
		}
		if err == nil {
			_, err = connect(inner, host)
		}
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(host), Flags: int(netlink.FLAG_ONLINK)})
	})
	return m
}

func single(address string) *net.IPNet {
	return &net.IPNet{IP: net.ParseIP(address).To4(), Mask: net.CIDRMask(32, 32)}
}

// inside runs f on a thread of this machine; what f starts stays there.
func (m *machine) inside(t *testing.T, f func() error) {
	t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if m.handle > 0 {
			if err = netns.Set(m.handle); err != nil {
				return
			}
		}
		err = f()
	}()
	<-done
	if err != nil {
		t.Fatal(err)
	}
}

// agent is proa agent on a machine.
type agent struct {
	*machine
	dir string
}

func (a *agent) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, append(args[:len(args):len(args)], "--data-dir", a.dir)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(a.dir, "kubeconfig"))
	return cmd
}

// proa runs a proa command there.
func (a *agent) proa(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	a.inside(t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
		defer cancel()
		var data []byte
		data, err = a.command(ctx, args...).CombinedOutput()
		out = string(data)
		return nil
	})
	return out, err
}

func (a *agent) pid(t *testing.T) int {
	t.Helper()
	out, _ := a.proa(t, "status")
	found := regexp.MustCompile(`pid (\d+)`).FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("no agent runs:\n%s", out)
	}
	var pid int
	fmt.Sscan(found[1], &pid)
	return pid
}

const other = "e2e-other" // name of the node that joins

// joinCommand makes a token and returns the words of the command to join with it.
func joinCommand(t *testing.T) []string {
	t.Helper()
	out, err := shared.proa("token", "create", "--print-join-command")
	words := strings.Fields(out)
	if err != nil || len(words) < 2 || words[0] != "proa" {
		t.Fatalf("%v\n%s", err, out)
	}
	return words[1:]
}

func serverAddress(t *testing.T) string {
	t.Helper()
	return shared.kubectl(t, "get", "nodes", "-o", `jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`)
}

// A node on another host joins the shared cluster, takes pods, and goes.
func TestANodeJoins(t *testing.T) {
	server := serverAddress(t)
	a := &agent{machine: newMachine(t, server), dir: filepath.Join(t.TempDir(), "agent")}
	ours := func() []string {
		sum := sha256.Sum256([]byte(a.dir))
		return slices.DeleteFunc(host(t, a.dir), func(line string) bool {
			return !strings.Contains(line, a.dir) && !strings.Contains(line, hex.EncodeToString(sum[:4]))
		})
	}
	if out, err := a.proa(t, append(joinCommand(t), "--node-name", other, "--detach")...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(a.dir, "logs", "proa.log"))
			t.Logf("log of the agent:\n%s", log)
		}
		if out, err := a.proa(t, "down", "--delete"); err != nil {
			t.Errorf("proa down --delete: %v\n%s", err, out)
		}
		shared.tryKubectl("", "delete", "node", other, "--ignore-not-found")
		if left := ours(); len(left) > 0 {
			t.Errorf("left on the host:\n%s", strings.Join(left, "\n"))
		}
		a.inside(t, func() error {
			routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
			for _, r := range routes {
				if r.Dst != nil && r.Dst.String() != "0.0.0.0/0" && r.Dst.String() != single(server).String() {
					t.Errorf("route on the other host: %s", r)
				}
			}
			return err
		})
	})
	if out, err := a.proa(t, "image", "load", imageFile("testserver")); err != nil {
		t.Fatalf("load image: %v\n%s", err, out)
	}
	ns := shared.namespace(t)
	t.Run("and is Ready", func(t *testing.T) {
		shared.kubectl(t, "wait", "--for=condition=Ready", "node/"+other, "--timeout=30s")
		shared.kubectl(t, "wait", "--for=jsonpath={.status.conditions[?(@.type=='NetworkUnavailable')].status}=False", "node/"+other, "--timeout=30s")
		if out, err := a.proa(t, "status"); err != nil || !strings.Contains(out, "node "+other) {
			t.Errorf("proa status: %v\n%s", err, out)
		}
	})
	t.Run("and is told apart from a cluster of its own", func(t *testing.T) {
		if out, err := a.proa(t, "up"); err == nil || !strings.Contains(out, "data directory of an agent") {
			t.Errorf("proa up: %v\n%s", err, out)
		}
	})
	t.Run("and tells its configuration and health", func(t *testing.T) {
		eventually(t, 20*time.Second, func() error { // the serving certificate is asked for after the node is Ready
			out, stderr, err := shared.tryKubectl("", "get", "--raw", "/api/v1/nodes/"+other+"/proxy/configz")
			if err != nil || !strings.Contains(out, `"KubeletConfiguration"`) || !strings.Contains(out, `"maxPods":110`) {
				return fmt.Errorf("configz: %v\n%s%s", err, out, stderr)
			}
			return nil
		})
		if out := shared.kubectl(t, "get", "--raw", "/api/v1/nodes/"+other+"/proxy/healthz"); out != "ok" {
			t.Errorf("healthz: %q", out)
		}
	})
	t.Run("and may only what a node may", func(t *testing.T) { nodeMay(t, a) })
	if len(ours()) == 0 {
		t.Error("what a node leaves is not recognised")
	}
	shared.apply(t, twoNodes(ns))
	shared.kubectl(t, "rollout", "status", "-n", ns, "daemonset/web", "--timeout=60s")
	shared.kubectl(t, "wait", "-n", ns, "--for=condition=Ready", "pod", "-l", "app=client", "--timeout=60s")
	t.Run("and its pods and those of others reach each other", func(t *testing.T) { reachEachOther(t, ns) })
	t.Run("and a node's own network reaches the pods of every node", func(t *testing.T) { hostReachesPods(t, ns) })
	t.Run("and shows logs and runs commands", func(t *testing.T) {
		pod := podOn(t, ns, "app=client", other)
		getFrom(t, ns, "here", podIP(t, ns, pod)+":8080/log?line=from+a+test")
		eventually(t, 20*time.Second, func() error { // the serving certificate is asked for after the node is Ready
			if out, stderr, err := shared.tryKubectl("", "logs", "-n", ns, pod); err != nil || !strings.Contains(out, "from a test") {
				return fmt.Errorf("logs: %v\n%s%s", err, out, stderr)
			}
			return nil
		})
		if out := shared.kubectl(t, "exec", "-n", ns, pod, "--", "/testserver", "uid"); out != "0\n" {
			t.Errorf("exec: %q", out)
		}
	})
	t.Run("and keeps its containers over kill -9", func(t *testing.T) { survives(t, a, ns) })
}

// twoNodes is a DaemonSet that serves, a Service of it, and a client on every
// node. The clients write a line to their log and serve, too.
func twoNodes(ns string) string {
	client := func(name, node string) string {
		return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {app: client}}
spec:
  terminationGracePeriodSeconds: 0
  nodeName: %s
  containers: [{name: c, image: "proa.dev/testserver:1"}]
`, name, ns, node)
	}
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: proa.dev/testserver:1
        readinessProbe: {httpGet: {port: 8080, path: /readyz}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: %[1]s}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`, ns) + client("here", shared.nodeName()) + client("there", other)
}

// nodeName is the name of the server's own node.
func (c *cluster) nodeName() string {
	out, _, _ := c.tryKubectl("", "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
	names := slices.DeleteFunc(strings.Fields(out), func(name string) bool { return name == other })
	return strings.Join(names, " ")
}

func podOn(t *testing.T, ns, selector, node string) string {
	t.Helper()
	return shared.kubectl(t, "get", "pod", "-n", ns, "-l", selector, "--field-selector", "spec.nodeName="+node, "-o", "jsonpath={.items[0].metadata.name}")
}

func podIP(t *testing.T, ns, pod string) string {
	t.Helper()
	return shared.kubectl(t, "get", "pod", "-n", ns, pod, "-o", "jsonpath={.status.podIP}")
}

// getFrom gets a URL from within a pod.
func getFrom(t *testing.T, ns, pod, url string) string {
	t.Helper()
	return strings.TrimSpace(shared.kubectl(t, "exec", "-n", ns, pod, "--", "/testserver", "get", "-timeout", "15s", "http://"+url))
}

func reachEachOther(t *testing.T, ns string) {
	webHere, webThere := podOn(t, ns, "app=web", shared.nodeName()), podOn(t, ns, "app=web", other)
	clusterIP := shared.kubectl(t, "get", "service", "-n", ns, "web", "-o", "jsonpath={.spec.clusterIP}")
	for _, way := range []struct{ from, to string }{{"here", webThere}, {"there", webHere}} {
		t.Run(way.from+" by pod IP", func(t *testing.T) {
			server := podIP(t, ns, way.to) + ":8080"
			if got := getFrom(t, ns, way.from, server); got != way.to {
				t.Errorf("answer of %q, want %q", got, way.to)
			}
			if from, _, _ := strings.Cut(getFrom(t, ns, way.from, server+"/client"), ":"); from != podIP(t, ns, way.from) {
				t.Errorf("seen as %s: pods meet with their own addresses", from)
			}
		})
		for _, name := range []string{clusterIP, "web", "web." + ns + ".svc.cluster.local"} {
			t.Run(way.from+" by "+name, func(t *testing.T) {
				seen := map[string]bool{}
				for range 30 { // by chance one of two: both come up
					if seen[getFrom(t, ns, way.from, name)] = true; seen[webHere] && seen[webThere] {
						return
					}
				}
				t.Errorf("saw %v", seen)
			})
		}
	}
}

// The host of the server's node reaches the pods of both nodes.
func hostReachesPods(t *testing.T, ns string) {
	for _, node := range []string{shared.nodeName(), other} {
		pod := podOn(t, ns, "app=web", node)
		ip := podIP(t, ns, pod)
		resp, err := (&http.Client{Timeout: 5 * time.Second}).Get("http://" + ip + ":8080/hostname")
		if err != nil {
			t.Errorf("pod on %s over HTTP: %v", node, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got := strings.TrimSpace(string(body)); err != nil || got != pod {
			t.Errorf("pod on %s over HTTP: %q, %v", node, got, err)
		}
		conn, err := net.Dial("udp", ip+":9001")
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		answer := make([]byte, 64)
		n := 0
		if _, err = conn.Write([]byte("hello")); err == nil {
			n, err = conn.Read(answer)
		}
		if conn.Close(); err != nil || string(answer[:n]) != "hello" {
			t.Errorf("pod on %s over UDP: %q, %v", node, answer[:n], err)
		}
	}
}

// nodeMay asks the API as the node: its identity is that of one node.
func nodeMay(t *testing.T, a *agent) {
	kubectl := func(args ...string) (string, error) {
		var out []byte
		var err error
		a.inside(t, func() error {
			cmd := exec.Command(binary, append([]string{"kubectl", "--kubeconfig", filepath.Join(a.dir, "kubeconfig")}, args...)...)
			out, err = cmd.CombinedOutput()
			return nil
		})
		return string(out), err
	}
	if out, err := kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); err != nil || out != "system:node:"+other {
		t.Errorf("it is %q, %v", out, err)
	}
	for _, args := range [][]string{
		{"get", "secrets", "-A"},
		{"delete", "node", shared.nodeName()},
		{"label", "node", shared.nodeName(), "a=b"},
		{"create", "token", "default"},
		{"taint", "node", other, "a=b:NoSchedule"},
	} {
		if out, err := kubectl(args...); err == nil || !strings.Contains(out, "orbidden") {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// survives kills the agent and starts it again, without its token.
func survives(t *testing.T, a *agent, ns string) {
	const path = "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}"
	before := shared.kubectl(t, "get", "pod", "-n", ns, "there", "-o", path)
	pid := a.pid(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() error {
		if err := unix.Kill(pid, 0); err == nil && !zombie(pid) {
			return fmt.Errorf("process %d is still there", pid)
		}
		return nil
	})
	if out, err := a.proa(t, "agent", "--detach"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := getFrom(t, ns, "there", podIP(t, ns, "here")+":8080"); got != "here" {
		t.Errorf("answer of %q", got)
	}
	if after := shared.kubectl(t, "get", "pod", "-n", ns, "there", "-o", path); after != before {
		t.Errorf("container %s became %s", before, after)
	}
}

func zombie(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(state), ") Z ")
}

func TestJoiningSaysWhatIsWrong(t *testing.T) {
	words := joinCommand(t)
	server, token, pin := words[2], words[4], words[6]
	id, _, _ := strings.Cut(token, ".")
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"no server", []string{"--token", token}, "--server"},
		{"an address that is none", []string{"--server", "10.0.0.1:6443", "--token", token}, "want an address such as https://"},
		{"no token", []string{"--server", server}, "it needs a token to join"},
		{"a malformed token", []string{"--server", server, "--token", "abc"}, `the bootstrap token "abc" was not of the form "\\A([a-z0-9]{6})\\.([a-z0-9]{16})\\z"`},
		{"an unknown token", []string{"--server", server, "--token", "000000.0123456789abcdef"}, `could not find a JWS signature in the cluster-info ConfigMap for token ID "000000"`},
		{"a wrong secret", []string{"--server", server, "--token", id + ".0123456789abcdef", "--token-ca-cert-hash", pin}, "failed to verify JWS signature of received cluster info object, can't trust this API Server"},
		{"a wrong hash", []string{"--server", server, "--token", token, "--token-ca-cert-hash", "sha256:" + strings.Repeat("0", 64)}, "none of the public keys"},
		{"a malformed hash", []string{"--server", server, "--token", token, "--token-ca-cert-hash", "md5:1"}, "invalid public key hash"},
		{"nobody there", []string{"--server", fmt.Sprintf("https://127.0.0.1:%d", freePort()), "--token", token}, "connection refused"},
		{"a name that is taken", []string{"--server", server, "--token", token, "--node-name", shared.nodeName()}, "already exists in the cluster"},
		{"an unknown flag", []string{"--sever", server}, "unknown flag: --sever"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "agent")
			args := append([]string{"agent", "--data-dir", dir, "--kubelet-port", fmt.Sprint(freePort())}, test.args...)
			cmd := exec.Command(binary, args...)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), test.want) {
				t.Errorf("%v, want %q\n%s", err, test.want, out)
			}
			if out, err := exec.Command(binary, "down", "--delete", "--data-dir", dir).CombinedOutput(); err != nil {
				t.Errorf("down: %v\n%s", err, out)
			}
		})
	}
}

func TestTokens(t *testing.T) {
	proa := func(args ...string) string {
		out, err := shared.proa(append([]string{"token"}, args...)...)
		if err != nil {
			return "error: " + out
		}
		return out
	}
	if out := proa("create", "e2etok.0123456789abcdef", "--ttl", "1h", "--description", "of a test"); out != "e2etok.0123456789abcdef\n" {
		t.Fatalf("create: %s", out)
	}
	if out := proa("create", "e2etok.0123456789abcdef"); !strings.Contains(out, `a token with id "e2etok" already exists`) {
		t.Errorf("create again: %s", out)
	}
	if out := proa("list"); !regexp.MustCompile(`e2etok\.0123456789abcdef +(59m|60m|1h) .*authentication,signing +of a test +system:bootstrappers:kubeadm:default-node-token`).MatchString(out) {
		t.Errorf("list: %s", out)
	}
	for args, want := range map[string]string{
		"create xyz":                     "was not of the form",
		"create --usages nothing":        "invalid bootstrap token usage string: nothing",
		"create --groups system:masters": `bootstrap group "system:masters" is invalid`,
		"delete x":                       "given token didn't match pattern",
		"delete 000000":                  `there is no bootstrap token "000000"`,
		"create --ttl -1h":               "cannot live for -1h",
	} {
		if out := proa(strings.Fields(args)...); !strings.HasPrefix(out, "error: ") || !strings.Contains(out, want) {
			t.Errorf("token %s: %s, want %q", args, out, want)
		}
	}
	if out := proa("delete", "e2etok"); !strings.Contains(out, `bootstrap token "e2etok" deleted`) {
		t.Errorf("delete: %s", out)
	}
	if out := proa("list"); strings.Contains(out, "e2etok") {
		t.Errorf("list after delete: %s", out)
	}
}

// A control plane alone has no node, and the ranges, the token and the kubeconfig
// that it was started with.
func TestServerWithoutNode(t *testing.T) {
	c := &cluster{dir: filepath.Join(t.TempDir(), "server"), port: freePort()}
	copied := filepath.Join(t.TempDir(), "kubeconfig")
	cmd := c.command(context.Background(), "server", "--no-node", "--port", fmt.Sprint(c.port), "--bind-address", "127.0.0.1",
		"--cluster-cidr", "10.231.0.0/16", "--service-cidr", "10.232.0.0/16", "--token", "abcdef.0123456789abcdef", "--write-kubeconfig", copied)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("proa server: %v", err)
		}
		if out, err := c.proa("down", "--delete"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	eventually(t, 20*time.Second, func() error {
		_, stderr, err := c.tryKubectl("", "get", "configmap", "cluster-info", "-n", "kube-public", "-o", "jsonpath={.data.jws-kubeconfig-abcdef}")
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	})
	if out := c.kubectl(t, "get", "nodes", "-o", "name"); out != "" {
		t.Errorf("nodes: %s", out)
	}
	if out := c.kubectl(t, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"); out != "10.232.0.1" {
		t.Errorf("service range: %s", out)
	}
	mine, err := os.ReadFile(c.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err := os.ReadFile(copied); err != nil || string(theirs) != string(mine) {
		t.Errorf("copy of the kubeconfig: %v", err)
	}
}
