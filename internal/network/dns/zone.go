package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

const (
	ttl           = 5 // seconds: how long a client may keep what can change any time
	schemaVersion = "1.1.0"
)

// zone answers for the cluster's domain and for the reverse of its ranges.
type zone struct {
	domain  string // absolute, lower case
	address netip.Addr
	ranges  []netip.Prefix
	clock   clock.PassiveClock

	services   *client.Informer[*corev1.Service]
	slices     *client.Informer[*discoveryv1.EndpointSlice]
	namespaces *client.Informer[*corev1.Namespace]
}

// Indexes.
const (
	byService = "network/service" // EndpointSlices by namespace/name of their Service
	byAddress = "dns/address"     // Services and EndpointSlices by IP
)

func newZone(c Config) *zone {
	z := &zone{
		domain:     strings.ToLower(dns.Fqdn(c.Domain)),
		address:    c.Address,
		ranges:     c.Ranges,
		clock:      c.Clock,
		services:   client.Shared[*corev1.Service](c.Cache),
		slices:     client.Shared[*discoveryv1.EndpointSlice](c.Cache),
		namespaces: client.Shared[*corev1.Namespace](c.Cache),
	}
	z.services.AddIndex(byAddress, func(s *corev1.Service) []string { return s.Spec.ClusterIPs })
	z.slices.AddIndex(byService, func(s *discoveryv1.EndpointSlice) []string {
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}
	})
	z.slices.AddIndex(byAddress, func(s *discoveryv1.EndpointSlice) []string {
		var ips []string
		for _, e := range s.Endpoints {
			ips = append(ips, e.Addresses...)
		}
		return ips
	})
	return z
}

// result of a lookup. No answer and no error means that the name exists with
// other types (NODATA).
type result struct {
	rcode  int
	answer []dns.RR
	extra  []dns.RR
	alias  string // target of a CNAME in answer
}

var noName = result{rcode: dns.RcodeNameError}

// lookup answers a question; ours is false for names that others answer. Records
// get asked as their name, in the case in which the client wrote it.
func (z *zone) lookup(name, asked string, qtype uint16) (r result, ours bool) {
	if addr, ok := reverseAddr(name); ok {
		return z.reverse(asked, addr, qtype)
	}
	if name == z.domain {
		return z.apex(asked, qtype), true
	}
	inside, ok := strings.CutSuffix(name, "."+z.domain)
	if !ok {
		return result{}, false
	}
	labels := dns.SplitDomainName(inside)
	slices.Reverse(labels) // from the zone downwards
	switch labels[0] {
	case "svc":
		return z.service(labels[1:], asked, qtype), true
	case "pod":
		return z.pod(labels[1:], asked, qtype), true
	case "dns-version":
		if len(labels) == 1 {
			return onlyType(qtype, dns.TypeTXT, &dns.TXT{Hdr: header(asked, dns.TypeTXT), Txt: []string{schemaVersion}}), true
		}
	case "dns":
		switch {
		case len(labels) == 1:
			return result{}, true
		case len(labels) == 2 && labels[1] == "ns":
			return result{answer: addressRecords(asked, qtype, z.address)}, true
		}
	}
	return noName, true
}

func header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

func onlyType(asked, have uint16, rr dns.RR) result {
	if asked == have || asked == dns.TypeANY {
		return result{answer: []dns.RR{rr}}
	}
	return result{}
}

// addressRecords are those of addrs that have the type asked for, each once.
func addressRecords(name string, qtype uint16, addrs ...netip.Addr) []dns.RR {
	var out []dns.RR
	seen := map[netip.Addr]bool{}
	for _, addr := range addrs {
		if !addr.IsValid() || seen[addr] {
			continue
		}
		seen[addr] = true
		switch {
		case addr.Is4() && (qtype == dns.TypeA || qtype == dns.TypeANY):
			out = append(out, &dns.A{Hdr: header(name, dns.TypeA), A: addr.AsSlice()})
		case addr.Is6() && (qtype == dns.TypeAAAA || qtype == dns.TypeANY):
			out = append(out, &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: addr.AsSlice()})
		}
	}
	return out
}

func (z *zone) soa() dns.RR {
	return &dns.SOA{Hdr: header(z.domain, dns.TypeSOA), Ns: "ns.dns." + z.domain, Mbox: "hostmaster." + z.domain,
		Serial: uint32(z.clock.Now().Unix()), Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl}
}

func (z *zone) apex(asked string, qtype uint16) result {
	switch qtype {
	case dns.TypeSOA:
		return result{answer: []dns.RR{z.soa()}}
	case dns.TypeNS:
		ns := "ns.dns." + z.domain
		return result{answer: []dns.RR{&dns.NS{Hdr: header(asked, dns.TypeNS), Ns: ns}},
			extra: addressRecords(ns, dns.TypeANY, z.address)}
	}
	return result{}
}

// pod answers a-b-c-d.NAMESPACE.pod: the address is in the name.
func (z *zone) pod(labels []string, asked string, qtype uint16) result {
	if len(labels) == 0 {
		return result{}
	}
	if _, ok := z.namespaces.Cached("", labels[0]); !ok || len(labels) > 2 {
		return noName
	}
	if len(labels) == 1 {
		return result{}
	}
	addr, err := netip.ParseAddr(strings.ReplaceAll(labels[1], "-", "."))
	if err != nil {
		if addr, err = netip.ParseAddr(strings.ReplaceAll(labels[1], "-", ":")); err != nil {
			return noName
		}
	}
	return result{answer: addressRecords(asked, qtype, addr)}
}

// service answers below svc; labels begin with the namespace.
func (z *zone) service(labels []string, asked string, qtype uint16) result {
	if len(labels) == 0 {
		return result{}
	}
	if _, ok := z.namespaces.Cached("", labels[0]); !ok {
		return noName
	}
	if len(labels) == 1 {
		return result{}
	}
	svc, ok := z.services.Cached(labels[0], labels[1])
	if !ok {
		return noName
	}
	s := z.named(svc)
	switch rest := labels[2:]; {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		if len(rest) > 0 {
			return noName
		}
		return s.externalName(asked, qtype)
	case len(rest) == 0:
		return s.itself(asked, qtype)
	case strings.HasPrefix(rest[0], "_"):
		return s.port(rest, asked, qtype)
	case len(rest) == 1:
		return s.endpoint(rest[0], asked, qtype)
	}
	return noName
}

// reverseAddr is the address that a name below in-addr.arpa or ip6.arpa stands for.
func reverseAddr(name string) (netip.Addr, bool) {
	if inside, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		labels := strings.Split(inside, ".")
		slices.Reverse(labels)
		addr, err := netip.ParseAddr(strings.Join(labels, "."))
		return addr, err == nil && addr.Is4()
	}
	inside, ok := strings.CutSuffix(name, ".ip6.arpa.")
	if !ok {
		return netip.Addr{}, false
	}
	nibbles := strings.Split(inside, ".")
	slices.Reverse(nibbles)
	var text strings.Builder
	for i, n := range nibbles {
		if i > 0 && i%4 == 0 {
			text.WriteByte(':')
		}
		text.WriteString(n)
	}
	addr, err := netip.ParseAddr(text.String())
	return addr, err == nil && len(nibbles) == 32
}

// reverse names a Service by its ClusterIP, or the endpoint that has the address.
func (z *zone) reverse(asked string, addr netip.Addr, qtype uint16) (result, bool) {
	var names []string
	for _, svc := range z.services.ByIndex(byAddress, addr.String()) {
		names = append(names, z.named(svc).name)
	}
	if len(names) == 0 {
		names = z.endpointNames(addr)
	}
	if len(names) == 0 {
		inRange := slices.ContainsFunc(z.ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
		return noName, inRange
	}
	var r result
	for _, name := range names {
		r.answer = append(r.answer, onlyType(qtype, dns.TypePTR, &dns.PTR{Hdr: header(asked, dns.TypePTR), Ptr: name}).answer...)
	}
	return r, true
}

// endpointNames are the names of an address below headless Services: the others
// stand for their endpoints themselves.
func (z *zone) endpointNames(addr netip.Addr) []string {
	var names []string
	for _, slice := range z.slices.ByIndex(byAddress, addr.String()) {
		svc, ok := z.services.Cached(slice.Namespace, slice.Labels[discoveryv1.LabelServiceName])
		if !ok || svc.Spec.ClusterIP != corev1.ClusterIPNone {
			continue
		}
		for _, e := range slice.Endpoints {
			if !ptr.Deref(e.Conditions.Ready, true) || !slices.Contains(e.Addresses, addr.String()) {
				continue
			}
			name := fmt.Sprintf("%s.%s", hostname(e), z.named(svc).name)
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
