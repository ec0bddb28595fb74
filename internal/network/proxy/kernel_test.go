package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/network/nettest"
	"proa/internal/network/nft"
	"proa/internal/network/podnet"
)

// cluster is a node with two pods on its bridge, and a machine outside.
type cluster struct {
	t                      *testing.T
	host, web, db, outside *nettest.Space
	state                  *state
	node                   node
	base                   base
}

var (
	nodeIP    = netip.MustParseAddr("192.0.2.1")
	outsideIP = netip.MustParseAddr("192.0.2.9")
	webIP     = netip.MustParseAddr("10.244.0.2")
	dbIP      = netip.MustParseAddr("10.244.0.3")
	podCIDR   = netip.MustParsePrefix("10.244.0.0/16")
	nodeCIDR  = netip.MustParsePrefix("10.244.0.0/24")
	svcCIDR   = netip.MustParsePrefix("10.96.0.0/16")
)

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, host: nettest.New(t), web: nettest.New(t), db: nettest.New(t), outside: nettest.New(t),
		state: newState(), node: node{name: "n1", pods: podCIDR},
		base: base{bridge: "proatest", pods: podCIDR, local: nodeCIDR, services: svcCIDR}}
	dir := t.TempDir()
	pods, err := podnet.New(podnet.Config{Bridge: "proatest", CIDR: nodeCIDR, ServiceCIDR: svcCIDR, CNIDir: dir + "/cni", StateDir: dir + "/state"})
	if err != nil {
		t.Fatal(err)
	}
	c.host.Do(func() error { return pods.SetUp(t.Context()) })
	nettest.Connect(c.host, "uplink", netip.PrefixFrom(nodeIP, 24), c.outside, "eth0", netip.PrefixFrom(outsideIP, 24))
	c.outside.Route(svcCIDR, nodeIP)
	for name, pod := range map[string]struct {
		space *nettest.Space
		ip    netip.Addr
	}{"web": {c.web, webIP}, "db": {c.db, dbIP}} {
		nettest.Connect(c.host, name, netip.Prefix{}, pod.space, "eth0", netip.PrefixFrom(pod.ip, 24))
		c.host.Join(name, "proatest")
		// The routes of podnet's CNI configuration.
		for _, to := range []string{"10.244.0.0/25", "10.244.0.128/25", "0.0.0.0/0"} {
			pod.space.Route(netip.MustParsePrefix(to), pods.Gateway())
		}
		pod.space.Echo(name, 8080)
	}
	b := nft.NewBatch("proa-test")
	c.base.write(b)
	if err := b.Commit(c.host.FD()); err != nil {
		t.Fatal(err)
	}
	return c
}

// apply commits what the objects want.
func (c *cluster) apply(svc *corev1.Service, slices ...*discoveryv1.EndpointSlice) {
	c.t.Helper()
	c.set(ownerService+svc.Name, c.node.planService(svc, slices))
}

func (c *cluster) set(owner string, f *fragment) {
	c.t.Helper()
	stale := datagramChanges(c.state.fragments[owner], f)
	c.state.set(owner, f)
	b := nft.NewBatch("proa-test")
	d := c.state.diff()
	c.state.write(d, b)
	if err := b.Commit(c.host.FD()); err != nil {
		c.t.Fatalf("%v\n%s", err, f.text())
	}
	c.state.committed(d)
	if err := deleteStale(c.host.FD(), stale); err != nil {
		c.t.Fatal(err)
	}
}

func testService(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.20", ClusterIPs: []string{"10.96.0.20"},
			Ports: []corev1.ServicePort{
				{Name: "t", Protocol: corev1.ProtocolTCP, Port: 80},
				{Name: "u", Protocol: corev1.ProtocolUDP, Port: 80},
			}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func onNodePorts(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeNodePort
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 30080
	}
}

func testSlice(ips ...netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{
		{Name: ptr.To("t"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](8080)},
		{Name: ptr.To("u"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To[int32](8080)},
	}}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip.String()}, NodeName: ptr.To("n1"),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
	}
	return s
}

// want asks from a namespace and compares the answer.
func (c *cluster) want(from *nettest.Space, network, address, answer string) {
	c.t.Helper()
	got, err := from.Ask(network, address)
	if err != nil || got != answer {
		c.t.Errorf("%s %s: answer %q, %v; want %q", network, address, got, err, answer)
	}
}

// wantRefused asks for something that must fail at once. The node's own datagrams
// are stopped before they leave the socket, which is another error.
func (c *cluster) wantRefused(from *nettest.Space, network, address string) {
	c.t.Helper()
	got, err := from.Ask(network, address)
	if from == c.host && network == "udp4" && errors.Is(err, syscall.EPERM) {
		return
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		c.t.Errorf("%s %s: answer %q, %v; want connection refused", network, address, got, err)
	}
}

func TestClusterIP(t *testing.T) {
	c := newCluster(t)
	c.apply(testService(), testSlice(dbIP))
	for _, network := range []string{"tcp4", "udp4"} {
		c.want(c.web, network, "10.96.0.20:80", "db 10.244.0.2")     // a neighbour keeps its address
		c.want(c.host, network, "10.96.0.20:80", "db 10.244.0.1")    // the node
		c.want(c.outside, network, "10.96.0.20:80", "db 10.244.0.1") // through the node
		c.want(c.db, network, "10.96.0.20:80", "db 10.244.0.1")      // itself
		c.want(c.web, network, "10.244.0.3:8080", "db 10.244.0.2")   // no Service
		c.wantRefused(c.web, network, "10.96.0.20:81")               // no such port
		c.wantRefused(c.host, network, "10.96.0.99:80")              // no such Service
	}
}

func TestServicesWithoutEndpointsRefuse(t *testing.T) {
	c := newCluster(t)
	c.apply(testService(onNodePorts))
	for _, network := range []string{"tcp4", "udp4"} {
		c.wantRefused(c.web, network, "10.96.0.20:80")
		c.wantRefused(c.host, network, "10.96.0.20:80")
		c.wantRefused(c.outside, network, "192.0.2.1:30080")
		c.wantRefused(c.host, network, "127.0.0.1:30080")
	}
}

func TestNodePort(t *testing.T) {
	c := newCluster(t)
	c.apply(testService(onNodePorts), testSlice(dbIP))
	for _, network := range []string{"tcp4", "udp4"} {
		c.want(c.outside, network, "192.0.2.1:30080", "db 10.244.0.1")
		c.want(c.web, network, "192.0.2.1:30080", "db 10.244.0.1")
		c.want(c.db, network, "192.0.2.1:30080", "db 10.244.0.1")
		c.want(c.host, network, "192.0.2.1:30080", "db 10.244.0.1")
		c.want(c.host, network, "127.0.0.1:30080", "db 10.244.0.1")
	}
}

func TestExternalTrafficPolicyLocal(t *testing.T) {
	c := newCluster(t)
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	c.apply(testService(onNodePorts, local), testSlice(dbIP))
	c.want(c.outside, "tcp4", "192.0.2.1:30080", "db 192.0.2.9") // the client's own address
	c.want(c.web, "tcp4", "192.0.2.1:30080", "db 10.244.0.2")
	c.want(c.host, "tcp4", "127.0.0.1:30080", "db 10.244.0.1")

	elsewhere := testSlice(dbIP)
	elsewhere.Endpoints[0].NodeName = ptr.To("n2")
	c.apply(testService(onNodePorts, local), elsewhere)
	if got, err := c.outside.AskInVain("tcp4", "192.0.2.1:30080"); err == nil {
		t.Errorf("answer %q without a local endpoint", got)
	}
	c.want(c.web, "tcp4", "192.0.2.1:30080", "db 10.244.0.2")
}

func TestLoadBalancer(t *testing.T) {
	c := newCluster(t)
	c.outside.Route(netip.MustParsePrefix("203.0.113.0/24"), nodeIP)
	balancer := func(s *corev1.Service) {
		onNodePorts(s)
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.5"}}
	}
	c.apply(testService(balancer), testSlice(dbIP))
	c.want(c.outside, "tcp4", "203.0.113.5:80", "db 10.244.0.1")
	ranges := func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"} }
	c.apply(testService(balancer, ranges), testSlice(dbIP))
	if got, err := c.outside.AskInVain("tcp4", "203.0.113.5:80"); err == nil {
		t.Errorf("answer %q from outside the source ranges", got)
	}
}

func TestEndpointsAreChosenByChance(t *testing.T) {
	c := newCluster(t)
	c.apply(testService(), testSlice(webIP, dbIP))
	seen := map[string]int{}
	for range 40 {
		answer, err := c.host.Ask("tcp4", "10.96.0.20:80")
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(answer, " ")
		seen[name]++
	}
	if seen["web"] == 0 || seen["db"] == 0 {
		t.Errorf("answers %v, want some of each", seen)
	}
}

func TestSessionAffinity(t *testing.T) {
	c := newCluster(t)
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	c.apply(testService(sticky), testSlice(webIP, dbIP))
	endpoint := func() string {
		t.Helper()
		var first string
		for i := range 20 {
			answer, err := c.outside.Ask("tcp4", "10.96.0.20:80")
			if err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(answer, " ")
			if i > 0 && name != first {
				t.Fatalf("connection %d went to %s, earlier ones to %s", i, name, first)
			}
			first = name
		}
		return first
	}
	ips := map[string]netip.Addr{"web": webIP, "db": dbIP}
	other := map[string]string{"web": "db", "db": "web"}
	first := endpoint()
	// Its endpoint goes: the client moves, and stays when the endpoint is back.
	c.apply(testService(sticky), testSlice(ips[other[first]]))
	if got := endpoint(); got != other[first] {
		t.Fatalf("endpoint %s after %s was removed", got, first)
	}
	c.apply(testService(sticky), testSlice(webIP, dbIP))
	if got := endpoint(); got != other[first] {
		t.Errorf("endpoint %s, want the client to stay at %s", got, other[first])
	}
	// Without affinity both answer; the map goes with it.
	c.apply(testService(), testSlice(webIP, dbIP))
	c.apply(testService(sticky), testSlice(webIP, dbIP))
	endpoint()
}

func TestDatagramsLeaveARemovedEndpoint(t *testing.T) {
	c := newCluster(t)
	c.apply(testService(onNodePorts), testSlice(dbIP))
	for _, address := range []string{"10.96.0.20:80", "192.0.2.1:30080"} {
		c.apply(testService(onNodePorts), testSlice(dbIP))
		conn := c.outside.Socket(address)
		if got, err := nettest.Exchange(conn); err != nil || !strings.HasPrefix(got, "db ") {
			t.Fatalf("answer %q, %v", got, err)
		}
		c.apply(testService(onNodePorts), testSlice(webIP))
		if got, err := nettest.Exchange(conn); err != nil || !strings.HasPrefix(got, "web ") {
			t.Errorf("%s: answer %q, %v; want the endpoint that is left", address, got, err)
		}
	}
}

func TestHostPort(t *testing.T) {
	c := newCluster(t)
	pod := func(name string, ip netip.Addr, hostIP string, port int32) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
				{HostPort: port, HostIP: hostIP, ContainerPort: 8080, Protocol: corev1.ProtocolTCP},
				{HostPort: port, HostIP: hostIP, ContainerPort: 8080, Protocol: corev1.ProtocolUDP}}}}},
			Status: corev1.PodStatus{PodIP: ip.String()}}
	}
	c.set(ownerPod+"web", c.node.planPod(pod("web", webIP, "127.0.0.1", 8081)))
	c.set(ownerPod+"db", c.node.planPod(pod("db", dbIP, "192.0.2.1", 8081)))
	for _, network := range []string{"tcp4", "udp4"} {
		c.want(c.outside, network, "192.0.2.1:8081", "db 192.0.2.9")
		c.want(c.host, network, "127.0.0.1:8081", "web 10.244.0.1")
		c.want(c.db, network, "192.0.2.1:8081", "db 10.244.0.1") // itself
	}
	c.set(ownerPod+"db", c.node.planPod(pod("db", dbIP, "", 8082)))
	c.want(c.outside, "tcp4", "192.0.2.1:8082", "db 192.0.2.9")
	c.wantRefused(c.outside, "tcp4", "192.0.2.1:8081")
}

func TestPodsReachTheWorldAsTheNode(t *testing.T) {
	c := newCluster(t)
	c.outside.Echo("world", 9000)
	c.want(c.web, "tcp4", "192.0.2.9:9000", "world 192.0.2.1")
	c.want(c.web, "udp4", "192.0.2.9:9000", "world 192.0.2.1")
}

func TestRemovedServicesLeaveNothing(t *testing.T) {
	c := newCluster(t)
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	for i := range 3 {
		c.apply(testService(onNodePorts, sticky), testSlice(webIP, dbIP))
		c.apply(testService(onNodePorts), testSlice(webIP))
		c.set(ownerService+"web", nil)
		if len(c.state.kernel)+len(c.state.kernelFirewalls)+len(c.state.balancers)+len(c.state.claims) > 0 {
			t.Fatal(fmt.Sprint("round ", i, ": ", c.state.kernel, c.state.balancers))
		}
	}
	c.wantRefused(c.web, "tcp4", "10.96.0.20:80")
}
