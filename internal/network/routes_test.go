package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/network/nettest"
)

// nodeOf writes a node as name, range and address; age in minutes.
func nodeOf(text string, age int) *corev1.Node {
	f := strings.Fields(text)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: f[0], CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-time.Duration(age) * time.Minute))},
		Spec:       corev1.NodeSpec{PodCIDR: f[1]},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: f[2]}}},
	}
}

func TestPeersAreTheOthersWithARangeOfTheirOwn(t *testing.T) {
	nodes := []*corev1.Node{
		nodeOf("self 10.244.0.0/24 192.0.2.1", 3),
		nodeOf("b 10.244.1.0/24 192.0.2.2", 4),
		nodeOf("c 10.244.2.0/24 192.0.2.3", 2),
		nodeOf("none - 192.0.2.4", 2),
		nodeOf("nowhere 10.244.4.0/24 -", 2),
		nodeOf("greedy 0.0.0.0/0 192.0.2.66", 1),
		nodeOf("whole 10.244.0.0/16 192.0.2.66", 1),
		nodeOf("foreign 192.0.2.0/28 192.0.2.66", 1),
		nodeOf("thief 10.244.1.128/25 192.0.2.66", 1),
		nodeOf("mine 10.244.0.0/25 192.0.2.66", 9),
	}
	var got []string
	for _, p := range peersOf(nodes, "self", netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.244.0.0/24")) {
		got = append(got, fmt.Sprintf("%s %s %s %t", p.name, p.cidr, p.gateway, p.older))
	}
	want := []string{"b 10.244.1.0/24 192.0.2.2 true", "c 10.244.2.0/24 192.0.2.3 false"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("peers\n%s", strings.Join(got, "\n"))
	}
}

func TestTheNodeThatCameLaterIsUnavailable(t *testing.T) {
	older := peer{name: "b", cidr: netip.MustParsePrefix("10.244.1.0/24"), gateway: netip.MustParseAddr("192.0.2.2"), older: true}
	younger := peer{name: "c", cidr: netip.MustParsePrefix("10.244.2.0/24"), gateway: netip.MustParseAddr("192.0.2.3")}
	tests := []struct {
		name   string
		peers  []peer
		failed []peer
		want   string
	}{
		{"alone", nil, nil, ""},
		{"with routes", []peer{older, younger}, nil, "False RouteCreated"},
		{"no route to a younger one", []peer{older, younger}, []peer{younger}, "False RouteCreated"},
		{"no route to an older one", []peer{older, younger}, []peer{older}, "True NoRouteCreated"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			api := nettest.API(t)
			nettest.Create(t, api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "self"}})
			cache := client.NewCache(api)
			n, err := New(Config{Cache: cache, NodeName: "self", Bridge: "b", Table: "t", CNIDir: "c", StateDir: "s",
				PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/12")})
			if err != nil {
				t.Fatal(err)
			}
			nettest.Run(t, cache.Run)
			if err := cache.WaitForSync(t.Context()); err != nil {
				t.Fatal(err)
			}
			failed := map[netip.Prefix]error{}
			for _, p := range test.failed {
				failed[p.cidr] = fmt.Errorf("no way")
			}
			if err := n.tellNode(t.Context(), test.peers, failed); err != nil {
				t.Fatal(err)
			}
			node, err := client.Of[*corev1.Node](api).Get(t.Context(), "", "self")
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if c := unavailable(node); c != nil {
				got = string(c.Status) + " " + c.Reason
			}
			if got != test.want {
				t.Errorf("condition %q, want %q", got, test.want)
			}
		})
	}
}
