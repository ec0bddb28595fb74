package endpoints

import (
	"bytes"
	"cmp"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	utilnet "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

// maxAddresses bounds the addresses of one Endpoints, ready or not.
const maxAddresses = 1000

// member is one pod behind a Service.
type member struct {
	address corev1.EndpointAddress
	ready   bool
	ports   []corev1.EndpointPort
}

// subsetsOf returns the addresses of pods in the form that is kept: every
// combination of ports once, with all that offer it, everything in order.
func subsetsOf(svc *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	if len(svc.Spec.Ports) == 0 && svc.Spec.ClusterIP != corev1.ClusterIPNone {
		return nil
	}
	var members []member
	for _, pod := range pods {
		if !endpointsliceutil.ShouldPodBeInEndpoints(pod, svc.Spec.PublishNotReadyAddresses) {
			continue
		}
		address, ok := addressOf(svc, pod)
		if !ok {
			continue
		}
		m := member{address: address, ready: svc.Spec.PublishNotReadyAddresses || endpointsliceutil.IsPodReady(pod), ports: portsOf(svc, pod)}
		if len(m.ports) > 0 || len(svc.Spec.Ports) == 0 {
			members = append(members, m)
		}
	}
	return pack(members)
}

func addressOf(svc *corev1.Service, pod *corev1.Pod) (corev1.EndpointAddress, bool) {
	ipv6 := utilnet.IsIPv6String(svc.Spec.ClusterIP)
	if len(svc.Spec.IPFamilies) > 0 {
		ipv6 = svc.Spec.IPFamilies[0] == corev1.IPv6Protocol
	}
	ip := pod.Status.PodIP
	if i := slices.IndexFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return utilnet.IsIPv6String(ip.IP) == ipv6 }); i >= 0 {
		ip = pod.Status.PodIPs[i].IP
	} else if ip == "" || utilnet.IsIPv6String(ip) != ipv6 {
		return corev1.EndpointAddress{}, false
	}
	address := corev1.EndpointAddress{
		IP: ip, NodeName: ptr.To(pod.Spec.NodeName),
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if endpointsliceutil.ShouldSetHostname(pod, svc) {
		address.Hostname = pod.Spec.Hostname
	}
	return address, true
}

// portsOf leaves out a port whose name no container of the pod has.
func portsOf(svc *corev1.Service, pod *corev1.Pod) []corev1.EndpointPort {
	var ports []corev1.EndpointPort
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		number, err := endpointslice.FindPort(pod, p)
		if err != nil {
			continue
		}
		port := corev1.EndpointPort{Name: p.Name, Port: int32(number), Protocol: p.Protocol, AppProtocol: p.AppProtocol}
		ports = append(ports, port)
	}
	return ports
}

func comparePorts(a, b corev1.EndpointPort) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), strings.Compare(string(a.Protocol), string(b.Protocol)),
		strings.Compare(appProtocol(a), appProtocol(b)))
}

func appProtocol(p corev1.EndpointPort) string {
	if p.AppProtocol == nil {
		return ""
	}
	return *p.AppProtocol
}

func compareAddresses(a, b corev1.EndpointAddress) int {
	return cmp.Or(bytes.Compare(net.ParseIP(a.IP).To16(), net.ParseIP(b.IP).To16()), strings.Compare(string(a.TargetRef.UID), string(b.TargetRef.UID)))
}

// pack groups the ports that the same members offer.
func pack(members []member) []corev1.EndpointSubset {
	slices.SortFunc(members, func(a, b member) int { return compareAddresses(a.address, b.address) })
	var ports []corev1.EndpointPort
	for _, m := range members {
		ports = append(ports, m.ports...)
	}
	slices.SortFunc(ports, comparePorts)
	ports = slices.CompactFunc(ports, samePort)
	if len(ports) == 0 && len(members) > 0 {
		return []corev1.EndpointSubset{subset(members)}
	}
	var offers [][]member
	var subsets []corev1.EndpointSubset
	for _, port := range ports {
		offer := slices.DeleteFunc(slices.Clone(members), func(m member) bool {
			return !slices.ContainsFunc(m.ports, func(p corev1.EndpointPort) bool { return samePort(p, port) })
		})
		i := slices.IndexFunc(offers, func(o []member) bool {
			return slices.EqualFunc(o, offer, func(a, b member) bool { return compareAddresses(a.address, b.address) == 0 })
		})
		if i < 0 {
			i = len(offers)
			offers, subsets = append(offers, offer), append(subsets, subset(offer))
		}
		subsets[i].Ports = append(subsets[i].Ports, port)
	}
	return subsets
}

func samePort(a, b corev1.EndpointPort) bool { return comparePorts(a, b) == 0 }

func subset(members []member) (s corev1.EndpointSubset) {
	for _, m := range members {
		if m.ready {
			s.Addresses = append(s.Addresses, m.address)
		} else {
			s.NotReadyAddresses = append(s.NotReadyAddresses, m.address)
		}
	}
	return s
}

// truncate cuts subsets to maxAddresses: the ones that are not ready first, and
// every subset by its share. It tells whether anything was cut.
func truncate(subsets []corev1.EndpointSubset) ([]corev1.EndpointSubset, bool) {
	ready, unready := 0, 0
	for i := range subsets {
		ready += len(subsets[i].Addresses)
		unready += len(subsets[i].NotReadyAddresses)
	}
	if ready+unready <= maxAddresses {
		return subsets, false
	}
	keepReady := shares(subsets, func(s *corev1.EndpointSubset) int { return len(s.Addresses) }, ready, min(ready, maxAddresses))
	keepUnready := shares(subsets, func(s *corev1.EndpointSubset) int { return len(s.NotReadyAddresses) }, unready, maxAddresses-min(ready, maxAddresses))
	var kept []corev1.EndpointSubset
	for i, s := range subsets {
		s.Addresses, s.NotReadyAddresses = s.Addresses[:keepReady[i]], s.NotReadyAddresses[:keepUnready[i]]
		if len(s.Addresses)+len(s.NotReadyAddresses) > 0 {
			kept = append(kept, s)
		}
	}
	return kept, true
}

// shares divides room among subsets by their sizes, whole and without rest.
func shares(subsets []corev1.EndpointSubset, size func(*corev1.EndpointSubset) int, total, room int) []int {
	out := make([]int, len(subsets))
	if total == 0 {
		return out
	}
	seen, given := 0, 0
	for i := range subsets {
		seen += size(&subsets[i])
		out[i] = seen*room/total - given
		given += out[i]
	}
	return out
}
