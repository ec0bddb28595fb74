package endpointslicemirroring

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	endpointsliceutil "k8s.io/endpointslice/util"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

// maxPerSubset bounds the mirrored addresses of one subset, and of one slice.
const maxPerSubset = 1000

// mirrors are the slices that show an Endpoints: one for each combination of ports
// and address family.
type mirrors struct {
	slices  []*discoveryv1.EndpointSlice
	groups  map[group]*members
	invalid int // addresses that are no IPs
	skipped int // those, and what is beyond maxPerSubset
}

type group struct {
	family discoveryv1.AddressType
	ports  endpointsliceutil.PortMapKey
}

// members are the endpoints of one slice.
type members struct {
	slice *discoveryv1.EndpointSlice
	at    map[identity]int
}

// identity is what makes two endpoints of a slice the same one.
type identity struct{ ip, node, namespace, name string }

func identityOf(e *discoveryv1.Endpoint) identity {
	id := identity{ip: e.Addresses[0], node: ptr.Deref(e.NodeName, "")}
	if e.TargetRef != nil {
		id.namespace, id.name = e.TargetRef.Namespace, e.TargetRef.Name
	}
	return id
}

func mirror(ep *corev1.Endpoints) *mirrors {
	m := &mirrors{groups: map[group]*members{}}
	for i := range ep.Subsets {
		s := &ep.Subsets[i]
		ports := portsOf(s)
		key := endpointsliceutil.NewPortMapKey(ports)
		added := 0
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for j := range addresses {
				if added == maxPerSubset {
					return
				}
				endpoint, family, ok := endpointOf(&addresses[j], ready)
				if !ok {
					m.invalid++
					continue
				}
				added++
				m.add(ep, group{family, key}, ports, endpoint)
			}
		}
		add(s.Addresses, true)
		add(s.NotReadyAddresses, false)
		m.skipped += len(s.Addresses) + len(s.NotReadyAddresses) - added
	}
	return m
}

// add puts an endpoint into its slice. Of two that are the same the later one counts.
func (m *mirrors) add(ep *corev1.Endpoints, to group, ports []discoveryv1.EndpointPort, e discoveryv1.Endpoint) {
	g := m.groups[to]
	if g == nil {
		g = &members{slice: newSlice(ep, to.family, ports), at: map[identity]int{}}
		m.groups[to] = g
		m.slices = append(m.slices, g.slice)
	}
	if i, twice := g.at[identityOf(&e)]; twice {
		g.slice.Endpoints[i] = e
	} else if len(g.slice.Endpoints) < maxPerSubset {
		g.at[identityOf(&e)] = len(g.slice.Endpoints)
		g.slice.Endpoints = append(g.slice.Endpoints, e)
	}
}

func portsOf(s *corev1.EndpointSubset) []discoveryv1.EndpointPort {
	ports := []discoveryv1.EndpointPort{}
	for _, p := range s.Ports {
		ports = append(ports, discoveryv1.EndpointPort{Name: ptr.To(p.Name), Port: ptr.To(p.Port), Protocol: ptr.To(p.Protocol), AppProtocol: p.AppProtocol})
	}
	return ports
}

// endpointOf is false for an address that is no IP. Endpoints may have forms of
// addresses that slices must not have, like 010.0.0.1 and ::ffff:10.0.0.1.
func endpointOf(a *corev1.EndpointAddress, ready bool) (e discoveryv1.Endpoint, family discoveryv1.AddressType, ok bool) {
	ip := netutils.ParseIPSloppy(a.IP)
	if ip == nil {
		return e, "", false
	}
	family = discoveryv1.AddressTypeIPv6
	if ip.To4() != nil {
		family = discoveryv1.AddressTypeIPv4
	}
	e = discoveryv1.Endpoint{
		Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		NodeName: a.NodeName, TargetRef: a.TargetRef.DeepCopy(),
	}
	if a.Hostname != "" {
		e.Hostname = ptr.To(a.Hostname)
	}
	return e, family, true
}

func newSlice(ep *corev1.Endpoints, family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: ep.Name + "-", Namespace: ep.Namespace,
			Labels: maps.Clone(ep.Labels), Annotations: maps.Clone(ep.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ep, corev1.SchemeGroupVersion.WithKind("Endpoints"))},
		},
		AddressType: family, Ports: ports, Endpoints: []discoveryv1.Endpoint{},
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	s.Labels[discoveryv1.LabelServiceName] = ep.Name
	s.Labels[discoveryv1.LabelManagedBy] = name
	delete(s.Annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(s.Annotations, corev1.LastAppliedConfigAnnotation)
	return s
}
