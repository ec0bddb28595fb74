package registry

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// fill creates Services until there is nothing left for them.
func (w *world) fill(t *testing.T, change ...func(*corev1.ServiceSpec)) (made []*corev1.Service) {
	t.Helper()
	for {
		svc, err := w.admin.Create(w.ctx, in(services, ""), service(fmt.Sprint("s", len(made)), change...), metav1.CreateOptions{})
		if err != nil {
			wantError(t, err, "range is full")
			return made
		}
		made = append(made, svc.(*corev1.Service))
	}
}

// The band that is left to those who ask for an address (KEP-3070) is given out
// last; a range that has no more than such a band has none.
func TestBandsOfAddresses(t *testing.T) {
	tests := []struct {
		cidr       string
		upper, all int // addresses that are given out first, and all
		lowest     string
	}{
		{"10.0.0.0/30", 2, 2, "10.0.0.1"},
		{"10.0.0.0/28", 14, 14, "10.0.0.1"},
		{"10.0.0.0/27", 14, 30, "10.0.0.17"},
		{"10.0.0.0/24", 238, 254, "10.0.0.17"},
		{"fd00::/122", 47, 63, "fd00::11"},
	}
	for _, tt := range tests {
		t.Run(tt.cidr, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix(tt.cidr)} })
			made := w.fill(t)
			if len(made) != tt.all {
				t.Errorf("%d addresses, want %d", len(made), tt.all)
			}
			lowest := netip.MustParseAddr(tt.lowest)
			for i, svc := range made {
				if upper := !netip.MustParseAddr(svc.Spec.ClusterIP).Less(lowest); upper != (i < tt.upper) {
					t.Errorf("address %d of %d is %s", i, len(made), svc.Spec.ClusterIP)
				}
			}
		})
	}
}

// As for addresses (KEP-3668).
func TestBandsOfNodePorts(t *testing.T) {
	for _, tt := range []struct{ size, band int }{{10, 0}, {16, 0}, {40, 16}, {800, 25}} {
		t.Run(fmt.Sprint(tt.size), func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.NodePortRange = utilnet.PortRange{Base: 30000, Size: tt.size} })
			made := w.fill(t, nodePort(0))
			if len(made) != tt.size {
				t.Errorf("%d ports, want %d", len(made), tt.size)
			}
			for i, svc := range made {
				port := int(svc.Spec.Ports[0].NodePort)
				if upper := port >= 30000+tt.band; upper != (i < tt.size-tt.band) {
					t.Errorf("port %d of %d is %d", i, len(made), port)
				}
			}
		})
	}
}
