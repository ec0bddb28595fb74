package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/network/dns"
	"proa/internal/network/nettest"
)

// childVariable marks the process that runs in network and mount namespaces of its own.
const childVariable = "PROA_NETWORK_TEST_CHILD"

// TestNode runs the whole network of a node, with the real CNI plugins if they
// are built, in a process that has a network namespace to itself.
func TestNode(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		testNode(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestNode$", "-test.v")
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("no network namespaces here: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if bytes.Contains(out, []byte("--- SKIP")) {
		t.Skipf("%s", out)
	}
}

func testNode(t *testing.T) {
	plugins := filepath.Join("..", "..", "build", "payload", "bin")
	if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
		t.Skipf("CNI plugins are not built: %v", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	remains := Remains{Bridge: "proatest", Table: "proa-test", CNIDir: filepath.Join(dir, "cni"), StateDir: filepath.Join(dir, "state")}
	api := nettest.API(t)
	nettest.Create(t, api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	nettest.Namespaces(t, api, "default", "kube-system")
	t.Run("runs", func(t *testing.T) { runNode(t, api, remains, plugins) })
	if err := Remove(remains); err != nil {
		t.Fatal(err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Type() == "veth" || l.Type() == "bridge" {
			t.Errorf("link %s remains", l.Attrs().Name)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("remains: %v, %v", left, err)
	}
	if err := Remove(remains); err != nil {
		t.Errorf("remove again: %v", err)
	}
}

func runNode(t *testing.T, api client.API, remains Remains, plugins string) {
	cache := client.NewCache(api)
	n, err := New(Config{Cache: cache, NodeName: "n1", Bridge: remains.Bridge, Table: remains.Table, CNIDir: remains.CNIDir, StateDir: remains.StateDir,
		PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12"), ResolvConf: filepath.Join(t.TempDir(), "none")})
	if err != nil {
		t.Fatal(err)
	}
	nettest.Run(t, cache.Run)
	if err := cache.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	nettest.Run(t, n.Run)
	if _, err := client.Of[*corev1.Node](api).MergePatch(t.Context(), "", "n1", map[string]any{
		"spec": map[string]any{"podCIDR": "10.244.0.0/24", "podCIDRs": []string{"10.244.0.0/24"}}}); err != nil {
		t.Fatal(err)
	}
	announceDNS(t, api)
	select {
	case <-n.Ready():
	case <-time.After(time.Minute):
		t.Fatal("not ready")
	}
	web := nettest.New(t)
	attach(t, plugins, remains, "web", web)
	pod := nettest.New(t)
	attach(t, plugins, remains, "pod", pod)
	web.Echo("web", 8080)
	nettest.Create(t, api, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.7.7", Ports: []corev1.ServicePort{{Port: 80}}}})
	nettest.Create(t, api, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.2"}, NodeName: ptr.To("n1")}}})

	eventually(t, func() error { return wantAnswer(pod, "10.96.7.7:80", "web 10.244.0.3") })
	eventually(t, func() error { return wantAnswer(web, "10.96.7.7:80", "web 10.244.0.1") })
	eventually(t, func() error { return wantName(pod, "10.96.0.10:53", "web.default.svc.cluster.local.", "10.96.7.7") })
	eventually(t, func() error {
		return wantName(pod, "10.96.0.10:53", "kube-dns.kube-system.svc.cluster.local.", "10.96.0.10")
	})

	if _, err := client.Of[*corev1.Service](api).Delete(t.Context(), "default", "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if answer, err := pod.Ask("tcp4", "10.96.7.7:80"); !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("answer %q, %v", answer, err)
		}
		return nil
	})
}

// announceDNS leads the DNS Service to this node, as the control plane does.
func announceDNS(t *testing.T, api client.API) {
	nettest.Create(t, api, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: dns.Port}, {Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: dns.Port}}}})
	entry := func(name string, proto corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: ptr.To(name), Protocol: ptr.To(proto), Port: ptr.To[int32](dns.Port)}
	}
	nettest.Create(t, api, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns-n1", Labels: map[string]string{discoveryv1.LabelServiceName: "kube-dns"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{entry("dns", corev1.ProtocolUDP), entry("dns-tcp", corev1.ProtocolTCP)},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.1"}, NodeName: ptr.To("n1")}}})
}

// attach runs the CNI plugins for a pod, as the container runtime does.
func attach(t *testing.T, plugins string, remains Remains, id string, pod *nettest.Space) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(remains.CNIDir, "10-proa.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	plugin := list.Plugins[0]
	plugin["cniVersion"], plugin["name"] = list.CNIVersion, list.Name
	input, err := json.Marshal(plugin)
	if err != nil {
		t.Fatal(err)
	}
	plugins, err = filepath.Abs(plugins)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(plugins, plugin["type"].(string)))
	cmd.Stdin = bytes.NewReader(input)
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_PATH=" + plugins,
		fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), pod.FD())}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("CNI: %v\n%s", err, out)
	}
}

// eventually tries until it works: what the test changed reaches the kernel by itself.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

func wantAnswer(from *nettest.Space, address, want string) error {
	got, err := from.Ask("tcp4", address)
	if err == nil && got != want {
		err = fmt.Errorf("answer %q, want %q", got, want)
	}
	return err
}

func wantName(from *nettest.Space, server, name, want string) error {
	return from.Try(func() error {
		for _, network := range []string{"udp4", "tcp4"} {
			c := &mdns.Client{Net: network, Timeout: 5 * time.Second}
			m, _, err := c.Exchange(new(mdns.Msg).SetQuestion(name, mdns.TypeA), server)
			if err != nil {
				return err
			}
			if len(m.Answer) != 1 || !strings.HasSuffix(m.Answer[0].String(), "\t"+want) {
				return fmt.Errorf("%s: %v, want %s", name, m, want)
			}
		}
		return nil
	})
}

func TestConfig(t *testing.T) {
	full := func() Config {
		return Config{Cache: client.NewCache(nettest.API(t)), NodeName: "n1", Bridge: "b", Table: "t", CNIDir: "c", StateDir: "s",
			PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12")}
	}
	n, err := New(full())
	if err != nil {
		t.Fatal(err)
	}
	if n.c.DNSAddress.String() != "10.96.0.10" || n.c.ClusterDomain != "cluster.local" {
		t.Errorf("config %+v", n.c)
	}
	for name, spoil := range map[string]func(*Config){
		"no bridge":         func(c *Config) { c.Bridge = "" },
		"a long bridge":     func(c *Config) { c.Bridge = "sixteen-letters-" },
		"no pod range":      func(c *Config) { c.PodCIDR = netip.Prefix{} },
		"IPv6 services":     func(c *Config) { c.ServiceCIDR = netip.MustParsePrefix("fd00::/108") },
		"a range too small": func(c *Config) { c.NodeCIDR = netip.MustParsePrefix("10.244.0.0/31") },
	} {
		c := full()
		spoil(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
