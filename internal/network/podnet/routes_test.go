package podnet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"proa/internal/network/nettest"
)

func TestRoutesFollowNodes(t *testing.T) {
	host, other := nettest.New(t), nettest.New(t)
	nettest.Connect(host, "eth0", netip.MustParsePrefix("192.0.2.1/24"), other, "eth0", netip.MustParsePrefix("192.0.2.2/24"))
	whole := netip.MustParsePrefix("10.244.0.0/16")
	set := func(want map[string]string) (failed string) {
		t.Helper()
		r := NewRoutes(whole)
		defer r.Close()
		routes := map[netip.Prefix]netip.Addr{}
		for cidr, gateway := range want {
			routes[netip.MustParsePrefix(cidr)] = netip.MustParseAddr(gateway)
		}
		host.Do(func() error {
			problems, err := r.Set(routes)
			for cidr, problem := range problems {
				failed += cidr.String() + ": " + problem.Error()
			}
			return err
		})
		return failed
	}
	have := func() string {
		var out []string
		host.Do(func() error {
			routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
			for _, route := range routes {
				if route.Gw != nil {
					out = append(out, route.Dst.String()+"="+route.Gw.String())
				}
			}
			return err
		})
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	steps := []struct {
		name, want string
		routes     map[string]string
		failed     string
	}{
		{"a node comes", "10.244.1.0/24=192.0.2.2", map[string]string{"10.244.1.0/24": "192.0.2.2"}, ""},
		{"another comes, the first moves", "10.244.1.0/24=192.0.2.3 10.244.2.0/24=192.0.2.2", map[string]string{"10.244.1.0/24": "192.0.2.3", "10.244.2.0/24": "192.0.2.2"}, ""},
		{"one goes", "10.244.2.0/24=192.0.2.2", map[string]string{"10.244.2.0/24": "192.0.2.2"}, ""},
		{"one is elsewhere", "10.244.2.0/24=192.0.2.2", map[string]string{"10.244.2.0/24": "192.0.2.2", "10.244.3.0/24": "198.51.100.7"}, "on no network with 198.51.100.7"},
	}
	host.Route(netip.MustParsePrefix("10.9.0.0/16"), netip.MustParseAddr("192.0.2.9")) // someone else's
	const foreign = "10.9.0.0/16=192.0.2.9"
	for _, step := range steps {
		failed := set(step.routes)
		if !strings.Contains(failed, step.failed) || failed != "" && step.failed == "" {
			t.Errorf("%s: failed %q, want %q", step.name, failed, step.failed)
		}
		want := strings.Split(step.want+" "+foreign, " ")
		slices.Sort(want)
		if got := have(); got != strings.Join(want, " ") {
			t.Errorf("%s: routes %s, want %s", step.name, got, want)
		}
	}
	host.Do(func() error { return RemoveRoutes(whole) })
	if got := have(); got != foreign {
		t.Errorf("routes that remain: %s", got)
	}
}
