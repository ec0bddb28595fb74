package manager

import (
	"context"
	"crypto"
	"crypto/x509"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"proa/internal/client"
	"proa/internal/controllers/controllertest"
)

// The ledger's table of upstream's controllers says of each that is made here
// that it runs.
func TestTheLedgerKnowsEveryController(t *testing.T) {
	data, err := os.ReadFile("../../test/features.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var ledger struct {
		Controllers []struct{ Name, Status string }
	}
	if err := yaml.Unmarshal(data, &ledger); err != nil {
		t.Fatal(err)
	}
	status := map[string]string{}
	for _, c := range ledger.Controllers {
		status[c.Name] = c.Status
	}
	for _, e := range entries {
		if status[e.name] != "runs" {
			t.Errorf("%s is %q in the ledger", e.name, status[e.name])
		}
	}
	for name, s := range status {
		made := slices.ContainsFunc(entries, func(e entry) bool { return e.name == name })
		if s == "runs" && !made {
			t.Errorf("%s runs by the ledger, but nobody makes it", name)
		}
	}
}

func TestControllersAreChosenByName(t *testing.T) {
	for _, c := range []struct {
		names []string
		entry entry
		want  bool
	}{
		{[]string{"*"}, entry{name: "a"}, true},
		{[]string{"*"}, entry{name: "a", off: true}, false},
		{[]string{"*", "a"}, entry{name: "a", off: true}, true},
		{[]string{"*", "-a"}, entry{name: "a"}, false},
		{[]string{"b"}, entry{name: "a"}, false},
		{[]string{"*", "-old"}, entry{name: "a", alias: "old"}, false},
		{[]string{"old"}, entry{name: "a", alias: "old"}, true},
	} {
		if got := c.entry.on(c.names); got != c.want {
			t.Errorf("%s of %v: %v", c.entry.name, c.names, got)
		}
	}
}

// Every name is a controller that runs, and one that is named with a minus does not.
func TestEveryControllerRunsAndCanBeTurnedOff(t *testing.T) {
	all, off := Names()
	controllertest.Run(t, func(w *controllertest.World) {
		if got := made(w, append([]string{"*"}, off...)...); !slices.Equal(got, all) {
			t.Errorf("made %v, want %v", got, all)
		}
		for _, e := range entries {
			for _, name := range []string{e.name, e.alias} {
				if name == "" {
					continue
				}
				want := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == e.name || n != e.name && slices.Contains(off, n) })
				if got := made(w, "*", "-"+name); !slices.Equal(got, want) {
					t.Errorf("without %s: made %v, want %v", name, got, want)
				}
			}
			if got := made(w, e.name); !slices.Equal(got, []string{e.name}) {
				t.Errorf("%s alone: made %v", e.name, got)
			}
		}
	})
}

// made are the controllers that a list of names makes, sorted. They do not get to run.
func made(w *controllertest.World, list ...string) (names []string) {
	w.T.Helper()
	ctx, cancel := context.WithCancel(w.T.Context())
	cache := client.NewCache(w.API)
	m, err := New(ctx, Config{
		Cache: cache, As: func(string) client.API { return w.API }, Catalogue: w.Catalogue, Controllers: list,
		RootCA: []byte("authority"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Token: func(*corev1.ServiceAccount, *corev1.Secret) (string, error) { return "", nil },
		Sign:  func(*x509.Certificate, crypto.PublicKey, time.Duration) ([]byte, error) { return nil, nil },
	})
	cancel()
	if err != nil {
		w.T.Fatal(err)
	}
	for _, c := range m.made {
		names = append(names, c.name)
	}
	slices.Sort(names)
	if err := m.Run(ctx); err != nil {
		w.T.Error(err)
	}
	return names
}
