package dns

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// service is a Service with its name in the zone.
type service struct {
	*corev1.Service
	name  string
	slice func() []*discoveryv1.EndpointSlice
}

func (z *zone) named(svc *corev1.Service) service {
	return service{Service: svc, name: svc.Name + "." + svc.Namespace + ".svc." + z.domain,
		slice: func() []*discoveryv1.EndpointSlice { return z.slices.ByIndex(byService, svc.Namespace+"/"+svc.Name) }}
}

func (s service) headless() bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// hostname is an endpoint's label below its Service: its own, or its address with dashes.
func hostname(e discoveryv1.Endpoint) string {
	if name := ptr.Deref(e.Hostname, ""); name != "" {
		return strings.ToLower(name)
	}
	if len(e.Addresses) == 0 {
		return ""
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(e.Addresses[0])
}

// eachEndpoint calls f for every ready endpoint.
func (s service) eachEndpoint(f func(*discoveryv1.EndpointSlice, discoveryv1.Endpoint, netip.Addr)) {
	for _, slice := range s.slice() {
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, e := range slice.Endpoints {
			if !ptr.Deref(e.Conditions.Ready, true) || len(e.Addresses) == 0 {
				continue
			}
			if addr, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				f(slice, e, addr)
			}
		}
	}
}

func (s service) externalName(asked string, qtype uint16) result {
	target := dns.Fqdn(s.Spec.ExternalName)
	switch qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeANY:
		return result{answer: []dns.RR{&dns.CNAME{Hdr: header(asked, dns.TypeCNAME), Target: target}}, alias: target}
	}
	return result{}
}

// addresses of the Service: its own, or its endpoints' when it has none.
func (s service) addresses() []netip.Addr {
	var addrs []netip.Addr
	if s.headless() {
		s.eachEndpoint(func(_ *discoveryv1.EndpointSlice, _ discoveryv1.Endpoint, addr netip.Addr) {
			addrs = append(addrs, addr)
		})
		return addrs
	}
	for _, ip := range s.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(ip); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func (s service) itself(asked string, qtype uint16) result {
	if qtype == dns.TypeSRV {
		return s.portRecords(asked, func(string, corev1.Protocol) bool { return true })
	}
	return result{answer: addressRecords(asked, qtype, s.addresses()...)}
}

// port answers _PORT._PROTOCOL below the Service; labels come from the Service downwards.
func (s service) port(labels []string, asked string, qtype uint16) result {
	proto := strings.TrimPrefix(labels[0], "_")
	known := func(name string, p corev1.Protocol) bool {
		return strings.EqualFold(string(p), proto) && (len(labels) == 1 || name == strings.TrimPrefix(labels[1], "_"))
	}
	if len(labels) > 2 || len(labels) == 2 && !strings.HasPrefix(labels[1], "_") {
		return noName
	}
	r := s.portRecords(asked, func(name string, p corev1.Protocol) bool { return name != "" && known(name, p) })
	switch {
	case len(r.answer) == 0:
		return noName
	case qtype != dns.TypeSRV && qtype != dns.TypeANY, len(labels) == 1:
		return result{}
	}
	return r
}

// portRecords are the SRV records of the ports that match, with the addresses of their targets.
func (s service) portRecords(asked string, match func(name string, proto corev1.Protocol) bool) result {
	var r result
	add := func(target string, port uint16, addrs ...netip.Addr) {
		r.answer = append(r.answer, &dns.SRV{Hdr: header(asked, dns.TypeSRV), Port: port, Target: target})
		for _, rr := range addressRecords(target, dns.TypeANY, addrs...) {
			if !contains(r.extra, rr) {
				r.extra = append(r.extra, rr)
			}
		}
	}
	if !s.headless() {
		for _, p := range s.Spec.Ports {
			if match(p.Name, p.Protocol) {
				add(s.name, uint16(p.Port), s.addresses()...)
			}
		}
		return r.weigh()
	}
	s.eachEndpoint(func(slice *discoveryv1.EndpointSlice, e discoveryv1.Endpoint, addr netip.Addr) {
		for _, p := range slice.Ports {
			if p.Port != nil && match(ptr.Deref(p.Name, ""), ptr.Deref(p.Protocol, corev1.ProtocolTCP)) {
				add(hostname(e)+"."+s.name, uint16(*p.Port), addr)
			}
		}
	})
	return r.weigh()
}

// weigh gives every SRV record its part of a hundred, as CoreDNS does.
func (r result) weigh() result {
	for _, rr := range r.answer {
		if srv, ok := rr.(*dns.SRV); ok {
			srv.Weight = uint16(max(1, 100/len(r.answer)))
		}
	}
	return r
}

func contains(all []dns.RR, rr dns.RR) bool {
	for _, have := range all {
		if dns.IsDuplicate(have, rr) {
			return true
		}
	}
	return false
}

// endpoint answers a host name below the Service.
func (s service) endpoint(label, asked string, qtype uint16) result {
	var addrs []netip.Addr
	var ports result
	s.eachEndpoint(func(slice *discoveryv1.EndpointSlice, e discoveryv1.Endpoint, addr netip.Addr) {
		if hostname(e) != label {
			return
		}
		addrs = append(addrs, addr)
		for _, p := range slice.Ports {
			if p.Port != nil && qtype == dns.TypeSRV {
				ports.answer = append(ports.answer, &dns.SRV{Hdr: header(asked, dns.TypeSRV), Port: uint16(*p.Port), Target: label + "." + s.name})
			}
		}
	})
	switch {
	case len(addrs) == 0:
		return noName
	case qtype == dns.TypeSRV:
		return ports.weigh()
	}
	return result{answer: addressRecords(asked, qtype, addrs...)}
}
