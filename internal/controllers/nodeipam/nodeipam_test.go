package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func run(t *testing.T, ranges []string, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			var prefixes []netip.Prefix
			for _, r := range ranges {
				prefixes = append(prefixes, netip.MustParsePrefix(r))
			}
			n, err := New(c, prefixes...)
			if err != nil {
				t.Fatal(err)
			}
			return []controllertest.Runner{n}
		})()
		test(w)
	})
}

func node(w *controllertest.World, name string, cidrs ...string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if len(cidrs) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
	}
	w.Create(n)
	w.Settle()
}

func cidrs(w *controllertest.World) string {
	var out []string
	for _, n := range controllertest.List[*corev1.Node](w) {
		out = append(out, n.Name+"="+strings.Join(n.Spec.PodCIDRs, "+"))
	}
	return strings.Join(out, " ")
}

func want(w *controllertest.World, text string) {
	w.T.Helper()
	if got := cidrs(w); got != text {
		w.T.Errorf("got %q, want %q", got, text)
	}
}

func TestEveryNodeGetsItsOwnRange(t *testing.T) {
	run(t, []string{"10.244.0.0/16", "fd00:10:244::/56"}, func(w *controllertest.World) {
		node(w, "kept", "10.244.1.0/24", "fd00:10:244:1::/64")
		node(w, "a")
		node(w, "b")
		want(w, "a=10.244.0.0/24+fd00:10:244::/64 b=10.244.2.0/24+fd00:10:244:2::/64 kept=10.244.1.0/24+fd00:10:244:1::/64")
		controllertest.Delete[*corev1.Node](w, "kept")
		w.Writes()
		node(w, "c")
		want(w, "a=10.244.0.0/24+fd00:10:244::/64 b=10.244.2.0/24+fd00:10:244:2::/64 c=10.244.1.0/24+fd00:10:244:1::/64")
		if got := w.Writes(); got["patch nodes"] != 1 || len(got) != 1 {
			t.Errorf("wrote %v", got)
		}
	})
}

func TestANodeWaitsForAFreeRange(t *testing.T) {
	run(t, []string{"10.244.0.0/23"}, func(w *controllertest.World) {
		node(w, "a")
		node(w, "b")
		node(w, "c")
		want(w, "a=10.244.0.0/24 b=10.244.1.0/24 c=")
		if want := "Normal CIDRNotAvailable Node c status is now: CIDRNotAvailable"; !slices.Contains(w.Events(), want) {
			t.Errorf("events %v lack %q", w.Events(), want)
		}
		controllertest.Delete[*corev1.Node](w, "a")
		w.Settle()
		node(w, "d")
		want(w, "b=10.244.1.0/24 c=10.244.0.0/24 d=")
	})
}

func TestManyNodesShareNothing(t *testing.T) {
	run(t, []string{"10.128.0.0/10"}, func(w *controllertest.World) {
		for i := range 300 {
			w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
		}
		w.Settle()
		seen := map[string]bool{}
		for _, n := range controllertest.List[*corev1.Node](w) {
			if n.Spec.PodCIDR == "" || seen[n.Spec.PodCIDR] {
				t.Errorf("%s has %q", n.Name, n.Spec.PodCIDR)
			}
			seen[n.Spec.PodCIDR] = true
		}
	})
}

func TestRangesTakeWhatTheyOverlap(t *testing.T) {
	p, err := newPool(netip.MustParsePrefix("10.0.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	p.mark(netip.MustParsePrefix("10.0.0.0/23"), true)
	p.mark(netip.MustParsePrefix("10.0.2.128/25"), true)
	p.mark(netip.MustParsePrefix("192.168.0.0/24"), true)
	if got, _ := p.take(); got.String() != "10.0.3.0/24" {
		t.Errorf("took %s", got)
	}
	p.mark(netip.MustParsePrefix("10.0.0.0/8"), true)
	if got, ok := p.take(); ok {
		t.Errorf("took %s from a pool that is taken", got)
	}
	if _, err := newPool(netip.MustParsePrefix("10.0.0.0/25")); err == nil {
		t.Error("a cluster range smaller than a node's is taken")
	}
}

func TestAClaimedRangeWaitsForItsNode(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "early"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.0.0/24", PodCIDRs: []string{"10.244.0.0/24"}}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			n, err := New(c, netip.MustParsePrefix("10.244.0.0/16"))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				got, err := n.Claim("own", controllertest.List[*corev1.Node](w))
				if err != nil || len(got) != 1 || got[0].String() != "10.244.1.0/24" {
					t.Fatalf("claimed %v, %v", got, err)
				}
			}
			if got, err := n.Claim("early", controllertest.List[*corev1.Node](w)); err != nil || got[0].String() != "10.244.0.0/24" {
				t.Fatalf("a node that has a range gets %v, %v", got, err)
			}
			return []controllertest.Runner{n}
		})()
		node(w, "a")
		node(w, "own")
		want(w, "a=10.244.2.0/24 early=10.244.0.0/24 own=10.244.1.0/24")
		controllertest.Delete[*corev1.Node](w, "own")
		w.Settle()
		node(w, "b")
		node(w, "own")
		want(w, "a=10.244.2.0/24 b=10.244.3.0/24 early=10.244.0.0/24 own=10.244.1.0/24")
	})
}
