package endpointslicemirroring

import (
	"maps"
	"net"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/utils/ptr"
)

// maxPerSubset bounds the mirrored addresses of one subset.
const maxPerSubset = 1000

// mirror returns the slices that show the Endpoints: one for each combination of
// ports and address family. Skipped counts addresses that are no IPs.
func mirror(ep *corev1.Endpoints) (mirrors []*discoveryv1.EndpointSlice, skipped int) {
	type group struct {
		family discoveryv1.AddressType
		ports  endpointsliceutil.PortMapKey
	}
	groups := map[group]*discoveryv1.EndpointSlice{}
	for i := range ep.Subsets {
		ports := portsOf(&ep.Subsets[i])
		key := endpointsliceutil.NewPortMapKey(ports)
		room := maxPerSubset
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for j := range addresses {
				family, ok := familyOf(addresses[j].IP)
				if !ok {
					skipped++
					continue
				}
				if room--; room < 0 {
					return
				}
				slice := groups[group{family, key}]
				if slice == nil {
					slice = newSlice(ep, family, ports)
					groups[group{family, key}] = slice
					mirrors = append(mirrors, slice)
				}
				slice.Endpoints = append(slice.Endpoints, endpointOf(&addresses[j], ready))
			}
		}
		add(ep.Subsets[i].Addresses, true)
		add(ep.Subsets[i].NotReadyAddresses, false)
	}
	return mirrors, skipped
}

func familyOf(ip string) (discoveryv1.AddressType, bool) {
	parsed := net.ParseIP(ip)
	switch {
	case parsed == nil:
		return "", false
	case parsed.To4() != nil:
		return discoveryv1.AddressTypeIPv4, true
	}
	return discoveryv1.AddressTypeIPv6, true
}

func portsOf(s *corev1.EndpointSubset) []discoveryv1.EndpointPort {
	ports := []discoveryv1.EndpointPort{}
	for _, p := range s.Ports {
		ports = append(ports, discoveryv1.EndpointPort{Name: ptr.To(p.Name), Port: ptr.To(p.Port), Protocol: ptr.To(p.Protocol), AppProtocol: p.AppProtocol})
	}
	return ports
}

func endpointOf(a *corev1.EndpointAddress, ready bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		NodeName: a.NodeName, TargetRef: a.TargetRef.DeepCopy(),
	}
	if a.Hostname != "" {
		e.Hostname = ptr.To(a.Hostname)
	}
	return e
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
	delete(s.Labels, corev1.IsHeadlessService)
	s.Labels[discoveryv1.LabelServiceName] = ep.Name
	s.Labels[discoveryv1.LabelManagedBy] = name
	delete(s.Annotations, corev1.LastAppliedConfigAnnotation)
	return s
}
