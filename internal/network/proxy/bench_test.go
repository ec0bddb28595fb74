package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/network/nettest"
)

// crowd is a Service among many, with three endpoints.
func crowd(i, generation int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	addr := func(base string, n int) netip.Addr {
		raw := netip.MustParseAddr(base).As4()
		raw[2], raw[3] = byte(n>>8), byte(n)
		return netip.AddrFrom4(raw)
	}
	ip := addr("10.96.0.0", i+20).String()
	name := fmt.Sprintf("svc-%d", i)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Name: "t", Protocol: corev1.ProtocolTCP, Port: 80}}}}
	s := testSlice(addr("10.244.0.0", i), addr("10.245.0.0", i), addr("10.246.0.0", i+generation))
	s.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}}
	s.Ports = s.Ports[:1]
	return svc, s
}

func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(took[(len(took)-1)*p/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", p))
	}
}

// BenchmarkServiceChange is the way of a changed EndpointSlice from the write
// to the API to the kernel's answer, among 10 000 Services.
func BenchmarkServiceChange(b *testing.B) {
	const services = 10_000
	host := nettest.New(b)
	api := nettest.API(b)
	nettest.Namespaces(b, api, "default")
	for i := range services {
		svc, s := crowd(i, 0)
		nettest.Create(b, api, svc)
		nettest.Create(b, api, s)
	}
	cache := client.NewCache(api)
	p := New(Config{Cache: cache, NodeName: "n1", Table: "proa-bench", Bridge: "proabench", PodCIDR: podCIDR, NodeCIDR: nodeCIDR,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12"), NetNS: host.FD()})
	applied := make(chan struct{}, 1)
	p.applied = func() {
		select {
		case applied <- struct{}{}:
		default:
		}
	}
	nettest.Run(b, cache.Run)
	if err := cache.WaitForSync(b.Context()); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	nettest.Run(b, p.Run)
	<-p.Ready()
	full := time.Since(start)
	<-applied
	slicesOf := client.Of[*discoveryv1.EndpointSlice](api)
	var took []time.Duration
	generation := 0
	for b.Loop() {
		generation++
		i := generation * 7919 % services
		have, err := slicesOf.Get(b.Context(), "default", fmt.Sprintf("svc-%d-1", i))
		if err != nil {
			b.Fatal(err)
		}
		changed := have.DeepCopy()
		changed.Endpoints[2].Conditions.Ready = ptr.To(!*have.Endpoints[2].Conditions.Ready)
		changed.Endpoints[2].Conditions.Serving, changed.Endpoints[2].Conditions.Terminating = nil, nil
		start := time.Now()
		if _, err := slicesOf.Update(b.Context(), changed); err != nil {
			b.Fatal(err)
		}
		<-applied
		took = append(took, time.Since(start))
	}
	report(b, took)
	b.ReportMetric(float64(full.Milliseconds()), "full-sync-ms")
}
