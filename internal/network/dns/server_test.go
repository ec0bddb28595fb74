package dns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/network/nettest"
)

// start runs a server for the objects of testObjects, with one resolver behind it.
func start(t *testing.T, upstream dns.HandlerFunc) (address string) {
	t.Helper()
	api := nettest.API(t)
	createObjects(t, api)
	resolvConf := filepath.Join(t.TempDir(), "resolv.conf")
	host, port, _ := net.SplitHostPort(resolver(t, upstream))
	if err := os.WriteFile(resolvConf, []byte("nameserver "+host+"\nsearch example.com\noptions ndots:5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cache := client.NewCache(api)
	s := New(Config{Cache: cache, Domain: "cluster.local", Listen: "127.0.0.1:0", Address: netip.MustParseAddr("10.96.0.10"),
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}, ResolvConf: resolvConf,
		Shuffle: func(int, func(i, j int)) {}})
	s.forward.port = port
	nettest.Run(t, cache.Run)
	if err := cache.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	nettest.Run(t, s.Run)
	<-s.Ready()
	return (<-s.bound).String()
}

// resolver is a host's resolver.
func resolver(t *testing.T, handler dns.HandlerFunc) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: conn, Handler: handler}, {Listener: l, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go s.ActivateAndServe()
		<-started
		t.Cleanup(func() { s.Shutdown() })
	}
	return conn.LocalAddr().String()
}

func createObjects(t *testing.T, api client.API) {
	t.Helper()
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	nettest.Namespaces(t, api, "default", "shop")
	selector := map[string]string{"app": "x"}
	nettest.Create(t, api,
		&corev1.Service{ObjectMeta: meta("shop", "web"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.1.1", Selector: selector,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "q", Port: 53, Protocol: corev1.ProtocolUDP}}}},
		&corev1.Service{ObjectMeta: meta("shop", "db"), Spec: corev1.ServiceSpec{ClusterIP: "None", Selector: selector,
			Ports: []corev1.ServicePort{{Name: "pg", Port: 5432}}}},
		&corev1.Service{ObjectMeta: meta("shop", "none"), Spec: corev1.ServiceSpec{ClusterIP: "None", Selector: selector}},
		&corev1.Service{ObjectMeta: meta("shop", "out"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "www.example.com"}},
		&corev1.Service{ObjectMeta: meta("shop", "alias"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.shop.svc.cluster.local"}},
	)
	big := discoveryv1.EndpointSlice{ObjectMeta: meta("shop", "big-1"), AddressType: discoveryv1.AddressTypeIPv4}
	big.Labels = map[string]string{discoveryv1.LabelServiceName: "big"}
	for i := range 100 {
		big.Endpoints = append(big.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.9.%d", i+1)}})
	}
	nettest.Create(t, api, &corev1.Service{ObjectMeta: meta("shop", "big"), Spec: corev1.ServiceSpec{ClusterIP: "None", Selector: selector}})
	dbSlice := &discoveryv1.EndpointSlice{ObjectMeta: meta("shop", "db-1"), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("pg"), Port: ptr.To[int32](5432)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.0.5"}, Hostname: ptr.To("db-0")},
			{Addresses: []string{"10.244.0.6"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}},
			{Addresses: []string{"10.244.0.7"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}},
		}}
	dbSlice.Labels = map[string]string{discoveryv1.LabelServiceName: "db"}
	nettest.Create(t, api, dbSlice, &big)
}

// show is an answer as zone records: code, then answer, authority and additional
// records, without what is always the same.
func show(m *dns.Msg) string {
	lines := []string{dns.RcodeToString[m.Rcode]}
	for _, section := range []struct {
		prefix string
		rrs    []dns.RR
	}{{"", m.Answer}, {"; authority ", m.Ns}, {"; additional ", m.Extra}} {
		for _, rr := range section.rrs {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			if soa, ok := rr.(*dns.SOA); ok {
				soa.Serial = 1
			}
			lines = append(lines, section.prefix+strings.ReplaceAll(strings.Join(strings.Fields(rr.String()), " "), " IN ", " "))
		}
	}
	return strings.Join(lines, "\n")
}

func ask(t *testing.T, network, address, name string, qtype uint16) *dns.Msg {
	t.Helper()
	c := &dns.Client{Net: network, Timeout: 10 * time.Second}
	m, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, qtype), address)
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.TypeToString[qtype], err)
	}
	return m
}

const soaText = "; authority cluster.local. 5 SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"

func TestZone(t *testing.T) {
	address := start(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Name == "www.example.com." && q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "www.example.com.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 80)}}
		}
		w.WriteMsg(m)
	})
	nodata, nxdomain := "NOERROR\n"+soaText, "NXDOMAIN\n"+soaText
	tests := []struct {
		name, query, want string
	}{
		{"a Service has its ClusterIP", "web.shop.svc.cluster.local. A", "NOERROR\nweb.shop.svc.cluster.local. 5 A 10.96.1.1"},
		{"names ignore case and answer in the client's", "WEB.shop.SVC.cluster.local. A", "NOERROR\nWEB.shop.SVC.cluster.local. 5 A 10.96.1.1"},
		{"no IPv6 address is no data", "web.shop.svc.cluster.local. AAAA", nodata},
		{"no such Service", "nope.shop.svc.cluster.local. A", nxdomain},
		{"no such namespace", "web.nope.svc.cluster.local. A", nxdomain},
		{"a namespace is a name", "shop.svc.cluster.local. A", nodata},
		{"svc is a name", "svc.cluster.local. A", nodata},
		{"a search path's miss", "example.com.shop.svc.cluster.local. A", nxdomain},
		{"a named port", "_http._tcp.web.shop.svc.cluster.local. SRV",
			"NOERROR\n_http._tcp.web.shop.svc.cluster.local. 5 SRV 0 100 80 web.shop.svc.cluster.local.\n; additional web.shop.svc.cluster.local. 5 A 10.96.1.1"},
		{"a named port's protocol counts", "_q._tcp.web.shop.svc.cluster.local. SRV", nxdomain},
		{"a port has no address", "_q._udp.web.shop.svc.cluster.local. A", nodata},
		{"a protocol is a name", "_udp.web.shop.svc.cluster.local. SRV", nodata},
		{"a headless Service has its ready endpoints", "db.shop.svc.cluster.local. A",
			"NOERROR\ndb.shop.svc.cluster.local. 5 A 10.244.0.5\ndb.shop.svc.cluster.local. 5 A 10.244.0.6"},
		{"a headless Service without endpoints is no data", "none.shop.svc.cluster.local. A", nodata},
		{"an endpoint by host name", "db-0.db.shop.svc.cluster.local. A", "NOERROR\ndb-0.db.shop.svc.cluster.local. 5 A 10.244.0.5"},
		{"an endpoint by address", "10-244-0-6.db.shop.svc.cluster.local. A", "NOERROR\n10-244-0-6.db.shop.svc.cluster.local. 5 A 10.244.0.6"},
		{"an endpoint that is not ready", "10-244-0-7.db.shop.svc.cluster.local. A", nxdomain},
		{"ports of a headless Service", "_pg._tcp.db.shop.svc.cluster.local. SRV",
			"NOERROR\n_pg._tcp.db.shop.svc.cluster.local. 5 SRV 0 50 5432 db-0.db.shop.svc.cluster.local." +
				"\n_pg._tcp.db.shop.svc.cluster.local. 5 SRV 0 50 5432 10-244-0-6.db.shop.svc.cluster.local." +
				"\n; additional db-0.db.shop.svc.cluster.local. 5 A 10.244.0.5\n; additional 10-244-0-6.db.shop.svc.cluster.local. 5 A 10.244.0.6"},
		{"an external name is followed", "out.shop.svc.cluster.local. A",
			"NOERROR\nout.shop.svc.cluster.local. 5 CNAME www.example.com.\nwww.example.com. 60 A 192.0.2.80"},
		{"an external name inside is followed", "alias.shop.svc.cluster.local. A",
			"NOERROR\nalias.shop.svc.cluster.local. 5 CNAME web.shop.svc.cluster.local.\nweb.shop.svc.cluster.local. 5 A 10.96.1.1"},
		{"an external name alone", "out.shop.svc.cluster.local. CNAME", "NOERROR\nout.shop.svc.cluster.local. 5 CNAME www.example.com."},
		{"a pod's address is in its name", "10-244-0-9.shop.pod.cluster.local. A", "NOERROR\n10-244-0-9.shop.pod.cluster.local. 5 A 10.244.0.9"},
		{"a pod of no namespace", "10-244-0-9.nope.pod.cluster.local. A", nxdomain},
		{"not a pod's address", "web.shop.pod.cluster.local. A", nxdomain},
		{"a Service by ClusterIP", "1.1.96.10.in-addr.arpa. PTR", "NOERROR\n1.1.96.10.in-addr.arpa. 5 PTR web.shop.svc.cluster.local."},
		{"an endpoint by address, backwards", "5.0.244.10.in-addr.arpa. PTR", "NOERROR\n5.0.244.10.in-addr.arpa. 5 PTR db-0.db.shop.svc.cluster.local."},
		{"no one's address in our ranges", "9.9.96.10.in-addr.arpa. PTR", nxdomain},
		{"an address elsewhere is not ours", "1.2.0.192.in-addr.arpa. PTR", "NOERROR"},
		{"the zone's authority", "cluster.local. SOA", "NOERROR\n" + strings.TrimPrefix(soaText, "; authority ")},
		{"the zone's server", "cluster.local. NS", "NOERROR\ncluster.local. 5 NS ns.dns.cluster.local.\n; additional ns.dns.cluster.local. 5 A 10.96.0.10"},
		{"the server's address", "ns.dns.cluster.local. A", "NOERROR\nns.dns.cluster.local. 5 A 10.96.0.10"},
		{"the specification's version", "dns-version.cluster.local. TXT", `NOERROR` + "\n" + `dns-version.cluster.local. 5 TXT "1.1.0"`},
		{"other names go to the host's resolver", "www.example.com. A", "NOERROR\nwww.example.com. 60 A 192.0.2.80"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name, qtype, _ := strings.Cut(tt.query, " ")
			for _, network := range []string{"udp", "tcp"} {
				if got := show(ask(t, network, address, name, dns.StringToType[qtype])); got != tt.want {
					t.Errorf("%s over %s:\n%s\nwant\n%s", tt.query, network, got, tt.want)
				}
			}
		})
	}
}

func TestLongAnswersAreTruncatedToWhatTheClientTakes(t *testing.T) {
	address := start(t, func(w dns.ResponseWriter, q *dns.Msg) {})
	m := ask(t, "udp", address, "big.shop.svc.cluster.local.", dns.TypeA)
	m.Compress = true
	if !m.Truncated || m.Len() > dns.MinMsgSize {
		t.Errorf("truncated %v, %d bytes", m.Truncated, m.Len())
	}
	query := new(dns.Msg).SetQuestion("big.shop.svc.cluster.local.", dns.TypeA)
	query.SetEdns0(4096, false)
	m, _, err := (&dns.Client{UDPSize: 4096}).Exchange(query, address)
	if err != nil {
		t.Fatal(err)
	}
	m.Compress = true
	if !m.Truncated || m.Len() > maxUDP || m.Len() <= dns.MinMsgSize || m.IsEdns0() == nil {
		t.Errorf("truncated %v, %d bytes, EDNS %v", m.Truncated, m.Len(), m.IsEdns0())
	}
	if m := ask(t, "tcp", address, "big.shop.svc.cluster.local.", dns.TypeA); m.Truncated || len(m.Answer) != 100 {
		t.Errorf("%d records over TCP, truncated %v", len(m.Answer), m.Truncated)
	}
}

func TestRefusesWhatItDoesNotServe(t *testing.T) {
	address := start(t, func(w dns.ResponseWriter, q *dns.Msg) {})
	tests := []struct {
		name   string
		change func(*dns.Msg)
		want   int
	}{
		{"another class", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		{"an update", func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		{"a later EDNS", func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }, dns.RcodeBadVers},
		{"forwarding unasked", func(m *dns.Msg) { m.RecursionDesired = false }, dns.RcodeRefused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)
			tt.change(m)
			reply, _, err := new(dns.Client).Exchange(m, address)
			if err != nil || reply.Rcode != tt.want {
				t.Errorf("%v, %v; want %s", reply, err, dns.RcodeToString[tt.want])
			}
		})
	}
}

func TestForwardedAnswersAreRemembered(t *testing.T) {
	asked := make(chan string, 10)
	address := start(t, func(w dns.ResponseWriter, q *dns.Msg) {
		asked <- q.Question[0].Name
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Name == "broken.example.com." {
			m.Rcode = dns.RcodeServerFailure
		}
		for i := range 40 {
			m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60},
				Txt: []string{fmt.Sprint(i, strings.Repeat("x", 60))}})
		}
		if w.RemoteAddr().Network() == "udp" {
			m.Truncate(512)
		}
		w.WriteMsg(m)
	})
	for range 3 {
		if m := ask(t, "tcp", address, "Long.example.com.", dns.TypeTXT); len(m.Answer) != 40 {
			t.Fatalf("%d records, want all of a long answer", len(m.Answer))
		}
	}
	if len(asked) != 2 { // over UDP, then TCP
		t.Errorf("resolver asked %d times", len(asked))
	}
	if m := ask(t, "udp", address, "broken.example.com.", dns.TypeTXT); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("code %s", dns.RcodeToString[m.Rcode])
	}
}

func TestReverseAddr(t *testing.T) {
	for name, want := range map[string]string{
		"4.3.2.1.in-addr.arpa.": "1.2.3.4",
		"3.2.1.in-addr.arpa.":   "",
		"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.": "2001:db8::1",
		"8.b.d.0.1.0.0.2.ip6.arpa.": "",
		"example.com.":              "",
	} {
		addr, ok := reverseAddr(name)
		if ok != (want != "") || ok && addr.String() != want {
			t.Errorf("%s: %s, %v; want %q", name, addr, ok, want)
		}
	}
}

func FuzzLookup(f *testing.F) {
	f.Add("_http._tcp.web.shop.svc.cluster.local.", uint16(dns.TypeSRV))
	f.Add("1.1.96.10.in-addr.arpa.", uint16(dns.TypePTR))
	cache := client.NewCache(nettest.API(f))
	z := New(Config{Cache: cache, Domain: "cluster.local"}).zone
	f.Fuzz(func(t *testing.T, name string, qtype uint16) {
		if _, ok := dns.IsDomainName(name); !ok {
			t.Skip()
		}
		r, _ := z.lookup(strings.ToLower(dns.Fqdn(name)), name, qtype)
		if slices.Contains(r.answer, nil) {
			t.Error("a nil record")
		}
	})
}
