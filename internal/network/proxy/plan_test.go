package proxy

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// slice builds an EndpointSlice of port 8080 from words: an address, then after
// colons its node (n1 is here), "notready", "terminating" or a hinted "zone=Z" or "node=N".
func slice(words ...string) *discoveryv1.EndpointSlice {
	s := testSlice()
	for _, word := range words {
		parts := strings.Split(word, ":")
		e := discoveryv1.Endpoint{Addresses: parts[:1], NodeName: ptr.To("n2"),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)}}
		for _, p := range parts[1:] {
			key, value, hint := strings.Cut(p, "=")
			switch {
			case hint && e.Hints == nil:
				e.Hints = &discoveryv1.EndpointHints{}
				fallthrough
			case hint && key == "zone":
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: value})
			case hint:
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: value})
			case p == "notready":
				e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false)}
			case p == "terminating":
				e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
			default:
				e.NodeName = ptr.To(p)
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func tcpOnly(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] }

func TestPlanService(t *testing.T) {
	internalLocal := func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	externalLocal := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	ingress := func(ips ...corev1.LoadBalancerIngress) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = ips
		}
	}
	tests := []struct {
		name     string
		change   []func(*corev1.Service)
		endpoint []string
		want     string
	}{
		{"one endpoint", nil, []string{"10.1.0.1"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"several endpoints, in order, each once", nil, []string{"10.1.0.2", "10.1.0.1:n1", "10.1.0.2"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			endpoints svc/default/web/tcp/80 . 1 : 10.1.0.2 . 8080
			hairpins 10.1.0.1
			service-ips 10.96.0.20 . tcp . 80 : pick 2 svc/default/web/tcp/80`},
		{"no endpoints", []func(*corev1.Service){onNodePorts}, nil, `
			masquerade-node-ports tcp . 30080
			unserved-ips 10.96.0.20 . tcp . 80
			unserved-node-ports tcp . 30080`},
		{"endpoints that are not ready do not count", nil, []string{"10.1.0.1:notready", "10.1.0.2:terminating", "10.1.0.3"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.3 . 8080
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"terminating ones that serve are the last resort", nil, []string{"10.1.0.1:notready", "10.1.0.2:terminating"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.2 . 8080
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"session affinity", []func(*corev1.Service){func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](60)}}
		}}, []string{"10.1.0.1"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			members svc/default/web/tcp/80 . 10.1.0.1 . 8080
			service-ips 10.96.0.20 . tcp . 80 : pick 1/sticky-60 svc/default/web/tcp/80`},
		{"internal policy Local", []func(*corev1.Service){internalLocal}, []string{"10.1.0.1:n1", "10.1.0.2"}, `
			endpoints loc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			hairpins 10.1.0.1
			service-ips 10.96.0.20 . tcp . 80 : pick 1 loc/default/web/tcp/80`},
		{"internal policy Local without a local endpoint", []func(*corev1.Service){internalLocal}, []string{"10.1.0.2"}, `
			service-ips 10.96.0.20 . tcp . 80 : drop`},
		{"node port", []func(*corev1.Service){onNodePorts}, []string{"10.1.0.1"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			masquerade-node-ports tcp . 30080
			node-ports tcp . 30080 : pick 1 svc/default/web/tcp/80
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"external policy Local", []func(*corev1.Service){onNodePorts, externalLocal}, []string{"10.1.0.1:n1", "10.1.0.2"}, `
			endpoints loc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			endpoints svc/default/web/tcp/80 . 1 : 10.1.0.2 . 8080
			hairpins 10.1.0.1
			node-ports tcp . 30080 : pick 2 svc/default/web/tcp/80
			outside-node-ports tcp . 30080 : pick 1 loc/default/web/tcp/80
			service-ips 10.96.0.20 . tcp . 80 : pick 2 svc/default/web/tcp/80`},
		{"external policy Local without a local endpoint", []func(*corev1.Service){onNodePorts, externalLocal}, []string{"10.1.0.2"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.2 . 8080
			node-ports tcp . 30080 : pick 1 svc/default/web/tcp/80
			outside-node-ports tcp . 30080 : drop
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"load balancer: only addresses that packets keep", []func(*corev1.Service){ingress(
			corev1.LoadBalancerIngress{IP: "192.0.2.7"}, corev1.LoadBalancerIngress{Hostname: "lb.example.com"},
			corev1.LoadBalancerIngress{IP: "192.0.2.8", IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)})}, []string{"10.1.0.1"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			masquerade-ips 192.0.2.7 . tcp . 80
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80
			service-ips 192.0.2.7 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"load balancer's source ranges", []func(*corev1.Service){ingress(corev1.LoadBalancerIngress{IP: "192.0.2.7"}),
			func(s *corev1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{" 198.51.100.7/24", "2001:db8::/32"}
			}}, []string{"10.1.0.1"}, `
			chain fw/default/web/tcp/80 { ip saddr [198.51.100.0/24] return; drop }
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			firewalls 192.0.2.7 . tcp . 80 : fw/default/web/tcp/80
			masquerade-ips 192.0.2.7 . tcp . 80
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80
			service-ips 192.0.2.7 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"external IPs are not served (CVE-2020-8554)", []func(*corev1.Service){func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"192.0.2.7"}
		}}, []string{"10.1.0.1"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"endpoints hinted for this zone", nil, []string{"10.1.0.1:zone=z1", "10.1.0.2:zone=z2"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"hints count only if every endpoint has one", nil, []string{"10.1.0.1:zone=z1", "10.1.0.2"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.1 . 8080
			endpoints svc/default/web/tcp/80 . 1 : 10.1.0.2 . 8080
			service-ips 10.96.0.20 . tcp . 80 : pick 2 svc/default/web/tcp/80`},
		{"hints for this node come before its zone's", nil, []string{"10.1.0.1:zone=z1:node=n2", "10.1.0.2:zone=z1:node=n1"}, `
			endpoints svc/default/web/tcp/80 . 0 : 10.1.0.2 . 8080
			service-ips 10.96.0.20 . tcp . 80 : pick 1 svc/default/web/tcp/80`},
		{"headless", []func(*corev1.Service){func(s *corev1.Service) { s.Spec.ClusterIP = "None" }}, []string{"10.1.0.1"}, ""},
		{"external name", []func(*corev1.Service){func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }}, []string{"10.1.0.1"}, ""},
		{"another proxy's", []func(*corev1.Service){func(s *corev1.Service) { s.Labels = map[string]string{proxyName: "other"} }}, []string{"10.1.0.1"}, ""},
	}
	here := node{name: "n1", zone: "z1", pods: netip.MustParsePrefix("10.244.0.0/16")}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := here.planService(testService(append(tt.change, tcpOnly)...), []*discoveryv1.EndpointSlice{slice(tt.endpoint...)}).text()
			want := strings.ReplaceAll(strings.TrimSpace(tt.want), "\n\t\t\t", "\n")
			if got != want {
				t.Errorf("plan:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestExternalIPsAreServedOnRequest(t *testing.T) {
	here := node{name: "n1", externalIPs: true}
	f := here.planService(testService(tcpOnly, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.7"} }),
		[]*discoveryv1.EndpointSlice{slice("10.1.0.1")})
	if !strings.Contains(f.text(), "service-ips 192.0.2.7 . tcp . 80 : pick 1 svc/default/web/tcp/80") {
		t.Errorf("plan:\n%s", f.text())
	}
}

func TestHealthCheckCountsLocalEndpoints(t *testing.T) {
	svc := testService(tcpOnly, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = 31000
	})
	f := node{name: "n1"}.planService(svc, []*discoveryv1.EndpointSlice{slice("10.1.0.1:n1", "10.1.0.2", "10.1.0.3:n1")})
	if f.health == nil || f.health.LocalEndpoints != 2 || f.health.port != 31000 {
		t.Errorf("health %+v", f.health)
	}
}

func TestPlanPod(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
				{ContainerPort: 80, HostPort: 8080, Protocol: corev1.ProtocolTCP},
				{ContainerPort: 81, Protocol: corev1.ProtocolTCP},
				{ContainerPort: 53, HostPort: 53, HostIP: "192.0.2.1", Protocol: corev1.ProtocolUDP}}}}},
			Status: corev1.PodStatus{PodIP: "10.244.0.2", Phase: corev1.PodRunning}}
		change(p)
		return p
	}
	tests := []struct {
		name   string
		change func(*corev1.Pod)
		want   string
	}{
		{"host ports with and without an address", func(*corev1.Pod) {}, `
			hairpins 10.244.0.2
			host-ips 192.0.2.1 . udp . 53 : 10.244.0.2 . 53
			host-ports tcp . 8080 : 10.244.0.2 . 80`},
		{"no address yet", func(p *corev1.Pod) { p.Status.PodIP = "" }, ""},
		{"on the host's network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, ""},
		{"done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, ""},
		{"elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, want := (node{name: "n1"}).planPod(pod(tt.change)).text(), strings.ReplaceAll(strings.TrimSpace(tt.want), "\n\t\t\t", "\n"); got != want {
				t.Errorf("plan:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestAnElementBelongsToTheFirstOwner(t *testing.T) {
	s := newState()
	front := frontend{addr: netip.MustParseAddr("192.0.2.7"), proto: 6, port: 80}
	claim := func(port uint16) *fragment {
		f := &fragment{}
		f.add(hostIPs, front, value{to: netip.AddrPortFrom(front.addr, port)})
		return f
	}
	has := func(want uint16) {
		t.Helper()
		s.committed(s.diff())
		if got := s.kernel[element{set: hostIPs, frontend: front}].to.Port(); got != want {
			t.Errorf("port %d, want %d", got, want)
		}
	}
	s.set("b", claim(1))
	has(1)
	s.set("a", claim(2))
	has(2)
	s.set("b", claim(3))
	has(2)
	s.set("a", nil)
	has(3)
	s.set("b", nil)
	if len(s.claims) > 0 {
		t.Error("claims remain")
	}
	has(0)
}
