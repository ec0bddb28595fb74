package proxy

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"golang.org/x/sys/unix"
)

// node is what planning knows of where it runs.
type node struct {
	name        string
	zone        string
	pods        netip.Prefix // of the cluster
	externalIPs bool         // serve spec.externalIPs
}

// proxyName is the label with which a Service asks for another proxy.
const proxyName = "service.kubernetes.io/service-proxy-name"

// planService is pure: the elements with which a Service works on this node.
func (n node) planService(svc *corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) *fragment {
	f := &fragment{}
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return f
	}
	if _, other := svc.Labels[proxyName]; other {
		return f
	}
	local := 0
	for _, port := range svc.Spec.Ports {
		proto, ok := protocolNumber(protocolOf(port))
		if !ok {
			continue
		}
		all := n.endpointsOf(endpointSlices, port)
		p := servicePort{node: n, f: f, svc: svc, port: port, proto: proto,
			name:    fmt.Sprintf("%s/%s/%s/%d", svc.Namespace, svc.Name, protocolName(proto), port.Port),
			cluster: n.near(usable(all)),
			local:   usable(filter(all, func(e endpoint) bool { return e.local })),
		}
		p.plan()
		local = max(local, len(p.local))
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && localOnly(svc) && svc.Spec.HealthCheckNodePort > 0 {
		f.health = &health{Service: healthService{svc.Namespace, svc.Name}, LocalEndpoints: local,
			port: uint16(svc.Spec.HealthCheckNodePort)}
	}
	return f
}

func localOnly(svc *corev1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func protocolOf(port corev1.ServicePort) corev1.Protocol {
	if port.Protocol == "" {
		return corev1.ProtocolTCP
	}
	return port.Protocol
}

func protocolNumber(p corev1.Protocol) (uint8, bool) {
	switch p {
	case corev1.ProtocolTCP:
		return unix.IPPROTO_TCP, true
	case corev1.ProtocolUDP:
		return unix.IPPROTO_UDP, true
	case corev1.ProtocolSCTP:
		return unix.IPPROTO_SCTP, true
	}
	return 0, false
}

// servicePort plans one port of a Service into f.
type servicePort struct {
	node
	f              *fragment
	svc            *corev1.Service
	port           corev1.ServicePort
	proto          uint8
	name           string
	cluster, local []endpoint // that take new connections
}

// outcome of a connection to a frontend; none when it is to be refused.
type outcome struct {
	value   value
	outside value // from neither pods nor this node, if that differs
	allowed []endpoint
}

func (p *servicePort) plan() {
	internal := p.internal()
	for _, ip := range p.svc.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(ip); err == nil && addr.Is4() {
			p.serve(frontend{addr, p.proto, uint16(p.port.Port)}, internal)
		}
	}
	fronts := p.externalFrontends()
	if p.port.NodePort > 0 {
		fronts = append(fronts, frontend{proto: p.proto, port: uint16(p.port.NodePort)})
	}
	if len(fronts) == 0 {
		return
	}
	external := p.external()
	for _, front := range fronts {
		p.serve(front, external)
		if !localOnly(p.svc) {
			p.f.add(pick(front, masqueradeIPs, masqueradeNodePorts), front, value{})
		}
		if p.isLoadBalancer(front.addr) {
			p.guard(front)
		}
	}
}

// pick is the name of the set for a frontend with an address, or without.
func pick(front frontend, withAddress, without string) string {
	if front.addr.IsValid() {
		return withAddress
	}
	return without
}

// serve leads a frontend to what becomes of its connections.
func (p *servicePort) serve(front frontend, to outcome) {
	if to.value == (value{}) {
		p.f.add(pick(front, unservedIPs, unservedNodePorts), front, value{})
	} else {
		p.f.add(pick(front, serviceIPs, nodePorts), front, to.value)
	}
	if to.outside != (value{}) {
		p.f.add(pick(front, outsideIPs, outsideNodePorts), front, to.outside)
	}
	p.f.addDatagram(front, to.allowed)
	for _, e := range to.allowed {
		if e.local {
			p.f.add(hairpins, frontend{addr: e.addr.Addr()}, value{})
		}
	}
}

func (f *fragment) addDatagram(front frontend, to []endpoint) {
	if front.proto == unix.IPPROTO_TCP {
		return
	}
	if f.datagram == nil {
		f.datagram = map[frontend][]netip.AddrPort{}
	}
	f.datagram[front] = addresses(to)
}

// internal is what becomes of connections to the ClusterIP.
func (p *servicePort) internal() outcome {
	onlyLocal := ptr.Deref(p.svc.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster) == corev1.ServiceInternalTrafficPolicyLocal
	switch {
	case len(p.cluster) == 0:
		return outcome{}
	case !onlyLocal:
		return outcome{value: p.balance("svc/", p.cluster), allowed: p.cluster}
	case len(p.local) == 0:
		return outcome{value: dropped}
	}
	return outcome{value: p.balance("loc/", p.local), allowed: p.local}
}

// external is what becomes of connections to a node port or an address outside
// the cluster. When only local endpoints may serve those, the cluster's own pods
// and this node still reach all: their answers find the way back.
func (p *servicePort) external() outcome {
	if len(p.cluster) == 0 {
		return outcome{}
	}
	o := outcome{value: p.balance("svc/", p.cluster), allowed: p.cluster}
	if !localOnly(p.svc) {
		return o
	}
	o.outside = dropped
	if len(p.local) > 0 {
		o.outside = p.balance("loc/", p.local)
		o.allowed = append(p.cluster[:len(p.cluster):len(p.cluster)], p.local...)
	}
	return o
}

// guard lets only a load balancer's source ranges reach a frontend.
func (p *servicePort) guard(front frontend) {
	if len(p.svc.Spec.LoadBalancerSourceRanges) == 0 {
		return
	}
	w := firewall{name: "fw/" + p.name}
	for _, r := range p.svc.Spec.LoadBalancerSourceRanges {
		if from, err := netip.ParsePrefix(strings.TrimSpace(r)); err == nil && from.Addr().Is4() {
			w.sources = append(w.sources, from.Masked())
		}
	}
	if len(p.f.firewalls) == 0 || p.f.firewalls[len(p.f.firewalls)-1].name != w.name {
		p.f.firewalls = append(p.f.firewalls, w)
	}
	p.f.add(firewalls, front, value{chain: w.name})
}

// balance adds the list of endpoints and returns the choice among them.
func (p *servicePort) balance(kind string, to []endpoint) value {
	v := value{action: action{among: len(to)}, balancer: kind + p.name}
	if a := p.svc.Spec.SessionAffinityConfig; p.svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		seconds := int32(corev1.DefaultClientIPServiceAffinitySeconds)
		if a != nil && a.ClientIP != nil && a.ClientIP.TimeoutSeconds != nil {
			seconds = *a.ClientIP.TimeoutSeconds
		}
		v.sticky = time.Duration(seconds) * time.Second
	}
	for i, e := range to {
		p.f.put(element{set: endpoints, balancer: v.balancer, index: i}, value{to: e.addr})
		if v.sticky > 0 {
			p.f.put(element{set: members, balancer: v.balancer, frontend: frontend{addr: e.addr.Addr(), port: e.addr.Port()}}, value{})
		}
	}
	return v
}

// externalFrontends are the addresses outside the cluster that this node serves.
func (p *servicePort) externalFrontends() []frontend {
	var fronts []frontend
	add := func(ip string) {
		if addr, err := netip.ParseAddr(ip); err == nil && addr.Is4() {
			fronts = append(fronts, frontend{addr, p.proto, uint16(p.port.Port)})
		}
	}
	if p.externalIPs {
		for _, ip := range p.svc.Spec.ExternalIPs {
			add(ip)
		}
	}
	for _, ip := range p.loadBalancerIPs() {
		add(ip)
	}
	return fronts
}

// loadBalancerIPs are those whose packets arrive with that destination (KEP-1860).
func (p *servicePort) loadBalancerIPs() []string {
	var ips []string
	if p.svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	for _, in := range p.svc.Status.LoadBalancer.Ingress {
		if in.IP != "" && ptr.Deref(in.IPMode, corev1.LoadBalancerIPModeVIP) == corev1.LoadBalancerIPModeVIP {
			ips = append(ips, in.IP)
		}
	}
	return ips
}

func (p *servicePort) isLoadBalancer(addr netip.Addr) bool {
	for _, ip := range p.loadBalancerIPs() {
		if ip == addr.String() {
			return true
		}
	}
	return false
}

// planPod is pure: the host ports of a pod of this node. Those of a pod on the
// host's network are its own sockets.
func (n node) planPod(pod *corev1.Pod) *fragment {
	f := &fragment{}
	if pod.Spec.NodeName != n.name || pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return f
	}
	addr, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || !addr.Is4() {
		return f
	}
	containers := append(pod.Spec.InitContainers[:len(pod.Spec.InitContainers):len(pod.Spec.InitContainers)], pod.Spec.Containers...)
	for _, c := range containers {
		for _, port := range c.Ports {
			f.addHostPort(addr, port)
		}
	}
	return f
}

func (f *fragment) addHostPort(addr netip.Addr, port corev1.ContainerPort) {
	proto, ok := protocolNumber(port.Protocol)
	if !ok || port.HostPort == 0 {
		return
	}
	front := frontend{proto: proto, port: uint16(port.HostPort)}
	set := hostPorts
	if ip, err := netip.ParseAddr(port.HostIP); err == nil && !ip.IsUnspecified() {
		if !ip.Is4() {
			return
		}
		front.addr, set = ip, hostIPs
	}
	e := element{set: set, frontend: front}
	if _, twice := f.elements[e]; twice {
		return
	}
	to := netip.AddrPortFrom(addr, uint16(port.ContainerPort))
	f.put(e, value{to: to})
	f.add(hairpins, frontend{addr: addr}, value{})
	f.addDatagram(front, []endpoint{{addr: to, local: true}})
}
