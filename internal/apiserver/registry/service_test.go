package registry

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"proa/internal/store"
)

func service(name string, change ...func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}
	for _, f := range change {
		f(&s.Spec)
	}
	return s
}

func nodePort(port int32) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, port }
}

func clusterIP(ip string) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.ClusterIP = ip }
}

// addresses are the IPAddress objects, which are the addresses in use.
func (w *world) addresses() []string {
	var ips []string
	w.store.Snapshot().Range(schema.GroupResource{Group: networkingv1.GroupName, Resource: "ipaddresses"}, "", store.Key{}, func(i *store.Item) bool {
		ips = append(ips, i.Key.Name)
		return true
	})
	return ips
}

func TestClusterIPs(t *testing.T) {
	w := newWorld(t)
	a := w.create(services, service("a")).(*corev1.Service)
	if !netip.MustParsePrefix("10.96.0.0/12").Contains(netip.MustParseAddr(a.Spec.ClusterIP)) ||
		!slices.Equal(a.Spec.ClusterIPs, []string{a.Spec.ClusterIP}) || a.Spec.IPFamilies[0] != corev1.IPv4Protocol ||
		*a.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack {
		t.Fatalf("spec %+v", a.Spec)
	}
	if got := w.addresses(); !slices.Equal(got, []string{a.Spec.ClusterIP}) {
		t.Errorf("addresses in use %v", got)
	}
	_, err := w.admin.Create(w.ctx, in(services, ""), service("b", clusterIP(a.Spec.ClusterIP)), metav1.CreateOptions{})
	wantError(t, err, `spec.clusterIPs: Invalid value: ["`+a.Spec.ClusterIP+`"]: failed to allocate IP `+a.Spec.ClusterIP+`: provided IP is already allocated`)
	_, err = w.admin.Create(w.ctx, in(services, ""), service("b", clusterIP("192.168.1.1")), metav1.CreateOptions{})
	wantError(t, err, "the provided IP (192.168.1.1) is not in the valid range. The range of valid IPs is 10.96.0.0/12")

	h := w.create(services, service("h", clusterIP("None"))).(*corev1.Service)
	if !slices.Equal(h.Spec.ClusterIPs, []string{"None"}) {
		t.Errorf("headless: %v", h.Spec.ClusterIPs)
	}
	if _, err := w.patch(services, "a", types.MergePatchType, `{"spec":{"type":"ExternalName","externalName":"example.com"}}`); err != nil {
		t.Fatal(err)
	}
	if got := w.addresses(); len(got) != 0 {
		t.Errorf("an ExternalName service holds %v", got)
	}
	if _, err := w.patch(services, "a", types.MergePatchType, `{"spec":{"type":"ClusterIP","externalName":null}}`); err != nil {
		t.Fatal(err)
	}
	if got := w.addresses(); len(got) != 1 {
		t.Errorf("addresses in use %v", got)
	}
	w.delete(t, services, "a", metav1.DeleteOptions{})
	if got := w.addresses(); len(got) != 0 {
		t.Errorf("a deleted service holds %v", got)
	}
}

func TestDualStack(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/112")}
	})
	policy := corev1.IPFamilyPolicyPreferDualStack
	s := w.create(services, service("a", func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = &policy })).(*corev1.Service)
	if len(s.Spec.ClusterIPs) != 2 || len(w.addresses()) != 2 {
		t.Fatalf("clusterIPs %v", s.Spec.ClusterIPs)
	}
	if _, err := w.patch(services, "a", types.MergePatchType, `{"spec":{"ipFamilyPolicy":"SingleStack"}}`); err != nil {
		t.Fatal(err)
	}
	if got := w.addresses(); len(got) != 1 {
		t.Errorf("addresses in use after the downgrade: %v", got)
	}
}

func TestNodePorts(t *testing.T) {
	w := newWorld(t)
	a := w.create(services, service("a", nodePort(0))).(*corev1.Service)
	if p := a.Spec.Ports[0].NodePort; p < 30000 || p > 32767 {
		t.Fatalf("node port %d", p)
	}
	w.create(services, service("b", nodePort(30000)))
	_, err := w.admin.Create(w.ctx, in(services, ""), service("c", nodePort(30000)), metav1.CreateOptions{})
	wantError(t, err, "spec.ports[0].nodePort: Invalid value: 30000: provided port is already allocated")
	_, err = w.admin.Create(w.ctx, in(services, ""), service("c", nodePort(80)), metav1.CreateOptions{})
	wantError(t, err, "provided port is not in the valid range. The range of valid ports is 30000-32767")
	if _, err := w.patch(services, "b", types.MergePatchType, `{"spec":{"type":"ClusterIP"}}`); err != nil {
		t.Fatal(err)
	}
	if p := w.get(services, "b").(*corev1.Service).Spec.Ports[0].NodePort; p != 0 {
		t.Errorf("a ClusterIP service has node port %d", p)
	}
	w.create(services, service("c", nodePort(30000)))
	w.delete(t, services, "c", metav1.DeleteOptions{})
	w.create(services, service("d", nodePort(30000)))
}

func TestServicesOfTwoServersNeverShare(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/26")}
		c.NodePortRange = utilnet.PortRange{Base: 30000, Size: 60}
	})
	second, err := New(w.config)
	if err != nil {
		t.Fatal(err)
	}
	apis := []*Registry{w.Registry, second}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			s := service("", nodePort(0))
			s.GenerateName = "s-"
			if _, err := apis[i%2].As(system).Create(w.ctx, in(services, ""), s, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	list, err := w.admin.List(w.ctx, in(services, ""), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[any]bool{}
	for _, obj := range list.Items {
		s := obj.(*corev1.Service)
		for _, k := range []any{s.Spec.ClusterIP, s.Spec.Ports[0].NodePort} {
			if seen[k] {
				t.Errorf("%v was given out twice", k)
			}
			seen[k] = true
		}
	}
	if len(seen) != 80 {
		t.Errorf("%d addresses and ports for 40 services", len(seen))
	}
}

func TestBootstrapIsIdempotent(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.AdvertiseAddress = netip.MustParseAddr("192.0.2.7") })
	if err := w.Bootstrap(w.ctx); err != nil {
		t.Fatal(err)
	}
	svc := w.get(services, "kubernetes").(*corev1.Service)
	if svc.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("kubernetes service at %s", svc.Spec.ClusterIP)
	}
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		w.get(namespaces, name)
	}
	before := w.store.Revision()
	if err := w.Bootstrap(w.ctx); err != nil || w.store.Revision() != before {
		t.Errorf("a second bootstrap wrote, or failed: %v", err)
	}
}
