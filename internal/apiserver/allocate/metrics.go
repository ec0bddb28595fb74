package allocate

import (
	"math"
	"math/big"
	"math/bits"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"proa/internal/store"
)

// Scopes of an allocation: the address or port was asked for, or any would do.
const (
	static  = "static"
	dynamic = "dynamic"
)

// measures counts what is given out.
type measures struct{ ips, ipErrors, ports, portErrors *prometheus.CounterVec }

func newMeasures() *measures {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kube_apiserver_" + name, Help: "[ALPHA] " + help}, labels)
	}
	return &measures{
		ips:        counter("clusterip_allocator_allocation_total", "Cluster IPs given to Services.", "cidr", "scope"),
		ipErrors:   counter("clusterip_allocator_allocation_errors_total", "Cluster IPs that could not be given.", "cidr", "scope"),
		ports:      counter("nodeport_allocator_allocation_total", "Node ports given to Services.", "scope"),
		portErrors: counter("nodeport_allocator_allocation_errors_total", "Node ports that could not be given.", "scope"),
	}
}

// tookIP counts an allocation when its transaction is written, or one that failed.
// An address that is in no range is counted for the first one.
func (m *measures) tookIP(tx *store.Tx, ranges []netip.Prefix, ip netip.Addr, scope string, err error) {
	var cidr string
	for i, p := range ranges {
		if i == 0 || p.Contains(ip) {
			cidr = p.String()
		}
	}
	count(tx, err, m.ips.WithLabelValues(cidr, scope), m.ipErrors.WithLabelValues(cidr, scope))
}

func (m *measures) tookPort(tx *store.Tx, scope string, err error) {
	count(tx, err, m.ports.WithLabelValues(scope), m.portErrors.WithLabelValues(scope))
}

func count(tx *store.Tx, err error, given, failed prometheus.Counter) {
	if err != nil {
		failed.Inc()
		return
	}
	tx.Committed(given.Inc)
}

var (
	allocatedIPs   = gauge("clusterip_allocator_allocated_ips", "Cluster IPs that Services have.", "cidr")
	availableIPs   = gauge("clusterip_allocator_available_ips", "Cluster IPs that are free.", "cidr")
	allocatedPorts = gauge("nodeport_allocator_allocated_ports", "Node ports that Services have.")
	availablePorts = gauge("nodeport_allocator_available_ports", "Node ports that are free.")
)

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kube_apiserver_"+name, "[ALPHA] "+help, labels, nil)
}

// Describe and Collect show what there is to allocate, counted when somebody asks.
func (s *Services) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{allocatedIPs, availableIPs, allocatedPorts, availablePorts} {
		to <- d
	}
	for _, v := range []*prometheus.CounterVec{s.measures.ips, s.measures.ipErrors, s.measures.ports, s.measures.portErrors} {
		v.Describe(to)
	}
}

// Collect is beside Describe.
func (s *Services) Collect(to chan<- prometheus.Metric) {
	for _, v := range []*prometheus.CounterVec{s.measures.ips, s.measures.ipErrors, s.measures.ports, s.measures.portErrors} {
		v.Collect(to)
	}
	show := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, family := range s.families {
		for _, p := range s.ranges(family) {
			used := s.usedIPs(p)
			show(allocatedIPs, used, p.String())
			show(availableIPs, max(0, hosts(p)-used), p.String())
		}
	}
	used := s.usedPorts()
	show(allocatedPorts, used)
	show(availablePorts, float64(s.ports.Size)-used)
}

// usedIPs counts the addresses of Services in a range.
func (s *Services) usedIPs(p netip.Prefix) float64 {
	n := 0
	s.store.Snapshot().Range(addresses, "", store.Key{}, func(item *store.Item) bool {
		ip, err := netip.ParseAddr(item.Key.Name)
		if err == nil && p.Contains(ip) && item.Object.GetLabels()[networkingv1.LabelManagedBy] == manager {
			n++
		}
		return true
	})
	return float64(n)
}

// hosts is how many addresses of a range may be given out. An IPv6 range has no
// broadcast address, and counts as if it had at most 64 bits of its own.
func hosts(p netip.Prefix) float64 {
	own := min(p.Addr().BitLen()-p.Bits(), 64)
	size := math.Exp2(float64(own))
	if p.Addr().Is4() && p.Bits() <= 30 {
		size--
	}
	if !p.IsSingleIP() {
		size--
	}
	return size
}

func (s *Services) usedPorts() float64 {
	item, err := s.store.Get(NodePorts)
	if err != nil {
		return 0
	}
	held := 0
	for _, word := range new(big.Int).SetBytes(item.Object.(*corev1.RangeAllocation).Data).Bits() {
		held += bits.OnesCount(uint(word))
	}
	return float64(held)
}
