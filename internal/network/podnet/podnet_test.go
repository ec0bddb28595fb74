package podnet

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"proa/internal/network/nettest"
)

func TestConflist(t *testing.T) {
	n, err := New(Config{Bridge: "proa0", CIDR: netip.MustParsePrefix("10.244.1.0/24"), StateDir: "/state"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.conflist(1400)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/conflist.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != strings.TrimSuffix(string(want), "\n") {
		t.Errorf("configuration:\n%s", got)
	}
}

func TestHalvesCoverTheRange(t *testing.T) {
	for text, want := range map[string]string{
		"10.244.0.0/24": "10.244.0.0/25 10.244.0.128/25",
		"10.0.0.0/8":    "10.0.0.0/9 10.128.0.0/9",
		"10.1.0.4/30":   "10.1.0.4/31 10.1.0.6/31",
	} {
		low, high := halves(netip.MustParsePrefix(text))
		if got := low.String() + " " + high.String(); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestSetUpAgainChangesNothing(t *testing.T) {
	host := nettest.New(t)
	dir := t.TempDir()
	c := Config{Bridge: "proatest", CIDR: netip.MustParsePrefix("10.244.0.0/24"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		CNIDir: filepath.Join(dir, "cni"), StateDir: filepath.Join(dir, "state"), MTU: 1400}
	n, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	var first, second netlink.Link
	host.Do(func() (err error) {
		if err = n.SetUp(t.Context()); err != nil {
			return err
		}
		first, err = netlink.LinkByName("proatest")
		return err
	})
	before, err := os.Stat(filepath.Join(c.CNIDir, conflistName))
	if err != nil {
		t.Fatal(err)
	}
	host.Do(func() (err error) {
		if err = n.SetUp(t.Context()); err != nil {
			return err
		}
		second, err = netlink.LinkByName("proatest")
		return err
	})
	after, err := os.Stat(filepath.Join(c.CNIDir, conflistName))
	if err != nil {
		t.Fatal(err)
	}
	if first.Attrs().Index != second.Attrs().Index || first.Attrs().HardwareAddr.String() != second.Attrs().HardwareAddr.String() || second.Attrs().MTU != 1400 {
		t.Errorf("bridge %+v became %+v", first.Attrs(), second.Attrs())
	}
	if !os.SameFile(before, after) {
		t.Error("the configuration was written again")
	}
	host.Do(func() error { return Remove(c) })
	host.Do(func() error { return Remove(c) })
	if _, err := os.Stat(c.StateDir); !os.IsNotExist(err) {
		t.Errorf("state remains: %v", err)
	}
}

func TestAForeignLinkOfTheNameIsNotTaken(t *testing.T) {
	host := nettest.New(t)
	nettest.Connect(host, "proatest", netip.Prefix{}, nettest.New(t), "eth0", netip.Prefix{})
	n, err := New(Config{Bridge: "proatest", CIDR: netip.MustParsePrefix("10.244.0.0/24"), CNIDir: t.TempDir(), StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Try(func() error { return n.SetUp(t.Context()) }); err == nil || !strings.Contains(err.Error(), "veth") {
		t.Errorf("error %v, want one that names the link's type", err)
	}
}

// The announcement of a new pod's address can be missed; the host still knows the link
// of the pod that had the address before.
func TestAPodAtTheAddressOfAnotherIsFound(t *testing.T) {
	host, pod := nettest.New(t), nettest.New(t)
	dir := t.TempDir()
	n, err := New(Config{Bridge: "proatest", CIDR: netip.MustParsePrefix("10.244.0.0/24"), CNIDir: filepath.Join(dir, "cni"), StateDir: filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	host.Do(func() error { return n.SetUp(t.Context()) })
	nettest.Connect(host, "veth0", netip.Prefix{}, pod, "eth0", netip.MustParsePrefix("10.244.0.5/24"))
	host.Join("veth0", "proatest")
	pod.Echo("new", 80)
	host.Do(func() error {
		bridge, err := netlink.LinkByName("proatest")
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: bridge.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_STALE,
			IP: net.IPv4(10, 244, 0, 5), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		})
	})
	if got, err := host.Ask("tcp4", "10.244.0.5:80"); got != "new 10.244.0.1" {
		t.Errorf("answer %q, %v", got, err)
	}
}
