package workloads

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func newService(name string, change ...func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	for _, f := range change {
		f(&s.Spec)
	}
	return s
}

func (c *cluster) service(name string, change ...func(*corev1.ServiceSpec)) (*corev1.Service, error) {
	return c.CoreV1().Services(ns).Create(c.ctx, newService(name, change...), metav1.CreateOptions{})
}

func withIP(ip string) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.ClusterIP = ip }
}

func withNodePort(port int32) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, port }
}

// measured checks lines of /metrics.
func (c *cluster) measured(lines ...string) {
	c.t.Helper()
	page := string(must(c.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(c.ctx))(c))
	for _, line := range lines {
		if !strings.Contains("\n"+page, "\n"+line+"\n") {
			name, _, _ := strings.Cut(line, " ")
			name, _, _ = strings.Cut(name, "{")
			var like []string
			for l := range strings.Lines(page) {
				if strings.HasPrefix(l, name) {
					like = append(like, l)
				}
			}
			c.t.Errorf("not measured: %s, but\n%s", line, strings.Join(like, ""))
		}
	}
}

func TestServicesNeverShareAnAddress(t *testing.T) {
	c := start(t, 0)
	free := must(c.service("free"))(c)
	if !netip.MustParsePrefix("10.0.0.0/24").Contains(netip.MustParseAddr(free.Spec.ClusterIP)) {
		t.Errorf("address %s", free.Spec.ClusterIP)
	}
	if s := must(c.CoreV1().Services(ns).Get(c.ctx, "kubernetes", metav1.GetOptions{}))(c); s.Spec.ClusterIP != "10.0.0.1" {
		t.Errorf("kubernetes has %s", s.Spec.ClusterIP)
	}
	if r := must(c.NetworkingV1().ServiceCIDRs().Get(c.ctx, "kubernetes", metav1.GetOptions{}))(c); len(r.Spec.CIDRs) != 1 || r.Spec.CIDRs[0] != "10.0.0.0/24" {
		t.Errorf("the default range is %v", r.Spec.CIDRs)
	}
	if s := must(c.service("wished", withIP("10.0.0.9")))(c); s.Spec.ClusterIP != "10.0.0.9" || s.Spec.ClusterIPs[0] != "10.0.0.9" {
		t.Errorf("wished for 10.0.0.9, got %v", s.Spec.ClusterIPs)
	}
	for _, taken := range []string{free.Spec.ClusterIP, "10.0.0.9", "10.0.0.1"} {
		_, err := c.service("second", withIP(taken))
		c.refused(err, "failed to allocate IP "+taken+": provided IP is already allocated")
	}
	_, err := c.service("outside", withIP("192.0.2.1"))
	c.refused(err, "The range of valid IPs is 10.0.0.0/24")
	if s := must(c.service("headless", withIP("None")))(c); s.Spec.ClusterIP != "None" {
		t.Errorf("headless has %s", s.Spec.ClusterIP)
	}
	_, err = c.CoreV1().Services(ns).Patch(c.ctx, "wished", types.MergePatchType, []byte(`{"spec":{"clusterIP":"10.0.0.10","clusterIPs":["10.0.0.10"]}}`), metav1.PatchOptions{})
	c.refused(err, "may not change once set")
	c.ok(c.CoreV1().Services(ns).Delete(c.ctx, "wished", metav1.DeleteOptions{}))
	must(c.service("second", withIP("10.0.0.9")))(c)
}

// KEP-3070: who asks for an address finds the first sixteen of a /24 free until the
// others are gone.
func TestTheFirstAddressesAreLeftToThoseWhoAsk(t *testing.T) {
	c := start(t, 0)
	low := func(s *corev1.Service) bool {
		return netip.MustParseAddr(s.Spec.ClusterIP).Less(netip.MustParseAddr("10.0.0.17"))
	}
	for i := range 200 {
		if s := must(c.service(fmt.Sprint("s", i)))(c); low(s) {
			t.Errorf("%s has %s", s.Name, s.Spec.ClusterIP)
		}
	}
	must(c.service("asks", withIP("10.0.0.7")))(c)
	c.measured(
		`kube_apiserver_clusterip_allocator_allocation_total{cidr="10.0.0.0/24",scope="dynamic"} 200`,
		`kube_apiserver_clusterip_allocator_allocation_total{cidr="10.0.0.0/24",scope="static"} 2`, // with the Service kubernetes
		`kube_apiserver_clusterip_allocator_allocated_ips{cidr="10.0.0.0/24"} 202`,
		`kube_apiserver_clusterip_allocator_available_ips{cidr="10.0.0.0/24"} 52`,
	)
	for i := range 38 {
		if s := must(c.service(fmt.Sprint("t", i)))(c); low(s) {
			t.Errorf("%s has %s", s.Name, s.Spec.ClusterIP)
		}
	}
	if s := must(c.service("late"))(c); !low(s) {
		t.Errorf("the range has nothing but its first addresses, and the Service %s", s.Spec.ClusterIP)
	}
	_, err := c.service("asks-too", withIP("10.0.0.7"))
	c.refused(err, "already allocated")
	c.measured(`kube_apiserver_clusterip_allocator_allocation_errors_total{cidr="10.0.0.0/24",scope="static"} 1`)
}

// KEP-3668.
func TestTheFirstNodePortsAreLeftToThoseWhoAsk(t *testing.T) {
	c := start(t, 0)
	for i := range 100 {
		if s := must(c.service(fmt.Sprint("s", i), withNodePort(0)))(c); s.Spec.Ports[0].NodePort < 30086 || s.Spec.Ports[0].NodePort > 32767 {
			t.Errorf("%s has %d", s.Name, s.Spec.Ports[0].NodePort)
		}
	}
	must(c.service("first", withNodePort(30000)))(c)
	must(c.service("last", withNodePort(30085)))(c)
	_, err := c.service("second", withNodePort(30000))
	c.refused(err, "provided port is already allocated")
	c.measured(
		`kube_apiserver_nodeport_allocator_allocation_total{scope="dynamic"} 100`,
		`kube_apiserver_nodeport_allocator_allocation_total{scope="static"} 2`,
		`kube_apiserver_nodeport_allocator_allocation_errors_total{scope="static"} 1`,
		`kube_apiserver_nodeport_allocator_allocated_ports 102`,
		`kube_apiserver_nodeport_allocator_available_ports 2666`,
	)
	dry := newService("dry", withNodePort(30001))
	must(c.CoreV1().Services(ns).Create(c.ctx, dry, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))(c)
	c.measured(`kube_apiserver_nodeport_allocator_allocation_total{scope="static"} 2`, `kube_apiserver_nodeport_allocator_allocated_ports 102`)
}

// KEP-1880: what users did to IPAddresses is undone.
func TestAddressesOfServicesAreRepaired(t *testing.T) {
	c := start(t, 0)
	ips := c.NetworkingV1().IPAddresses()
	must(c.service("web", withIP("10.0.0.9")))(c)
	c.ok(ips.Delete(c.ctx, "10.0.0.9", metav1.DeleteOptions{}))
	l := until(c, ips, named("10.0.0.9"), func(l *networkingv1.IPAddressList) error { return want("addresses", len(l.Items), 1) })
	if ref := l.Items[0].Spec.ParentRef; ref.Resource != "services" || ref.Namespace != ns || ref.Name != "web" {
		t.Errorf("made again for %+v", ref)
	}
	c.event("web", "ClusterIPNotAllocated", "Cluster IP [IPv4]: 10.0.0.9 is not allocated; repairing")

	orphan := l.Items[0].DeepCopy()
	orphan.ObjectMeta = metav1.ObjectMeta{Name: "10.0.0.10", Labels: l.Items[0].Labels}
	must(ips.Create(c.ctx, orphan, metav1.CreateOptions{}))(c)
	gone(c, ips, named("10.0.0.10"), func(l *networkingv1.IPAddressList) int { return len(l.Items) })
	c.event("10.0.0.10", "IPAddressWrongReference", "IPAddress: 10.0.0.10 for Service default/web has a wrong reference; cleaning up")
	must(c.service("second", withIP("10.0.0.10")))(c)
}

// KEP-1959.
func TestTheClassOfALoadBalancer(t *testing.T) {
	c := start(t, 0)
	services := c.CoreV1().Services(ns)
	class := func(name string) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) { s.LoadBalancerClass = &name }
	}
	balancer := func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }
	_, err := c.service("no", class("example.com/x"))
	c.refused(err, "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'")
	_, err = c.service("no", balancer, class("not/a/name"))
	c.refused(err, "spec.loadBalancerClass: Invalid value")
	must(c.service("web", balancer, class("example.com/x")))(c)
	patch := func(body string) (*corev1.Service, error) {
		return services.Patch(c.ctx, "web", types.MergePatchType, []byte(body), metav1.PatchOptions{})
	}
	_, err = patch(`{"spec":{"loadBalancerClass":"example.com/y"}}`)
	c.refused(err, "may not change once set")
	_, err = patch(`{"spec":{"loadBalancerClass":null}}`)
	c.refused(err, "may not change once set")
	if s := must(patch(`{"spec":{"type":"ClusterIP"}}`))(c); s.Spec.LoadBalancerClass != nil {
		t.Errorf("a ClusterIP Service has the class %s", *s.Spec.LoadBalancerClass)
	}
	if s := must(patch(`{"spec":{"type":"LoadBalancer","loadBalancerClass":"example.com/y"}}`))(c); *s.Spec.LoadBalancerClass != "example.com/y" {
		t.Errorf("class %s", *s.Spec.LoadBalancerClass)
	}
}

// KEP-1860: how packets for the address of a load balancer arrive.
func TestTheModeOfALoadBalancersAddress(t *testing.T) {
	c := start(t, 0)
	must(c.service("web", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }))(c)
	must(c.service("inner"))(c)
	patch := func(name, ingress string) (*corev1.Service, error) {
		body := `{"status":{"loadBalancer":{"ingress":[` + ingress + `]}}}`
		return c.CoreV1().Services(ns).Patch(c.ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, "status")
	}
	mode := func(s *corev1.Service) string { return string(*s.Status.LoadBalancer.Ingress[0].IPMode) }
	if m := mode(must(patch("web", `{"ip":"192.0.2.7"}`))(c)); m != "VIP" {
		t.Errorf("an address without a mode has %s", m)
	}
	if m := mode(must(patch("web", `{"ip":"192.0.2.7","ipMode":"Proxy"}`))(c)); m != "Proxy" {
		t.Errorf("mode %s", m)
	}
	const path = "status.loadBalancer.ingress[0].ipMode: "
	_, err := patch("web", `{"hostname":"lb.example.com","ipMode":"VIP"}`)
	c.refused(err, path+"Forbidden: may not be specified when `ip` is not set")
	_, err = patch("web", `{"ip":"192.0.2.7","ipMode":"Mirror"}`)
	c.refused(err, path+"Unsupported value: \"Mirror\"")
	_, err = patch("inner", `{"ip":"192.0.2.7"}`)
	c.refused(err, "may only be used when `spec.type` is 'LoadBalancer'")
	if s := must(patch("web", `{"hostname":"lb.example.com"}`))(c); s.Status.LoadBalancer.Ingress[0].IPMode != nil {
		t.Error("a name has a mode")
	}
}
